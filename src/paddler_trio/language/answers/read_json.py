"""Calls written as JSON objects: ``{"name": "f", "arguments": {...}}`` and its relatives."""

from __future__ import annotations

import json

import attrs

from paddler_trio.language.answers.call_events import (
    ArgumentsGrew,
    CallBegun,
    Emit,
    NotACallError,
    Remainder,
    WrittenCall,
)
from paddler_trio.language.answers.call_syntax import JsonCalls
from paddler_trio.language.answers.known_slips import WORDS
from paddler_trio.language.answers.literals import arguments_of, parse_json, parse_literal
from paddler_trio.language.answers.read_loose import read_literal_text
from paddler_trio.language.answers.streamed_json import (
    read_json_string,
    read_json_text,
    read_string_content,
)
from paddler_trio.language.answers.text_source import Reading, Sink, Source

_NAME_KEYS = frozenset({"name", "tool_name"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_ID_KEYS = frozenset({"id", "tool_call_id"})
_MAX_BLANKS = 256
_NO_NAME = "a tool call is a JSON object with its tool in the field 'name'"


@attrs.define
class _Call:
    """This is what is known of a call so far; arguments wait until its name (and id) are
    emitted."""

    emit: Emit
    waits_for_id: bool
    name: str | None = None
    id: str | None = None
    is_begun: bool = False
    has_arguments: bool = False
    _waiting: list[str] = attrs.Factory(list)

    def begin(self) -> None:
        if self.name and not self.is_begun:
            self.is_begun = True
            self.emit(CallBegun(self.name, self.id))
            self.grow("".join(self._waiting))

    def grow(self, text: str) -> None:
        if not self.is_begun:
            self._waiting.append(text)
        elif text:
            self.emit(ArgumentsGrew(text))


def read_json_list(source: Source, syntax: JsonCalls, emit: Emit) -> Reading[None]:
    """A list of calls; its opening bracket was taken.

    Raises:
      NotACallError: it ends inside a call, or is no JSON.
    """
    has_item = False
    while char := (
        yield from source.next_member(
            "]",
            whole="the list of calls",
            separators=",}" if has_item else ",",  # an item may be closed twice
            may_end=has_item,
        )
    ):
        if char == "{":
            yield from read_json_call(source, syntax, emit)
            has_item = True
        else:
            parts: list[str] = []
            if not (yield from read_json_text(source, parts.append)):
                raise NotACallError("the list of calls is no JSON")
            emit(Remainder("".join(parts), _NO_NAME))


def read_json_call(source: Source, syntax: JsonCalls, emit: Emit) -> Reading[None]:
    """One object; a remainder is emitted for one that is JSON but no call.

    It may be written as Python does, ``{'name': 'f', 'arguments': {}}``: Hermes was shown such.

    Raises:
      NotACallError: it is no JSON, or does not end.
    """
    if (yield from _is_in_python(source)):
        source = yield from _rewritten(source)
    call = _Call(emit, syntax.id_key is not None and not syntax.id_comes_first)
    value = yield from _read_object(source, syntax, call, is_outer=True)
    if call.name is None or not call.name:
        emit(Remainder(json.dumps(value, ensure_ascii=False), _NO_NAME))
        return
    call.begin()
    if not call.has_arguments:
        call.grow("{}")
    emit(WrittenCall(call.name, arguments_of(_arguments_in(value, syntax)), call.id))


def _is_in_python(source: Source) -> Reading[bool]:
    while True:
        there = source.ahead(_MAX_BLANKS)
        first = there[1:].lstrip()[:1]
        if first or source.ended or len(there) == _MAX_BLANKS:
            return first == "'"
        yield


def _rewritten(source: Source) -> Reading[Source]:
    """The object that comes next, in JSON."""
    parts: list[str] = []
    yield from read_literal_text(source, parts.append)
    try:
        value = parse_literal("".join(parts))
    except ValueError as error:
        raise NotACallError(str(error)) from error
    return Source(json.dumps(value, ensure_ascii=False), ended=True)


def _read_object(
    source: Source, syntax: JsonCalls, call: _Call, *, is_outer: bool
) -> Reading[dict[str, object]]:
    """The object that comes next, whole; of a key that comes twice the last value."""
    name_keys = _NAME_KEYS | {syntax.name_key}
    argument_keys = _ARGUMENTS_KEYS | {syntax.arguments_key}
    found: dict[str, object] = {}
    source.take(1)
    while char := (yield from _next_key(source, call)):
        if char != '"':
            raise NotACallError(f"expected a key in quotes, found {char!r}")
        key = yield from read_json_string(source)
        if (yield from source.skip_blank()) != ":":
            raise NotACallError(f"expected a colon after the key {key[:80]!r}")
        source.take(1)
        char = yield from source.skip_blank()
        if is_outer and syntax.name_is_key and char == "{" and call.name is None:
            call.name = key
            call.begin()
            found[key] = yield from _read_arguments(source, call, char)
        elif key in name_keys and char == '"' and call.name is None:
            found[key] = call.name = yield from read_json_string(source)
            if not call.waits_for_id:
                call.begin()
        elif key in _ID_KEYS and char == '"':
            found[key] = call.id = yield from read_json_string(source)
            if call.waits_for_id:
                call.begin()
        elif key in argument_keys and not call.has_arguments:
            found[key] = yield from _read_arguments(source, call, char)
        elif key == "function" and char == "{" and is_outer:
            # Some models nest the call as the OpenAI API does.
            found[key] = yield from _read_object(source, syntax, call, is_outer=False)
        else:
            value = yield from _read_value(source, lambda _: None)
            if key not in argument_keys:  # the first arguments were passed on already
                found[key] = value
    return found


def _next_key(source: Source, call: _Call) -> Reading[str]:
    """Take blanks and commas; the character that the next key begins with, not taken.

    Returns:
      "" behind the closing bracket, or where it was forgotten behind the arguments of a call, which
      the end of a list or another call follows.
    """
    while (char := (yield from source.skip_blank())) == ",":
        source.take(1)
    if char == "}":
        source.take(1)
        return ""
    if not char and (source.is_cut_off or not call.has_arguments):
        raise NotACallError("the call does not end")
    return "" if char and char in "];{" and call.has_arguments else char


def _read_arguments(source: Source, call: _Call, char: str) -> Reading[object]:
    call.has_arguments = True
    if char != '"':
        sink = (lambda _: None) if char in ("n", "N") else call.grow
        value = yield from _read_value(source, sink)
        if value is None:
            call.grow("{}")
        return value
    parts: list[str] = []

    def grow(text: str) -> None:
        parts.append(text)
        call.grow(text)

    if not (yield from read_string_content(source, grow)):
        raise NotACallError("the call does not end")
    return "".join(parts)


def _read_value(source: Source, sink: Sink) -> Reading[object]:
    """The value that comes next, whole.

    Raises:
      NotACallError: it does not end, or is no JSON.
    """
    parts: list[str] = []

    def pass_on(text: str) -> None:
        parts.append(text)
        sink(text)

    if not (yield from read_json_text(source, pass_on)):
        raise NotACallError("the call does not end")
    text = "".join(parts)
    try:
        return parse_json(WORDS.get(text, text))
    except ValueError as error:
        raise NotACallError(str(error)) from error


def _arguments_in(value: object, syntax: JsonCalls) -> object:
    """The arguments of an object that was read as a call."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict) and not isinstance(value.get("name"), str):
        value = inner
    for key in (syntax.arguments_key, "arguments", "parameters"):
        if key in value:
            return value[key]
    if syntax.name_is_key:
        return next((inner for inner in value.values() if isinstance(inner, dict)), None)
    return None
