"""Calls written like Python (``f(a="x", b=1)``) and like Gemma's objects (``call:f{a:1}``)."""

from __future__ import annotations

import json
import re

from paddler_trio.agent.answers.call_syntax import QuotedObjects
from paddler_trio.agent.answers.calls import Emit, NotACallError
from paddler_trio.agent.answers.literals import parse_literal
from paddler_trio.agent.answers.read_tagged import MAX_NAME_CHARS, ArgumentsWriter
from paddler_trio.agent.answers.source import Reading, Sink, Source, stops_of

_OPENING, _CLOSING = "([{", ")]}"
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def read_python_list(source: Source, emit: Emit) -> Reading[None]:
    """A list of calls; its opening bracket was taken.

    Raises:
      NotACallError: it does not end, or holds something else than calls with named arguments.
    """
    while True:
        char = yield from source.skip_blank()
        if char == "":
            raise NotACallError("the list of calls does not end")
        if char in ",;":
            source.take(1)
        elif char == "]":
            source.take(1)
            return
        else:
            name = yield from _read_until_open(source, "(")
            yield from read_python_call(source, name, emit)


def read_python_call(source: Source, name: str, emit: Emit) -> Reading[None]:
    """One call, after its opening parenthesis.

    Raises:
      NotACallError: as ``read_python_list``.
    """
    name = name.strip().removesuffix(".call")
    if not _NAME.fullmatch(name):
        raise NotACallError(f"{name[:80]!r} is no name of a tool")
    writer = ArgumentsWriter(name, emit)
    while True:
        char = yield from source.skip_blank()
        if char == "":
            raise NotACallError("the call does not end")
        if char == ")":
            source.take(1)
            break
        if char == ",":
            source.take(1)
            continue
        key = (yield from _read_until_open(source, "=")).strip()
        if not _NAME.fullmatch(key):
            raise NotACallError(f"{key[:80]!r} is no name of an argument")
        writer.begin_pair(key)
        parts: list[str] = []
        yield from _read_balanced(source, ("'", '"'), parts.append)
        try:
            value = parse_literal("".join(parts))
        except ValueError as error:
            raise NotACallError(f"argument {key!r}: {error}") from error
        writer.grow(json.dumps(value, ensure_ascii=False))
    writer.end()


def read_quoted_object(source: Source, syntax: QuotedObjects, emit: Emit) -> Reading[None]:
    """One call of Gemma's; ``call:`` was taken.

    Raises:
      NotACallError: it does not end, or its values cannot be read.
    """
    name = (yield from _read_until_open(source, "{")).strip()
    if not name:
        raise NotACallError("a call without a name")
    writer = ArgumentsWriter(name, emit)
    while True:
        char = yield from source.skip_blank()
        if char == "":
            raise NotACallError("the call does not end")
        if char == "}":
            source.take(1)
            break
        if char == ",":
            source.take(1)
            continue
        key = (yield from _read_until_open(source, ":")).strip()
        for quote in (syntax.quote, '"'):
            if len(key) >= 2 * len(quote) and key.startswith(quote) and key.endswith(quote):
                key = key[len(quote) : -len(quote)]
        writer.begin_pair(key)
        parts: list[str] = []
        yield from _read_balanced(source, (syntax.quote,), parts.append)
        try:
            value = parse_literal("".join(parts), quote_token=syntax.quote)
        except ValueError as error:
            raise NotACallError(f"argument {key!r}: {error}") from error
        writer.grow(json.dumps(value, ensure_ascii=False))
    writer.end()


def _read_until_open(source: Source, mark: str) -> Reading[str]:
    """A short name up to ``mark``, which is taken."""
    parts: list[str] = []
    length = 0

    def keep(text: str) -> None:
        nonlocal length
        length += len(text)
        if length <= MAX_NAME_CHARS:
            parts.append(text)

    stop = yield from source.take_until(stops_of(mark), keep)
    if stop is None or length > MAX_NAME_CHARS:
        raise NotACallError(f"{''.join(parts)[:80]!r} is not followed by {mark!r}")
    return "".join(parts)


def _read_balanced(source: Source, quotes: tuple[str, ...], sink: Sink) -> Reading[None]:
    """A value, up to the comma or bracket that ends it, which stays."""
    depth = 0
    stops = stops_of(*quotes, ",", *_OPENING, *_CLOSING)
    while True:
        stop = yield from source.take_until(stops, sink)
        if stop is None:
            raise NotACallError("the call does not end")
        if stop in quotes:
            sink(stop)
            yield from _read_quoted(source, stop, sink)
        elif depth == 0 and (stop == "," or stop in _CLOSING):
            source.give_back(1)
            return
        else:
            depth += (stop in _OPENING) - (stop in _CLOSING)
            sink(stop)


def _read_quoted(source: Source, quote: str, sink: Sink) -> Reading[None]:
    escapes = ("\\",) if len(quote) == 1 else ()
    while True:
        stop = yield from source.take_until(stops_of(quote, *escapes), sink)
        if stop is None:
            raise NotACallError("a text in the call does not end")
        sink(stop)
        if stop == quote:
            return
        if not (yield from source.peek()):
            raise NotACallError("a text in the call does not end")
        sink(source.take(1))
