"""Calls written as a name and then a JSON object: ``f[ARGS]{...}`` and its relatives."""

from __future__ import annotations

import re

from paddler_trio.agent.answers.call_syntax import NamedJson
from paddler_trio.agent.answers.calls import (
    ArgumentsGrew,
    CallBegun,
    Emit,
    NotACallError,
    WrittenCall,
)
from paddler_trio.agent.answers.json_text import arguments_of, parse_json, read_json_text
from paddler_trio.agent.answers.read_tagged import MAX_NAME_CHARS
from paddler_trio.agent.answers.source import Reading, Source, stops_of

_INDEX = re.compile(r":\d+$")


def read_named_call(
    source: Source, syntax: NamedJson, emit: Emit, name_so_far: str = ""
) -> Reading[None]:
    """One call; what stands before its name was taken, and so was ``name_so_far``.

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
    if syntax.index_mark and _INDEX.search(name):
        call_id = name
        name = _INDEX.sub("", name)
    name = name.removeprefix(syntax.name_prefix)
    if not name:
        raise NotACallError("a call without a name")
    yield from read_arguments(source, name, call_id, emit)
    yield from source.skip_blank()
    yield from source.take_text("```")
    if ending := syntax.after_arguments.strip().removeprefix("```").strip():
        yield from source.skip_blank()
        yield from source.take_text(ending)


def read_arguments(source: Source, name: str, call_id: str | None, emit: Emit) -> Reading[None]:
    """The arguments of a call whose name is known: one JSON value, maybe in a code fence.

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
        raise NotACallError(str(error)) from error
    if not complete:
        raise NotACallError("the call does not end")
    emit(WrittenCall(name, arguments_of(value), call_id))


def _read_word(source: Source, *marks: str) -> Reading[tuple[str, str]]:
    """A short text before one of ``marks``, without the blanks around it, and that mark."""
    yield from source.skip_blank()
    parts: list[str] = []
    stop = yield from source.take_until(stops_of(*dict.fromkeys(marks)), parts.append)
    text = "".join(parts)
    if stop is None or len(text) > MAX_NAME_CHARS:
        raise NotACallError(f"{text[:80]!r} is not followed by {marks[0]!r}")
    return text.strip(), stop
