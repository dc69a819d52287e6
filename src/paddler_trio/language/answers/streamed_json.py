"""JSON as models write it: passed on while it is written, and validated when it is complete.

Every text in an accepted value can be sent as UTF-8 and every number is finite; JSON allows others.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from paddler_trio.language.answers.call_events import Arguments, NotACallError, TooDeepError
from paddler_trio.language.answers.text_source import Reading, Sink, Source

MAX_DEPTH = 400

_IN_STRING = re.compile(r'[^"\\]+')
_OUT_OF_STRING = re.compile(r'[^"{}\[\]]+')
_SCALAR = re.compile(r'[^\s"{}\[\],:]+')


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def parse_json(text: str) -> object:
    """The one JSON value that ``text`` is, blanks around it allowed.

    Raises:
      ValueError: it is not, or holds half a character, or a number beyond all bounds.
      RecursionError: nested deeper than the interpreter follows.
    """
    stripped = text.strip()
    value: object
    value, end = _DECODER.raw_decode(stripped)
    if end != len(stripped):
        raise ValueError(f"Extra data at character {end}")
    if "\\u" in stripped:  # only escapes can bring half a character
        json.dumps(value, ensure_ascii=False).encode()
    return value


def arguments_of(value: object) -> Arguments:
    """Objects stay, nothing means none, and JSON inside a string is opened, as OpenAI writes it."""
    if isinstance(value, str):
        try:
            inner = parse_json(value)
        except ValueError:
            return value
        return inner if isinstance(inner, dict) else value
    if value is None:
        return {}
    return value if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)


def read_json_text(source: Source, sink: Sink) -> Reading[bool]:
    """Pass one JSON value on to ``sink`` as it comes; blanks before it were taken.

    Only strings and brackets are followed; ``parse_json`` decides whether it is JSON.

    Returns:
      Whether the value is complete; a bare word or number may end with the text.

    Raises:
      TooDeepError: nested deeper than ``MAX_DEPTH``.
    """
    depth = 0
    while True:
        char = yield from source.peek()
        if char == '"':
            sink(source.take(1))
            if not (yield from _read_string_rest(source, sink)):
                return False
        elif char and char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise TooDeepError("tool call is nested too deeply")
            sink(source.take(1))
            continue
        elif char and char in "}]":
            if depth == 0:
                return False
            depth -= 1
            sink(source.take(1))
        elif char == "":
            return False
        elif depth == 0:
            return (yield from _read_scalar(source, sink))
        else:
            sink(source.take_match(_OUT_OF_STRING))
            continue
        if depth == 0:
            return True


def _read_scalar(source: Source, sink: Sink) -> Reading[bool]:
    found = False
    while text := source.take_match(_SCALAR):
        found = True
        sink(text)
        yield from source.peek()
    return found


def _read_string_rest(source: Source, sink: Sink) -> Reading[bool]:
    """After the opening quote, through the closing one."""
    while True:
        char = yield from source.peek()
        if char == "":
            return False
        if char == '"':
            sink(source.take(1))
            return True
        if char == "\\":
            if not (yield from source.has(2)):
                return False
            sink(source.take(2))
        else:
            sink(source.take_match(_IN_STRING))


def read_json_string(source: Source) -> Reading[str]:
    """The string that starts here, as its value.

    Raises:
      NotACallError: it does not end, or is none.
    """
    parts: list[str] = []
    complete = yield from read_json_text(source, parts.append)
    if not complete:
        raise NotACallError("the text ends inside a string")
    try:
        value = parse_json("".join(parts))
    except ValueError as error:
        raise NotACallError(str(error)) from error
    if not isinstance(value, str):
        raise NotACallError("a string should stand here")
    return value


def read_string_content(source: Source, sink: Sink) -> Reading[bool]:
    """The string that starts here, its *value* passed on as it comes; whether it is complete.

    Raises:
      NotACallError: an escape in it that is none.
    """
    source.take(1)
    while True:
        char = yield from source.peek()
        if char == "":
            return False
        if char == '"':
            source.take(1)
            return True
        if char != "\\":
            sink(source.take_match(_IN_STRING))
            continue
        # A run of escapes is decoded at once: two may be the halves of one character.
        escapes: list[str] = []
        while True:
            yield from source.has(2)
            size = 6 if source.ahead(2).endswith("u") else 2
            if not (yield from source.has(size)):
                return False
            escapes.append(source.take(size))
            if (yield from source.peek()) != "\\":
                break
        try:
            value = parse_json(f'"{"".join(escapes)}"')
        except ValueError as error:
            raise NotACallError(str(error)) from error
        sink(str(value))
