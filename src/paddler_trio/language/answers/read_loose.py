"""Calls written as code: Python's (``f(a="x", b=1)``), Gemma's objects (``call:f{a:1}``), and code
itself.

Llama 3 and Functionary write ``print(1)`` behind ``<|python_tag|>``, gpt-oss in a message to
``python``: it calls the tool that runs code, whose argument is ``code`` unless it has another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from paddler_trio.language.answers.call_events import Emit, NotACallError, Remainder, ToolSchemas
from paddler_trio.language.answers.call_syntax import QuotedObjects
from paddler_trio.language.answers.literals import parse_literal
from paddler_trio.language.answers.read_tagged import ArgumentsWriter
from paddler_trio.language.answers.streamed_json import read_quoted
from paddler_trio.language.answers.text_source import (
    MAX_NAME_CHARS,
    Reading,
    Sink,
    Source,
    stops_of,
)
from paddler_trio.language.answers.typed_values import TextValue, expected_of, json_of, json_types

_OPENING, _CLOSING = "([{", ")]}"
_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def read_python_list(source: Source, emit: Emit) -> Reading[None]:
    """A list of calls; its opening bracket was taken.

    Raises:
      NotACallError: it ends inside a call, or holds something else than calls with named arguments.
    """
    has_item = False
    while (
        yield from source.next_member(
            "]", whole="the list of calls", separators=",;", may_end=has_item
        )
    ):
        name, _ = yield from source.take_word("(")
        yield from read_python_call(source, name, emit)
        has_item = True


def read_python_call(source: Source, name: str, emit: Emit) -> Reading[None]:
    """One call, after its opening parenthesis; a remainder if it ends but has a value that is none.

    Raises:
      NotACallError: as ``read_python_list``.
    """
    name = name.strip().removesuffix(".call")
    if not _NAME.fullmatch(name):
        raise NotACallError(f"{name[:80]!r} is no name of a tool")
    writer = ArgumentsWriter(name, emit)
    pairs: list[str] = []
    wrong = ""
    while (yield from source.next_member(")")):
        key = (yield from source.take_word("="))[0].strip()
        if not _NAME.fullmatch(key):
            raise NotACallError(f"{key[:80]!r} is no name of an argument")
        if not wrong:
            writer.begin_pair(key)
        parts: list[str] = []
        yield from _read_balanced(source, ("'", '"'), parts.append)
        text = "".join(parts)
        pairs.append(f"{key}={text}")
        if wrong:
            continue
        try:
            value = parse_literal(text, has_sets=True)
        except ValueError as error:
            wrong = f"argument {key!r}: {error}"
        else:
            writer.grow(json.dumps(value, ensure_ascii=False))
    if wrong:
        emit(Remainder(f"{name}({', '.join(pairs)})", wrong))
    else:
        writer.end()


def read_quoted_object(
    source: Source, syntax: QuotedObjects, schemas: ToolSchemas, emit: Emit
) -> Reading[None]:
    """One call of Gemma's; ``call:`` was taken. Its schema, not its quotes, decides what is a text.

    Raises:
      NotACallError: it does not end, or its values cannot be read.
    """
    name = (yield from source.take_word("{"))[0].strip()
    if not name:
        raise NotACallError("a call without a name")
    writer = ArgumentsWriter(name, emit)
    while (yield from source.next_member("}")):
        key = (yield from source.take_word(":"))[0].strip()
        for quote in (syntax.quote, '"'):
            if len(key) >= 2 * len(quote) and key.startswith(quote) and key.endswith(quote):
                key = key[len(quote) : -len(quote)]
        writer.begin_pair(key)
        parts: list[str] = []
        yield from _read_token_value(source, syntax.quote, parts.append)
        text = "".join(parts).strip()
        try:
            value = parse_literal(text, quote_token=syntax.quote) if text else ""
        except ValueError as error:
            raise NotACallError(f"argument {key!r}: {error}") from error
        types = expected_of(schemas.get(name, {}), key).types
        if isinstance(value, str) and "string" not in types:
            writer.grow(json_of(value, types))
        elif "string" in types and not json_types(value) & types:
            writer.grow(json.dumps(text, ensure_ascii=False))
        else:
            writer.grow(json.dumps(value, ensure_ascii=False))
    writer.end()


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
            yield from read_quoted(source, stop, sink, depth)
        elif depth == 0 and (stop == "," or stop in _CLOSING):
            source.give_back(1)
            return
        else:
            depth += (stop in _OPENING) - (stop in _CLOSING)
            sink(stop)


def _read_token_value(source: Source, quote: str, sink: Sink) -> Reading[None]:
    """Read as ``_read_balanced`` does; a text ends at its quote token even without a comma.

    Where only the token that ends a text is there, the text began with the value.
    """
    yield from source.skip_blank()
    if (yield from source.take_text(quote)):
        sink(quote)
        yield from read_quoted(source, quote, sink, 0)
        return
    bare: list[str] = []
    stop = yield from source.take_until(stops_of(quote, ",", *_OPENING, *_CLOSING), bare.append)
    if stop == quote:
        sink("".join([quote, *bare, quote]))
        return
    sink("".join(bare))
    source.give_back(len(stop or ""))
    yield from _read_balanced(source, (quote,), sink)


def read_literal_text(source: Source, sink: Sink) -> Reading[None]:
    """An object or list of Python's, from its opening bracket through the closing one.

    Raises:
      NotACallError: it does not end.
    """
    depth = 0
    stops = stops_of("'", '"', *_OPENING, *_CLOSING)
    while True:
        stop = yield from source.take_until(stops, sink)
        if stop is None:
            raise NotACallError("the call does not end")
        sink(stop)
        if stop in _OPENING or stop in _CLOSING:
            depth += 1 if stop in _OPENING else -1
            if depth == 0:
                return
        else:
            yield from read_quoted(source, stop, sink, depth)


CODE_TOOLS = ("python", "ipython", "code_interpreter")
_BEGUN_ARGUMENT = re.compile(r"(?:[A-Za-z_]\w*)?\s*=?")
_NAMED_ARGUMENT = re.compile(r"\)|[A-Za-z_]\w*\s*=(?!=)")


def code_tool_of(schemas: ToolSchemas, default: str) -> str:
    """The tool that runs code: one of those that were offered, else the family's own."""
    return next((name for name in (default, *CODE_TOOLS) if name in schemas), default)


def is_code(source: Source, schemas: ToolSchemas) -> Reading[bool]:
    """Return whether the section that begins here is code, and no call; nothing but blanks is
    taken.

    Without ``schemas`` a call is recognised by its named arguments.
    """
    while True:
        char = yield from source.skip_blank()
        there = source.rest[: 2 * MAX_NAME_CHARS]
        word = _NAME.match(there)
        if char == "" or char in "{[<" or (yield from source.starts_with("```json")) is not None:
            return False
        if word is None:
            return True
        name, after = word.group(), there[word.end() :].lstrip()
        is_known = name in schemas or name.endswith(".call")
        arguments = after[1:].lstrip()
        is_all_there = source.ended or len(there) == 2 * MAX_NAME_CHARS
        if after and not after.startswith("("):
            return not is_known
        if after and (is_known or schemas):
            return not is_known
        if is_all_there or (after and not _BEGUN_ARGUMENT.fullmatch(arguments)):
            return not source.is_cut_off and _NAMED_ARGUMENT.match(arguments) is None
        yield


def read_code_call(source: Source, name: str, schemas: ToolSchemas, emit: Emit) -> Reading[None]:
    """A call of the tool ``name`` with everything that is left; blanks before it were taken.

    Raises:
      NotACallError: it was cut off.
    """
    writer = ArgumentsWriter(name, emit)
    writer.begin_pair(_argument_of(schemas.get(name, {})))
    code = TextValue(writer.grow, may_be_laid_out=False)
    yield from source.take_until(stops_of(), code.feed)
    if source.is_cut_off:
        raise NotACallError("the code does not end")
    code.end()
    writer.end()


def _argument_of(schema: Mapping[str, object]) -> str:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) == 1:
        return str(next(iter(properties)))
    return "code"
