"""Values that models write: JSON that can be sent, and literals that are looser than JSON.

{"k": [1, "x"], "on": true}        JSON: every text fits UTF-8, every number is finite
{'k': [1, 'x'], "on": True}        Python, and templates that print Python objects
{theme:<|"|>dark<|"|>,count:3}     Gemma: bare keys, a quote token, no escapes
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import NoReturn

import attrs

from paddler_trio.language.answers.call_events import Arguments

MAX_DEPTH = 100

_BLANK = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,:{}\[\]()'\"]+")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_QUOTED = {
    quote: re.compile(rf"{quote}[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}", re.DOTALL)
    for quote in "'\""
}
_CONSTANTS: dict[str, object] = {
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "None": None,
    "null": None,
}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}


def parse_literal(text: str, *, quote_token: str | None = None, has_sets: bool = False) -> object:
    """The value that ``text`` is, as JSON would hold it; tuples and sets become lists.

    Args:
      quote_token: a text that quotes strings, in which nothing is escaped.
      has_sets: braces may hold a set, ``{'a', 'b'}``.

    Raises:
      ValueError: it is no such value.
    """
    parser = _Parser(text, quote_token, has_sets)
    value = parser.value(0)
    if parser.skip_blank() != "":
        raise ValueError(f"text after the value at character {parser.at}")
    return value


@attrs.define(eq=False)
class _Parser:
    _text: str
    _quote_token: str | None
    _has_sets: bool
    at: int = 0

    def skip_blank(self) -> str:
        match = _BLANK.match(self._text, self.at)
        assert match is not None
        self.at = match.end()
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        char = self.skip_blank()
        if self._quote_token is not None and self._text.startswith(self._quote_token, self.at):
            return self._in_quote_tokens(self._quote_token)
        match char:
            case "{":
                return self._object(depth)
            case "[" | "(":
                return self._list("]" if char == "[" else ")", depth)
            case "'" | '"':
                return self._in_quotes(char)
            case _:
                return self._word()

    def _object(self, depth: int) -> dict[str, object] | list[object]:
        begin = self.at
        found: dict[str, object] = {}
        for char in self._members("}", "an object"):
            quote = self._quote_token
            if quote is not None and self._text.startswith(quote, self.at):
                key = self._in_quote_tokens(quote)
            elif char in "'\"":
                key = self._in_quotes(char)
            else:
                key = self._taken(_WORD)
            if self.skip_blank() != ":":
                if found or not self._has_sets:
                    raise ValueError(f"no colon at character {self.at}")
                self.at = begin
                return self._list("}", depth)
            self.at += 1
            found[key] = self.value(depth + 1)
        return found

    def _list(self, closing: str, depth: int) -> list[object]:
        return [self.value(depth + 1) for _ in self._members(closing, "a list")]

    def _members(self, closing: str, whole: str) -> Iterator[str]:
        """The first character of each member, which the caller then takes; both brackets too."""
        self.at += 1
        while (char := self.skip_blank()) != closing:
            if char == "":
                raise ValueError(f"{whole} does not end")
            if char == ",":
                self.at += 1
            else:
                yield char
        self.at += 1

    def _in_quotes(self, quote: str) -> str:
        content = self._taken(_QUOTED[quote])[1:-1]
        if "\\" not in content:
            return content
        # Two escapes may be the halves of one character; half of one is refused.
        unescaped = _ESCAPE.sub(_unescaped, content)
        return unescaped.encode("utf-16", "surrogatepass").decode("utf-16")

    def _in_quote_tokens(self, quote: str) -> str:
        start = self.at + len(quote)
        end = self._text.find(quote, start)
        if end < 0:
            raise ValueError(f"a text that starts at character {self.at} does not end")
        self.at = end + len(quote)
        return self._text[start:end]

    def _word(self) -> object:
        word = self._taken(_WORD)
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if _NUMBER.fullmatch(word):
            return parse_json(_as_json_number(word))
        if self._quote_token is not None:
            return word  # a bare word among Gemma's values is a text that lost its quotes
        raise ValueError(f"{word[:80]!r} is no value")

    def _taken(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        if match is None:
            raise ValueError(f"nothing readable at character {self.at}")
        self.at = match.end()
        return match.group()


def _as_json_number(word: str) -> str:
    sign = "-" if word.startswith("-") else ""
    digits = word.lstrip("+-").replace("_", "")
    mantissa, exponent_mark, exponent = digits.lower().partition("e")
    whole, point, fraction = mantissa.partition(".")
    whole = whole.lstrip("0") or "0"
    text = f"{sign}{whole}"
    if point:
        text += f".{fraction or '0'}"
    return f"{text}{exponent_mark}{exponent}"


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is not None:
        number = int(code, 16)
        if number > 0x10FFFF:
            raise ValueError(f"\\U{code} is no character")
        return chr(number)
    return _ESCAPED.get(match[4], match[4] if match[4] in "\\'\"\n/" else f"\\{match[4]}")


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
