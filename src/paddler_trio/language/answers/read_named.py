"""Calls written as a name and then a JSON object: ``f[ARGS]{...}`` and its relatives."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from paddler_trio.language.answers.call_events import (
    Arguments,
    ArgumentsGrew,
    CallBegun,
    Emit,
    NotACallError,
    ReadEvent,
    ToolSchemas,
    WrittenCall,
)
from paddler_trio.language.answers.call_syntax import NamedJson
from paddler_trio.language.answers.literals import arguments_of, parse_json
from paddler_trio.language.answers.streamed_json import read_json_text
from paddler_trio.language.answers.text_source import Reading, Source, stops_of

_INDEX = re.compile(r":\d+$")


def read_named_call(
    source: Source,
    syntax: NamedJson,
    emit: Emit,
    name_so_far: str = "",
    schemas: ToolSchemas | None = None,
) -> Reading[None]:
    """One call; what stands before its name was taken, and so was ``name_so_far``.

    Args:
      schemas: of the tools that a call may be for that has no name, only an index or an id of
        another's making, as Kimi K2 writes them at times.

    Raises:
      NotACallError: no name, or no JSON after it.
    """
    call_id: str | None = None
    if syntax.id_mark and syntax.id_comes_first:
        call_id, _ = yield from _read_word(source, syntax.id_mark)
    mark = syntax.after_name.strip()
    marks = [mark or "\n", "{", "\n"]
    if syntax.id_mark and not syntax.id_comes_first:
        marks.append(syntax.id_mark)
    name, stop = yield from _read_word(source, *marks)
    name = name_so_far + name
    if stop == syntax.id_mark:
        call_id, stop = yield from _read_word(source, mark or "{", "{")
    if stop == "{":
        source.give_back(1)
    elif stop == "\n" and mark:
        yield from source.skip_blank()
        yield from source.take_text(mark)
    if syntax.index_mark and _INDEX.search(name):
        call_id = name
        name = _INDEX.sub("", name)
    is_bare = call_id is None and not name.startswith(syntax.name_prefix)
    name = name.removeprefix(syntax.name_prefix)
    if not name:
        raise NotACallError("a call without a name")
    if syntax.index_mark and is_bare and schemas and name not in schemas:
        yield from _read_unnamed_call(source, name, schemas, emit)
    else:
        yield from read_arguments(source, name, call_id, emit)
    yield from source.skip_blank()
    yield from source.take_text("```")
    if ending := syntax.after_arguments.strip().removeprefix("```").strip():
        yield from source.skip_blank()
        yield from source.take_text(ending)


def read_arguments(
    source: Source, name: str, call_id: str | None, emit: Emit, *, takes_text: bool = False
) -> Reading[None]:
    """The arguments of a call whose name is known: one JSON value, maybe in a code fence.

    Args:
      takes_text: what is no JSON is the call's arguments all the same, as raw text to the end.

    Raises:
      NotACallError: it is no JSON, or does not end.
    """
    yield from source.skip_blank()
    if (yield from source.take_text("```json")) or (yield from source.take_text("```")):
        yield from source.skip_blank()
    emit(CallBegun(name, call_id))
    parts: list[str] = []

    def grow(text: str) -> None:
        parts.append(text)
        emit(ArgumentsGrew(text))

    complete = yield from read_json_text(source, grow)
    text = "".join(parts)
    if not text and source.ended and source.is_spent and not source.is_cut_off:
        emit(ArgumentsGrew("{}"))
        emit(WrittenCall(name, {}, call_id))
        return
    try:
        value = parse_json(text)
    except ValueError as error:
        if not takes_text:
            raise NotACallError(str(error)) from error
        yield from source.take_until(stops_of(), grow)
        if source.is_cut_off:
            raise NotACallError(str(error)) from error
        emit(WrittenCall(name, "".join(parts).rstrip(), call_id))
        return
    if not complete:
        raise NotACallError("the call does not end")
    emit(WrittenCall(name, arguments_of(value), call_id))
    while (char := (yield from source.skip_blank())) and char in "}]":  # closed once too often
        source.take(1)


def _read_unnamed_call(
    source: Source, call_id: str, schemas: ToolSchemas, emit: Emit
) -> Reading[None]:
    """A call whose tool follows from its arguments alone; it is emitted when they are complete.

    Where no tool fits, or several do, what stands there may be a name all the same, but no number.
    """
    events: list[ReadEvent] = []
    yield from read_arguments(source, call_id, call_id, events.append)
    call = events[-1]
    assert isinstance(call, WrittenCall)
    fitting = [name for name, schema in schemas.items() if _fits(call.arguments, schema)]
    if len(fitting) != 1 and call_id.isdecimal():
        raise NotACallError("a call without a name")
    name = fitting[0] if len(fitting) == 1 else call_id
    for event in events:
        if isinstance(event, CallBegun | WrittenCall):
            event = attrs.evolve(event, name=name)
        emit(event)


def _fits(arguments: Arguments, schema: Mapping[str, object]) -> bool:
    """Return whether a tool has all these arguments and requires no others."""
    known, required = schema.get("properties", {}), schema.get("required")
    return (
        isinstance(arguments, dict)
        and isinstance(known, Mapping)
        and arguments.keys() <= known.keys()
        and (not isinstance(required, list) or arguments.keys() >= set(required))
    )


def _read_word(source: Source, *marks: str) -> Reading[tuple[str, str]]:
    """A short text before one of ``marks``, without the blanks around it, and that mark."""
    yield from source.skip_blank()
    text, mark = yield from source.take_word(*marks)
    return text.strip(), mark
