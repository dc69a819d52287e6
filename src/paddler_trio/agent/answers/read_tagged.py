"""Calls written with tags: names, keys and bare values between fixed texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from paddler_trio.agent.answers.call_syntax import TaggedCalls
from paddler_trio.agent.answers.calls import (
    ArgumentsGrew,
    CallBegun,
    Emit,
    NotACallError,
    ToolSchemas,
    WrittenCall,
)
from paddler_trio.agent.answers.json_text import parse_json
from paddler_trio.agent.answers.source import Reading, Sink, Source, stops_of
from paddler_trio.agent.answers.typed_values import (
    ANY,
    TextValue,
    expected_of,
    json_of,
    without_layout,
)

MAX_NAME_CHARS = 1024

_TEXT = frozenset({"string"})


class ArgumentsWriter:
    """Writes the JSON object of a call's arguments, pair by pair, as pieces of its text."""

    __slots__ = ("_emit", "_name", "_parts")

    def __init__(self, name: str, emit: Emit, call_id: str | None = None) -> None:
        """Announce the call."""
        self._name = name
        self._emit = emit
        self._parts: list[str] = []
        emit(CallBegun(name, call_id))

    def grow(self, text: str) -> None:
        """More of the JSON text."""
        self._parts.append(text)
        self._emit(ArgumentsGrew(text))

    def begin_pair(self, key: str) -> None:
        """The value's JSON text comes next."""
        opening = ", " if self._parts else "{"
        self.grow(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")

    def end(self, call_id: str | None = None) -> None:
        """The call is complete.

        Raises:
          NotACallError: its values make no JSON object that can be sent.
        """
        self.grow("}" if self._parts else "{}")
        try:
            arguments = parse_json("".join(self._parts))
        except ValueError as error:
            raise NotACallError(str(error)) from error
        assert isinstance(arguments, dict)
        self._emit(WrittenCall(self._name, arguments, call_id))


def read_tagged_call(
    source: Source,
    syntax: TaggedCalls,
    schemas: ToolSchemas,
    emit: Emit,
    known_name: str | None = None,
) -> Reading[None]:
    """One call; what stands before its name was taken, and so was ``known_name`` if given.

    Raises:
      NotACallError: it does not end, or something else stands among its arguments.
    """
    name = (yield from _read_name(source, syntax)) if known_name is None else known_name
    schema = schemas.get(name, {})
    writer = ArgumentsWriter(name, emit)
    while True:
        yield from source.skip_blank()
        ends = (syntax.call_end,) if syntax.call_end else ()
        following = yield from source.starts_with(syntax.before_key, *ends)
        if following is None:
            if syntax.call_end and not (source.ended and source.is_spent):
                raise NotACallError(f"expected {syntax.before_key!r} or {syntax.call_end!r}")
            if source.is_cut_off:
                raise NotACallError("the call does not end")
            break
        source.take(len(following))
        if following != syntax.before_key:
            break
        yield from _read_argument(source, syntax, schema, writer)
    writer.end()


def _read_name(source: Source, syntax: TaggedCalls) -> Reading[str]:
    name = yield from _read_short(source, syntax.name_end)
    if syntax.head_end:
        yield from _read_short(source, syntax.head_end)
    name = name.strip()
    if not name:
        raise NotACallError("a call without a name")
    return name


def _read_short(source: Source, end: str) -> Reading[str]:
    """A short text up to ``end``, which is taken."""
    parts: list[str] = []
    stop = yield from source.take_until(stops_of(end), parts.append)
    text = "".join(parts)
    if stop is None or len(text) > MAX_NAME_CHARS:
        raise NotACallError(f"{text[:80]!r} is not followed by {end!r}")
    return text


def _read_argument(
    source: Source, syntax: TaggedCalls, schema: Mapping[str, object], writer: ArgumentsWriter
) -> Reading[None]:
    key = (yield from _read_short(source, syntax.key_end)).strip()
    attributes = ""
    if syntax.before_value:
        attributes = yield from _read_short(source, syntax.before_value)
    types = _types_said(syntax, attributes) or expected_of(schema, key).types
    writer.begin_pair(key)
    if syntax.has_cdata:
        yield from _skip_blank_before_cdata(source)
        if (yield from source.take_text("<![CDATA[")):
            value = TextValue(writer.grow, is_exact=True)
            complete = yield from source.take_until(stops_of("]]>"), value.feed)
            value.end()
            if complete is not None:
                complete = yield from source.take_until(stops_of(syntax.value_end), lambda _: None)
            if complete is None:
                raise NotACallError(f"the argument {key!r} does not end")
            return
    if types == _TEXT:
        value = TextValue(writer.grow, is_exact=syntax.exact)
        if not (yield from _take_value(source, syntax, value.feed)):
            raise NotACallError(f"the argument {key!r} does not end")
        value.end()
        return
    parts: list[str] = []
    if not (yield from _take_value(source, syntax, parts.append)):
        raise NotACallError(f"the argument {key!r} does not end")
    text = "".join(parts)
    writer.grow(json_of(text if syntax.exact else without_layout(text), types))


def _take_value(source: Source, syntax: TaggedCalls, sink: Sink) -> Reading[bool]:
    """The value up to the tag that ends it, which is taken; whether there is one.

    Code may speak about tags: one that neither an argument nor the call's end follows is text.
    """
    while (yield from source.take_until(stops_of(syntax.value_end), sink)) is not None:
        if not syntax.call_end:
            return True
        with source.recording() as blanks:
            is_end = not (yield from source.skip_blank())
        if is_end or (yield from source.starts_with(syntax.before_key, syntax.call_end)):
            return True
        sink(syntax.value_end + "".join(blanks))
    return False


def _skip_blank_before_cdata(source: Source) -> Reading[None]:
    if (yield from source.starts_with("\n<![CDATA[")) is not None:
        source.take(1)


def _types_said(syntax: TaggedCalls, attributes: str) -> frozenset[str] | None:
    """What an attribute says of the value: ``string="true"``, ``type="number"``."""
    name = syntax.text_attribute
    if not name:
        return None
    match = re.search(rf'{re.escape(name)}\s*=\s*"([^"]*)"', attributes)
    if match is None:
        return None
    return _TEXT if match[1] in ("true", "string") else ANY - _TEXT
