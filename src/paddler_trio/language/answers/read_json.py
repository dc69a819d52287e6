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
from paddler_trio.language.answers.literals import parse_literal
from paddler_trio.language.answers.read_loose import read_literal_text
from paddler_trio.language.answers.streamed_json import (
    arguments_of,
    parse_json,
    read_json_string,
    read_json_text,
    read_string_content,
)
from paddler_trio.language.answers.text_source import Reading, Source

_NAME_KEYS = frozenset({"name", "tool_name"})
_ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_ID_KEYS = frozenset({"id", "tool_call_id"})
_MAX_BLANKS = 256
_NO_NAME = "a tool call is a JSON object with its tool in the field 'name'"


@attrs.define
class _Call:
    """What is known of a call so far; arguments wait until its name (and id) are emitted."""

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
    while char := (yield from source.next_member("]", whole="the list of calls", may_end=has_item)):
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
    with source.recording() as tape:
        yield from _read_object(source, syntax, call, is_outer=True)
    text = "".join(tape)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise NotACallError(str(error)) from error
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
) -> Reading[None]:
    name_keys = _NAME_KEYS | {syntax.name_key}
    argument_keys = _ARGUMENTS_KEYS | {syntax.arguments_key}
    source.take(1)
    while char := (yield from source.next_member("}")):
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
            yield from _read_arguments(source, call, char)
        elif key in name_keys and char == '"' and call.name is None:
            call.name = yield from read_json_string(source)
            if not call.waits_for_id:
                call.begin()
        elif key in _ID_KEYS and char == '"':
            call.id = yield from read_json_string(source)
            if call.waits_for_id:
                call.begin()
        elif key in argument_keys and not call.has_arguments:
            yield from _read_arguments(source, call, char)
        elif key == "function" and char == "{" and is_outer:
            # Some models nest the call as the OpenAI API does.
            yield from _read_object(source, syntax, call, is_outer=False)
        elif not (yield from read_json_text(source, lambda _: None)):
            raise NotACallError("the call does not end")


def _read_arguments(source: Source, call: _Call, char: str) -> Reading[None]:
    call.has_arguments = True
    if char == '"':
        complete = yield from read_string_content(source, call.grow)
    elif char == "n":
        complete = yield from read_json_text(source, lambda _: None)
        call.grow("{}")
    else:
        complete = yield from read_json_text(source, call.grow)
    if not complete:
        raise NotACallError("the call does not end")


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
