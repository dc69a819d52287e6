"""JSON as models write it: mended and passed on while it is written.

What is passed on is JSON even where the model wrote raw line breaks in a text, an escape that is
none, a comma before a bracket, a word or a text of Python's. ``literals`` judges it when it is
complete.
"""

from __future__ import annotations

import json
import re
from typing import Final

from paddler_trio.language.answers.call_events import NotACallError, TooDeepError
from paddler_trio.language.answers.known_slips import WORDS
from paddler_trio.language.answers.literals import parse_json, parse_literal
from paddler_trio.language.answers.text_source import Reading, Sink, Source, stops_of

MAX_DEPTH = 400

_IN_STRING = re.compile(r'[^"\\]+')
_WITHOUT_CONTROLS = re.compile(r'[^"\\\x00-\x1f]+')
_BLANKS = re.compile(r"\s+")
_SCALAR = re.compile(r'[^\s"{}\[\],:]+')
_ESCAPES: Final = frozenset('"\\/bfnrtu')


def read_json_text(source: Source, sink: Sink) -> Reading[bool]:
    """Pass one JSON value on to ``sink`` as it comes; blanks before it were taken.

    Only strings, words and brackets are followed; ``parse_json`` decides whether it is JSON.

    Returns:
      Whether the value is complete; a bare word or number may end with the text.

    Raises:
      TooDeepError: nested deeper than ``MAX_DEPTH``.
    """
    depth = 0
    held = ""  # a comma, and the blanks behind it: before a closing bracket it is one too many
    while char := (yield from source.peek()):
        if depth and (char == "," or char.isspace()):
            text = source.take(1) if char == "," else source.take_match(_BLANKS)
            if held:
                held += "" if char == "," else text
            elif char == ",":
                held = text
            else:
                sink(text)
            continue
        if char in "}]":
            if depth == 0:
                return False
            held = held[1:]
        if held:
            sink(held)
            held = ""
        if char == '"':
            sink(source.take(1))
            if not (yield from _read_string_rest(source, sink)):
                return False
        elif char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise TooDeepError("tool call is nested too deeply")
            sink(source.take(1))
        elif char in "}]":
            depth -= 1
            sink(source.take(1))
        elif depth == 0:
            return (yield from _read_scalar(source, sink))
        elif char == ":":
            sink(source.take(1))
        else:
            yield from _read_member(source, char, sink)
        if depth == 0:
            return True
    return False


def _read_member(source: Source, char: str, sink: Sink) -> Reading[None]:
    """A word, a number, or a text in Python's quotes, inside an object or a list."""
    parts: list[str] = []
    if char != "'":
        yield from _read_scalar(source, parts.append)
        word = "".join(parts)
        sink(WORDS.get(word, word))
        return
    parts.append(source.take(1))
    yield from read_quoted(source, "'", parts.append, depth=1)
    try:
        sink(json.dumps(parse_literal("".join(parts)), ensure_ascii=False))
    except ValueError as error:
        raise NotACallError(str(error)) from error


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
            sink(_escape(source.take(2)))
        elif char < " ":
            sink(json.dumps(source.take(1))[1:-1])
        else:
            sink(source.take_match(_WITHOUT_CONTROLS))


def _escape(text: str) -> str:
    """A backslash and a character, as JSON has them."""
    if text[1] in _ESCAPES:
        return text
    return "'" if text == "\\'" else json.dumps(text, ensure_ascii=False)[1:-1]


def mended_json(text: str) -> str:
    """All of ``text`` as JSON, if it is that but for what is mended.

    Raises:
      ValueError: it is not.
    """
    source, parts = Source(text.strip(), ended=True), list[str]()
    try:
        for _ in read_json_text(source, parts.append):
            pass
    except (NotACallError, TooDeepError) as error:
        raise ValueError(str(error)) from error
    mended = "".join(parts)
    if not source.is_spent:
        raise ValueError("text behind the value")
    parse_json(mended)
    return mended


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


_KEY = re.compile(r"[A-Za-z_][\w.-]*\s*=")
_BEGUN_KEY = re.compile(r"[A-Za-z_][\w.-]*\s*")
_MAX_AHEAD = 256


def read_quoted(source: Source, quote: str, sink: Sink, depth: int) -> Reading[None]:
    """A text through its closing quote; models forget to escape quotes inside, so they are here."""
    escapes = ("\\",) if len(quote) == 1 else ()
    while True:
        stop = yield from source.take_until(stops_of(quote, *escapes), sink)
        if stop is None:
            raise NotACallError("a text in the call does not end")
        if stop == quote:
            if not escapes or (yield from _may_follow_value(source, depth)):
                sink(stop)
                return
            sink("\\")
        sink(stop)
        if stop != quote:
            if not (yield from source.peek()):
                raise NotACallError("a text in the call does not end")
            sink(source.take(1))


def _may_follow_value(source: Source, depth: int) -> Reading[bool]:
    """Return whether a value of a call can end before what comes next.

    Args:
      depth: how many brackets are open inside the value.
    """
    while True:
        ahead = source.ahead(_MAX_AHEAD)
        is_all_there = source.ended or len(ahead) == _MAX_AHEAD
        there = ahead.lstrip()
        first, after = there[:1], there[1:].lstrip()
        if first and (depth or first not in ",)"):
            return bool(depth) and first in ",:)]}"
        if first and after:
            if first == ")":  # the call ends too, and another one or a text may follow
                gap = there[1 : len(there) - len(after)]
                return after[0] in ",;]`<_" or after[0].isalnum() or "\n" in gap
            if after[0] == ")" or _KEY.match(after):
                return True
            if not _BEGUN_KEY.fullmatch(after):
                return False
        if is_all_there:
            return True
        yield
