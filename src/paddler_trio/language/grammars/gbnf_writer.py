"""Writing GBNF: literals, character classes, counted repetitions, and rules that exist once.

What reads our grammars decides how they look:

* the engine follows every way in which a text can be read: what we write has one way, or a few;
* ``x{0,3000}`` is more than the 2000 of GBNF as llama.cpp reads it: large counts are written in
  blocks;
* rules exist once, however often they are referred to.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import TypeAlias

import attrs

from paddler_trio.errors import PaddlerError, shortened

MAX_GRAMMAR_CHARS = 256 * 1024
MAX_REPETITIONS = 65_536
MAX_RULES = 20_000
MAX_STEPS = 400_000
"""Of the work on one grammar, about a second. What applications ask for takes some ten thousand."""
_BLOCK = 64

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, sorted, not touching."""

ANY_CHARACTER: Ranges = ((1, 0xD7FF), (0xE000, 0x10FFFF))
"""What UTF-8 can encode, but for NUL, which ends texts in C."""


class GrammarError(PaddlerError):
    """What was asked for cannot be a grammar; the text names the part and the reason.

    Names, references and values are of the client's making and may be as long as its request.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


@attrs.define
class Work:
    """What was done for one grammar: parts that are within their limits may be too many."""

    _steps: int = attrs.field(default=0, init=False)

    def spend(self, steps: int) -> None:
        """Count ``steps``; GrammarError if they are more than ``MAX_STEPS`` together."""
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise GrammarError(
                f"patterns, enums, allOf and oneOf take more than {MAX_STEPS} steps together; "
                "make them fewer or smaller"
            )


class GrammarWriter:
    """Rules of one grammar; the same body is only written once.

    Attributes:
      work: what was done for it, by all that write it.
      texts: rules for texts, by what is asked of them: tools of one application ask for the same.
    """

    def __init__(self, prefix: str = "") -> None:
        """``prefix`` begins every name, so that several grammars can become one."""
        self.work = Work()
        self.texts: dict[Hashable, str] = {}
        self._prefix = prefix
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._chars = 0

    def rule(self, body: str, hint: str = "r") -> str:
        """The name of a rule with this body: an old one, or a new one named like ``hint``.

        Raises:
          GrammarError: more than ``MAX_RULES`` rules or ``MAX_GRAMMAR_CHARS`` characters.
        """
        known = self._names.get(body)
        if known is not None:
            return known
        name = self.reserve(hint)
        self.define(name, body)
        return name

    def reserve(self, hint: str) -> str:
        """A new name, to be defined later; for rules that contain themselves."""
        if len(self._bodies) >= MAX_RULES:
            raise GrammarError(f"the grammar has more than {MAX_RULES} rules")
        stem = re.sub(r"[^a-z]+", "-", hint.lower())[:24].strip("-") or "r"
        name = f"{self._prefix}{stem}-{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._bodies[name] = body
        self._names.setdefault(body, name)
        self._chars += len(name) + len(body)
        if self._chars > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"the grammar has more than {MAX_GRAMMAR_CHARS} characters")

    def counted(self, item: str, least: int, most: int | None) -> str:
        """``item``, the name of a rule, ``least`` to ``most`` times; None is without an end."""
        for count in (least, most or 0):
            if count > MAX_REPETITIONS:
                raise GrammarError(f"{count} repetitions, the limit is {MAX_REPETITIONS}")
        parts = [self._exactly(item, least)] if least else []
        if most is None:
            parts.append(f"{item}*")
        elif most > least:
            parts.append(self._up_to(item, most - least))
        return " ".join(parts) or '""'

    def _exactly(self, item: str, count: int) -> str:
        if count == 1:
            return item
        if count <= _BLOCK:
            return f"{item}{{{count}}}"
        blocks, rest = divmod(count, _BLOCK)
        written = self._exactly(self.rule(f"{item}{{{_BLOCK}}}", "block"), blocks)
        return f"{written} {self._exactly(item, rest)}" if rest else written

    def _up_to(self, count_item: str, count: int) -> str:
        item = count_item
        if count == 1:
            return f"{item}?"
        if count <= _BLOCK:
            return f"{item}{{0,{count}}}"
        # Full blocks and then less than a block; or all the full blocks and then what is left.
        blocks, rest = divmod(count, _BLOCK)
        block = self.rule(f"{item}{{{_BLOCK}}}", "block")
        short = f"{item}{{0,{_BLOCK - 1}}}"
        if blocks > 1:
            short = f"{self._up_to(block, blocks - 1)} {short}"
        full = self._exactly(block, blocks) + (f" {self._up_to(item, rest)}" if rest else "")
        return self.rule(f"{short} | {full}", "upto")

    def text(self, root: str, *, known: Iterable[str] = ()) -> str:
        """The grammar: a rule ``root`` (with the prefix), and every rule that it leads to.

        ``known`` are names of rules that are written elsewhere.
        """
        elsewhere = set(known)
        wanted = {root, *elsewhere}
        waiting = [root]
        while waiting:
            for name in names_in(self._bodies[waiting.pop()]):
                if name not in wanted:
                    wanted.add(name)
                    waiting.append(name)
        lines = [f"{self.root} ::= {root}"]
        lines += [f"{name} ::= {body}" for name, body in self._bodies.items() if name in wanted]
        return "\n".join(lines) + "\n"

    @property
    def root(self) -> str:
        """The name of the rule that :meth:`text` begins with."""
        return f"{self._prefix}root"


_TEXTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}', re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9-]+")


def names_in(body: str) -> list[str]:
    """The rules that a body refers to."""
    return _NAME.findall(_TEXTS.sub(" ", body))


def literal(text: str) -> str:
    """GBNF for exactly this text.

    Raises:
      GrammarError: NUL or half a surrogate pair, which llama.cpp cannot read.
    """
    return f'"{"".join(map(_character, text))}"'


def joined(*parts: str) -> str:
    """GBNF for these one after the other, empty ones left out."""
    return " ".join(part for part in parts if part not in ("", '""'))


def character_class(ranges: Ranges) -> str:
    """GBNF for one character out of ``ranges``, which are not empty."""
    parts = []
    for first, last in ranges:
        parts.append(_class_character(first))
        if last > first:
            parts.append(f"-{_class_character(last)}")
    return f"[{''.join(parts)}]"


def ranges_of(characters: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters, sorted and joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(characters):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


@lru_cache(maxsize=4096)  # automata of thousands of edges have a few sets of characters
def both(one: Ranges, other: Ranges) -> Ranges:
    """Characters in ``one`` and in ``other``."""
    common: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            common.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def but(ranges: Ranges) -> Ranges:
    """Every other character."""
    gaps: list[tuple[int, int]] = []
    begin = 0
    for first, last in ranges:
        if first > begin:
            gaps.append((begin, first - 1))
        begin = last + 1
    gaps.append((begin, 0x10FFFF))
    return both(tuple(gap for gap in gaps if gap[0] <= gap[1]), ANY_CHARACTER)


_NAMED = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _character(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code == 0 or 0xD800 <= code <= 0xDFFF:
        raise GrammarError(f"the character U+{code:04X} cannot stand in a grammar")
    return character if character.isprintable() else _escaped(code)


def _class_character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else _escaped(code)


def _escaped(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
