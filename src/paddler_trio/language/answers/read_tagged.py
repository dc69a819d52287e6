"""Calls written with tags: names, keys and bare values between fixed texts.

Code speaks about tags, and models misspell or repeat them: `_take_value` decides where a value
ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.language.answers.call_events import (
    ArgumentsGrew,
    CallBegun,
    Emit,
    NotACallError,
    ToolSchemas,
    WrittenCall,
)
from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.known_slips import ends_of_call, misspelt_ends
from paddler_trio.language.answers.literals import arguments_of, parse_json
from paddler_trio.language.answers.streamed_json import read_json_text
from paddler_trio.language.answers.text_source import Reading, Sink, Source, stops_of
from paddler_trio.language.answers.typed_values import (
    ANY,
    TextValue,
    expected_of,
    json_of,
    without_layout,
)

_TEXT = frozenset({"string"})
_WRAPPERS = frozenset({"arguments", "input", "parameters", "properties"})
"""What models call an argument that holds all the others; DeepSeek and MiniCPM do so at times."""


@attrs.define(eq=False)
class ArgumentsWriter:
    """Writes the JSON object of a call's arguments, pair by pair, as pieces of its text."""

    _name: str
    _emit: Emit
    _parts: list[str] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._emit(CallBegun(self._name))

    def grow(self, text: str) -> None:
        """More of the JSON text."""
        self._parts.append(text)
        self._emit(ArgumentsGrew(text))

    @property
    def is_empty(self) -> bool:
        """Nothing is known of the arguments yet."""
        return not self._parts

    def begin_pair(self, key: str) -> None:
        """The value's JSON text comes next."""
        opening = ", " if self._parts else "{"
        self.grow(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")

    def end(self) -> None:
        """The call is complete.

        Raises:
          NotACallError: its values make no JSON object that can be sent.
        """
        self.grow("}" if self._parts else "{}")
        self.check()

    def check(self) -> None:
        """The JSON text that was written is all of the arguments.

        Raises:
          NotACallError: it is no JSON that can be sent.
        """
        try:
            arguments = parse_json("".join(self._parts))
        except ValueError as error:
            raise NotACallError(str(error)) from error
        self._emit(WrittenCall(self._name, arguments_of(arguments)))


def read_tagged_call(
    source: Source,
    syntax: TaggedCalls,
    schemas: ToolSchemas,
    emit: Emit,
    known_name: str | None = None,
    *,
    section_end: str = "",
) -> Reading[None]:
    """One call; what stands before its name was taken, and so was ``known_name`` if given.

    Args:
      section_end: of the section; it ends the last value too, if that has no end of its own.

    Raises:
      NotACallError: it does not end, or something else stands among its arguments.
    """
    name = (yield from _read_name(source, syntax)) if known_name is None else known_name
    name = _without_doubling(name, schemas)
    schema = schemas.get(name, {})
    properties = schema.get("properties")
    missing = set(properties) if isinstance(properties, Mapping) else set()
    writer = ArgumentsWriter(name, emit)
    is_open = False  # the next argument has begun
    while True:
        if is_open:
            is_open = yield from _read_argument(
                source, syntax, schema, writer, missing, section_end
            )
            continue
        yield from source.skip_blank()
        following = yield from source.starts_with(syntax.before_key, *ends_of_call(syntax))
        if following is None:
            if writer.is_empty and (yield from source.peek()) == "{":
                yield from _read_json_arguments(source, syntax, writer)
                return
            if syntax.call_end and not (source.ended and source.is_spent):
                raise NotACallError(f"expected {syntax.before_key!r} or {syntax.call_end!r}")
            if source.is_cut_off:
                raise NotACallError("the call does not end")
            break
        source.take(len(following))
        if following != syntax.before_key:
            break
        is_open = True
    writer.end()


def _read_json_arguments(
    source: Source, syntax: TaggedCalls, writer: ArgumentsWriter
) -> Reading[None]:
    """A JSON object where tags should stand, and the call's end."""
    if not (yield from read_json_text(source, writer.grow)):
        raise NotACallError("the call does not end")
    yield from source.skip_blank()
    if syntax.call_end:
        yield from source.take_text(syntax.call_end)
    writer.check()


def _without_doubling(name: str, schemas: ToolSchemas) -> str:
    """The tool that is meant: Muse writes ``f.f`` for a tool without a namespace."""
    half = name[: len(name) // 2]
    is_doubled = name == f"{half}.{half}" and half in schemas and name not in schemas
    return half if is_doubled else name


def _read_name(source: Source, syntax: TaggedCalls) -> Reading[str]:
    # Where nothing ends the name, or that was forgotten, what comes after it does.
    ends = (syntax.name_end, syntax.before_key, *ends_of_call(syntax))
    name, end = yield from source.take_word(*filter(None, ends))
    if end != syntax.name_end:
        source.give_back(len(end))
    elif syntax.head_end:
        yield from source.take_word(syntax.head_end)
    name = _unescaped(name.strip(), syntax)
    if not name:
        raise NotACallError("a call without a name")
    return name


def _unescaped(text: str, syntax: TaggedCalls) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&") if syntax.escapes else text


def _read_argument(
    source: Source,
    syntax: TaggedCalls,
    schema: Mapping[str, object],
    writer: ArgumentsWriter,
    missing: set[str],
    section_end: str,
) -> Reading[bool]:
    """One argument, after ``before_key``; whether that of the next one was taken too.

    Args:
      missing: the tool's arguments that did not come yet; this one is taken out.
    """
    key, _ = yield from source.take_word(syntax.key_end)
    key = _unescaped(key.strip(), syntax)
    attributes = ""
    if syntax.before_value:
        attributes, end = yield from source.take_word(syntax.before_value, syntax.before_key)
        if end != syntax.before_value:  # a key that got no value, and the next one
            return True
    missing.discard(key)
    types = expected_of(schema, key).types
    declared = _declared_types(syntax, attributes)
    if declared is not None:
        types = declared & types or types  # what the schema forbids the attribute cannot allow
    known = schema.get("properties")
    wraps = key in _WRAPPERS and isinstance(known, Mapping) and bool(known) and key not in known
    if not wraps:
        writer.begin_pair(key)
    if syntax.has_cdata and not wraps:
        yield from _skip_blank_before_cdata(source)
        if (yield from source.take_text("<![CDATA[")):
            value = TextValue(writer.grow, may_be_laid_out=False)
            complete = yield from source.take_until(stops_of("]]>"), value.feed)
            value.end()
            if complete is not None:
                complete = yield from source.take_until(stops_of(syntax.value_end), lambda _: None)
            if complete is None:
                raise NotACallError(f"the argument {key!r} does not end")
            return False
    if types == _TEXT and not (syntax.quoted or wraps):
        value = TextValue(writer.grow, may_be_laid_out=bool(syntax.value_blank))
        stop = yield from _take_value(source, syntax, key, missing, value.feed, section_end)
        value.end()
        return stop != syntax.value_end
    parts: list[str] = []
    stop = yield from _take_value(source, syntax, key, missing, parts.append, section_end)
    text = "".join(parts)
    text = without_layout(text) if syntax.value_blank else text
    if wraps:
        _write_wrapped(key, text, types, known, writer)
    else:
        writer.grow(json_of(text, types, quoted=syntax.quoted))
    return stop != syntax.value_end


def _write_wrapped(
    key: str, text: str, types: frozenset[str], known: object, writer: ArgumentsWriter
) -> None:
    """All arguments in one that the tool does not have; as it stands if they are none of its."""
    value = parse_json(json_of(text, frozenset({"object"})))
    assert isinstance(known, Mapping)
    if isinstance(value, dict) and value and value.keys() <= known.keys():
        pairs = {name: json.dumps(inner, ensure_ascii=False) for name, inner in value.items()}
    else:
        pairs = {key: json_of(text, types)}
    for name, inner in pairs.items():
        writer.begin_pair(name)
        writer.grow(inner)


def _skip_blank_before_cdata(source: Source) -> Reading[None]:
    if (yield from source.starts_with("\n<![CDATA[")) is not None:
        source.take(1)


def _declared_types(syntax: TaggedCalls, attributes: str) -> frozenset[str] | None:
    """The types that an attribute allows: ``string="true"``, ``type="number"``."""
    name = syntax.text_attribute
    if not name:
        return None
    match = re.search(rf'{re.escape(name)}\s*=\s*"([^"]*)"', attributes)
    if match is None:
        return None
    return _TEXT if match[1] in ("true", "string") else ANY - _TEXT


def _take_value(
    source: Source,
    syntax: TaggedCalls,
    key: str,
    missing: set[str],
    sink: Sink,
    section_end: str = "",
) -> Reading[str]:
    """The value of ``key`` up to the tag that ends it, which is taken; NotACallError without one.

    A tag that neither an argument nor the call's end follows is text, and so is one that closes
    what the value opened. Where the tag was forgotten, an argument that was still missing ends the
    value if a line begins with it, and so does the call's end, or the section's, if it is the last
    of the section.

    Returns:
      The tag of the value's end, or the beginning of the next argument, which was taken too.
    """
    closers = (syntax.value_end, *misspelt_ends(syntax.value_end, key))
    opener = _opener_of(syntax)
    next_key = f"\n{syntax.before_key}"
    lasts = [f"\n{syntax.call_end}"] * bool(syntax.call_end) + [section_end] * bool(section_end)
    stops = stops_of(*closers, opener, *lasts, *[next_key] * bool(missing))
    depth = 0
    while (stop := (yield from source.take_until(stops, sink))) is not None:
        if stop in closers:
            run = yield from _run_of(source, stop, closers)
            last = yield from _last_of(source, syntax, run, depth)
            kept = run if last is None else run[:last]
            sink("".join(map("".join, kept)))
            depth = max(0, depth - len(kept))
            if last is not None:
                return syntax.value_end
        elif stop in lasts:
            with source.recording() as blanks:
                is_end = not (yield from source.skip_blank())
            if is_end and stop == section_end:  # it is all there, though a reader of tags took it
                source.is_cut_off = False  # for a part of the value
            if is_end and not source.is_cut_off:
                return syntax.value_end
            sink(stop + "".join(blanks))
        elif stop == next_key and (yield from _is_key(source, syntax, missing)):
            return stop
        else:
            depth += opener in stop
            sink(stop)
    raise NotACallError(f"the argument {key!r} does not end")


def _opener_of(syntax: TaggedCalls) -> str:
    """Return what a value that speaks about tags opens and closes again."""
    end = syntax.value_end
    return f"<{end[2:-1]}" if end.startswith("</") and len(end) > 3 else syntax.before_key


def _run_of(source: Source, closer: str, closers: Sequence[str]) -> Reading[list[tuple[str, str]]]:
    """``closer``, which was taken, and others that follow at once, each with the blanks behind."""
    run: list[tuple[str, str]] = []
    while True:
        with source.recording() as blanks:
            yield from source.skip_blank()
        run.append((closer, "".join(blanks)))
        following = yield from source.starts_with(*closers)
        if following is None:
            return run
        closer = source.take(len(following))


def _last_of(
    source: Source, syntax: TaggedCalls, run: Sequence[tuple[str, str]], depth: int
) -> Reading[int | None]:
    """Return which of these tags ends the value; None if all are text.

    Args:
      depth: how many tags are open that the value opened itself.
    """
    proper = [index for index, (closer, _) in enumerate(run) if closer == syntax.value_end]
    is_end = source.ended and source.is_spent
    ends = (syntax.before_key, *ends_of_call(syntax))
    if is_end or (yield from source.starts_with(*ends)) is not None:
        candidates = proper or range(len(run))
        return candidates[min(depth, len(candidates) - 1)]
    return proper[0] if proper and not syntax.call_end else None


def _is_key(source: Source, syntax: TaggedCalls, keys: set[str]) -> Reading[bool]:
    """Return whether one of ``keys`` and the end of its tag come next."""
    tags = (f"{key}{syntax.key_end}" for key in keys)
    return (yield from source.starts_with(*tags)) is not None
