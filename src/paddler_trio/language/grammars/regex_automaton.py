"""Regular expressions as automata: what ECMAScript's and Python's dialects have in common.

Characters, classes, ``.``, groups, alternatives, quantifiers, and ``^`` and ``$`` at the ends. What
a grammar cannot express (look-around, back references, word boundaries, flags) is refused by name.
``\\d``, ``\\w`` and ``.`` mean what they mean in ECMAScript. Lazy quantifiers match the same texts
as greedy ones, so they are taken as those.

Source:
  ECMA-262, chapter "Patterns"; JSON Schema 2020-12, 6.4 (regular expressions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import NoReturn, TypeAlias

import attrs

from paddler_trio.language.grammars.finite_automaton import Automaton, Net
from paddler_trio.language.grammars.gbnf_writer import (
    ANY_CHARACTER,
    GrammarError,
    Ranges,
    Work,
    but,
    ranges_of,
)

MAX_PATTERN_CHARS = 16 * 1024
_MAX_GROUPS = 100
_MAX_COUNT = 4000
_MAX_NAME_SHOWN = 40
_COUNTS = re.compile(r"\{([0-9]*+)(,?)([0-9]*+)\}")  # possessive: read once, however long


class PatternError(GrammarError):
    """A pattern that is none, or needs what grammars lack."""

    def __init__(self, pattern: str, position: int, reason: str) -> None:
        shown = pattern if len(pattern) <= 100 else f"{pattern[:100]}..."
        super().__init__(f"pattern {shown!r}, at character {position + 1}: {reason}")


# Each draws itself into a net from one state to another.
_Piece: TypeAlias = Callable[[Net, int, int], None]


@attrs.frozen
class _Alternative:
    piece: _Piece
    starts_anchored: bool
    ends_anchored: bool


def automaton_of(pattern: str, *, anchored: bool, work: Work | None = None) -> Automaton:
    """The texts that match ``pattern``.

    Args:
      anchored: the whole text has to match; if not, a part of it, as JSON Schema has it.
      work: what it costs is counted there; without, it is a pattern by itself.

    Raises:
      GrammarError: not a pattern, not expressible, or too large.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        message = f"pattern of {len(pattern)} characters, the limit is {MAX_PATTERN_CHARS}"
        raise GrammarError(message)
    alternatives = _Parser(pattern).alternatives()
    net = Net()
    final = net.state()
    for alternative in alternatives:
        begin, end = net.state(), net.state()
        net.skips[0].append(begin)
        net.skips[end].append(final)
        if not (anchored or alternative.starts_anchored):
            net.leads[begin].append((ANY_CHARACTER, begin))
        if not (anchored or alternative.ends_anchored):
            net.leads[end].append((ANY_CHARACTER, end))
        inner, after = net.state(), net.state()
        net.skips[begin].append(inner)
        net.skips[after].append(end)
        alternative.piece(net, inner, after)
    return net.determined(final, Work() if work is None else work)


def _characters(ranges: Ranges) -> _Piece:
    def build(net: Net, begin: int, end: int) -> None:
        net.leads[begin].append((ranges, end))

    return build


def _drawn(net: Net, begin: int, pieces: Iterable[_Piece]) -> int:
    """The state in which the pieces, drawn one after the other, end."""
    for piece in pieces:
        end = net.state()
        piece(net, begin, end)
        begin = end
    return begin


def _sequence(pieces: list[_Piece]) -> _Piece:
    def build(net: Net, begin: int, end: int) -> None:
        net.skips[_drawn(net, begin, pieces)].append(end)

    return build


def _either(pieces: list[_Piece]) -> _Piece:
    def build(net: Net, begin: int, end: int) -> None:
        for piece in pieces:
            inner = net.state()
            net.skips[begin].append(inner)
            piece(net, inner, end)

    return build


def _repeated(piece: _Piece, least: int, most: int | None) -> _Piece:
    def build(net: Net, begin: int, end: int) -> None:
        here = _drawn(net, begin, repeat(piece, least))
        if most is None:
            loop = net.state()
            net.skips[here].append(loop)
            net.skips[_drawn(net, loop, [piece])].append(loop)
            net.skips[loop].append(end)
            return
        for _ in range(most - least):
            net.skips[here].append(end)
            here = _drawn(net, here, [piece])
        net.skips[here].append(end)

    return build


_DIGITS = ranges_of([(0x30, 0x39)])
_WORD = ranges_of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_BLANKS = ranges_of(
    (ord(span[0]), ord(span[-1]))
    for span in [
        "\t\r",
        " ",
        "\xa0",
        "\u1680",
        "\u2000\u200a",
        "\u2028\u2029",
        "\u202f",
        "\u205f",
        "\u3000",
        "\ufeff",
    ]
)
_LINE_ENDS = ranges_of([(10, 10), (13, 13), (0x2028, 0x2029)])
_CLASSES = {
    "d": _DIGITS,
    "D": but(_DIGITS),
    "w": _WORD,
    "W": but(_WORD),
    "s": _BLANKS,
    "S": but(_BLANKS),
}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_REFUSED_GROUPS = {
    "?=": "lookahead (?=",
    "?!": "lookahead (?!",
    "?<=": "lookbehind (?<=",
    "?<!": "lookbehind (?<!",
    "?>": "atomic group (?>",
    "?P=": "reference back (?P=",
    "?(": "conditional (?(",
}


@attrs.define(eq=False)
class _Parser:
    _pattern: str
    _at: int = 0
    _depth: int = 0
    _names: set[str] = attrs.field(factory=set)

    def alternatives(self) -> list[_Alternative]:
        found = [self._alternative()]
        while self._takes("|"):
            found.append(self._alternative())
        if self._at < len(self._pattern):
            self._fail("')' closes nothing")
        return found

    def _alternative(self) -> _Alternative:
        starts = False
        while self._takes("^") or self._takes("\\A"):
            starts = True
        piece, ends = self._concatenation(top=True)
        return _Alternative(piece, starts, ends)

    def _concatenation(self, *, top: bool = False) -> tuple[_Piece, bool]:
        pieces: list[_Piece] = []
        ends = False
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            if self._takes("$") or self._takes("\\Z") or self._takes("\\z"):
                if not top:
                    self._fail("$ inside a group")
                ends = True
                continue
            if ends:
                self._fail("$ in the middle")
            pieces.append(self._quantified())
        return _sequence(pieces), ends

    def _quantified(self) -> _Piece:
        piece = self._atom()
        while self._at < len(self._pattern):
            if self._takes("*"):
                least, most = 0, None
            elif self._takes("+"):
                least, most = 1, None
            elif self._takes("?"):
                least, most = 0, 1
            elif self._pattern[self._at] == "{" and (counts := self._counts()):
                least, most = counts
            else:
                break
            if self._takes("+"):
                self._fail("possessive quantifier")
            self._takes("?")
            if self._is_at_quantifier():
                self._fail("quantifier after a quantifier")
            piece = _repeated(piece, least, most)
        return piece

    def _is_at_quantifier(self) -> bool:
        at, character = self._at, self._pattern[self._at : self._at + 1]
        if character != "{":
            return character in ("*", "+", "?")
        counts, self._at = self._counts(), at
        return counts is not None

    def _counts(self) -> tuple[int, int | None] | None:
        """``{2}``, ``{2,}`` or ``{2,5}``; a brace that is none of them is a character."""
        found = _COUNTS.match(self._pattern, self._at)
        if found is None:
            return None
        first, comma, second = found.groups()
        if comma and not first:
            self._fail("write {0,n} or {0,}: dialects differ about {,n} and {,}")
        if not first:
            return None
        for word in (first, second):
            if len(word) > 9 or int(word or 0) > _MAX_COUNT:
                self._fail(f"{word[:20]} repetitions, the limit is {_MAX_COUNT}")
        self._at = found.end()
        least = int(first)
        most = least if not comma else int(second) if second else None
        if most is not None and most < least:
            self._fail("the smaller number has to come first")
        return least, most

    def _atom(self) -> _Piece:
        character = self._pattern[self._at]
        if character == "(":
            return self._group()
        if character == "[":
            return _characters(self._class())
        if character == "\\":
            return _characters(self._escape(in_class=False))
        if character == "^":
            self._fail("^ in the middle")
        if self._is_at_quantifier():
            self._fail("nothing to repeat")
        self._at += 1
        return _characters(but(_LINE_ENDS) if character == "." else self._one(ord(character)))

    def _group(self) -> _Piece:
        self._depth += 1
        if self._depth > _MAX_GROUPS:
            self._fail(f"more than {_MAX_GROUPS} groups in each other")
        self._at += 1
        if self._pattern.startswith("?", self._at):
            self._group_kind()
        pieces = []
        while True:
            if self._pattern.startswith(("^", "\\A"), self._at):
                self._fail("^ inside a group")
            pieces.append(self._concatenation()[0])
            if not self._takes("|"):
                break
        if not self._takes(")"):
            self._fail("a group is not closed")
        self._depth -= 1
        return _either(pieces)

    def _group_kind(self) -> None:
        for beginning, name in _REFUSED_GROUPS.items():
            if self._pattern.startswith(beginning, self._at):
                self._fail(f"{name} cannot be expressed in a grammar")
        if self._takes("?:"):
            return
        if self._takes("?P<") or self._takes("?<"):
            close = self._pattern.find(">", self._at)
            name = self._pattern[self._at : max(close, 0)]
            if not name.isidentifier():
                self._fail("(?< needs the name of a group, and > behind it")
            if name in self._names:
                shown = name if len(name) <= _MAX_NAME_SHOWN else f"{name[:_MAX_NAME_SHOWN]}..."
                self._fail(f"a second group has the name {shown!r}")
            self._names.add(name)
            self._at = close + 1
            return
        self._fail("flags (?...) cannot be expressed in a grammar")

    def _class(self) -> Ranges:
        self._at += 1
        is_negated = self._takes("^")
        if self._pattern.startswith("]", self._at) and "]" in self._pattern[self._at + 1 :]:
            self._fail("write \\] or [\\s\\S]: dialects differ about a ] that comes first in [ ]")
        spans: list[tuple[int, int]] = []
        while not self._takes("]"):
            if self._at >= len(self._pattern):
                self._fail("a class [ is not closed")
            first = self._class_characters()
            if len(first) == 1 and first[0][0] == first[0][1] and self._is_dash():
                self._at += 1
                last = self._class_characters()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
                    self._fail("a range in [ ] has no order")
                first = ((first[0][0], last[0][0]),)
            spans.extend(first)
        characters = ranges_of(spans)
        return but(characters) if is_negated else characters

    def _is_dash(self) -> bool:
        at = self._at
        return self._pattern.startswith("-", at) and self._pattern[at + 1 : at + 2] not in ("]", "")

    def _class_characters(self) -> Ranges:
        character = self._pattern[self._at : self._at + 1]
        if character == "\\":
            return self._escape(in_class=True)
        if not character:
            self._fail("a class [ is not closed")
        self._at += 1
        return self._one(ord(character))

    def _escape(self, *, in_class: bool) -> Ranges:
        character = self._pattern[self._at + 1 : self._at + 2]
        if not character:
            self._fail("a backslash at the end")
        if character in _CLASSES:
            self._at += 2
            return _CLASSES[character]
        if character in _CONTROLS or (character == "b" and in_class):
            self._at += 2
            return self._one(_CONTROLS.get(character, 8))
        if character in "bB":
            self._fail(f"word boundary \\{character} cannot be expressed in a grammar")
        if character in "pP":
            self._fail(f"Unicode property \\{character} cannot be expressed in a grammar")
        if character == "k" or (character.isdigit() and character != "0"):
            self._fail(f"reference back \\{character} cannot be expressed in a grammar")
        if character == "0":
            self._fail("the character NUL cannot be expressed in a grammar")
        if character in "xu":
            return self._one(self._hexadecimal(character))
        if character == "c":
            named = self._pattern[self._at + 2 : self._at + 3]
            if not (named.isascii() and named.isalpha()):
                self._fail("\\c needs a letter")
            self._at += 3
            return self._one(ord(named) % 32)
        if character.isascii() and character.isalnum():
            self._fail(f"unknown escape \\{character}")
        self._at += 2
        return self._one(ord(character))

    def _hexadecimal(self, kind: str) -> int:
        if kind == "u" and self._pattern.startswith("{", self._at + 2):
            close = self._pattern.find("}", self._at)
            digits = self._pattern[self._at + 3 : close] if close > 0 else ""
            end = close + 1
        else:
            width = 2 if kind == "x" else 4
            end = self._at + 2 + width
            digits = self._pattern[self._at + 2 : end]
            digits = digits if len(digits) == width else ""
        if not digits or len(digits) > 6 or not set(digits) <= set("0123456789abcdefABCDEF"):
            self._fail(f"\\{kind} needs hexadecimal digits")
        self._at = end
        return int(digits, 16)

    def _one(self, code: int) -> Ranges:
        if code == 0 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            self._fail(f"the character U+{code:04X} cannot be expressed in a grammar")
        return ((code, code),)

    def _takes(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _fail(self, reason: str) -> NoReturn:
        raise PatternError(self._pattern, self._at, reason)
