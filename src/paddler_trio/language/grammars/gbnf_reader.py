"""Reads GBNF into rules; accepts exactly what llama.cpp's parser accepts.

Groups become rules without a name of their own, ``(1``; so do repetitions, as llama.cpp rewrites
them: ``S{m,n}`` is ``m`` times ``S`` and ``n - m`` optional ones, each inside the one before.

Source:
  llama.cpp's ``grammars/README.md`` for the notation, ``src/llama-grammar.cpp`` for what it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

import attrs

from paddler_trio.language.grammars.gbnf_writer import GrammarError, Ranges, ranges_of

MAX_NESTING = 2000
MAX_ELEMENTS = 500_000
MAX_COUNT = 2000
"""Of a repetition, and of repetitions of repetitions multiplied."""
LAST_CHARACTER = 0x10FFFF


@attrs.frozen(cache_hash=True)
class Characters:
    """One character of a set. ``ranges`` of code points, inclusive, as they were written."""

    ranges: Ranges
    is_negated: bool = False

    @property
    def spans(self) -> Ranges:
        """The characters that fit, NUL excepted: sorted, without overlaps."""
        if len(self.ranges) == 1 and not self.is_negated and self.ranges[0][0] > 0:
            return self.ranges if self.ranges[0][0] <= self.ranges[0][1] else ()
        merged = ranges_of((first, last) for first, last in self.ranges if first <= last)
        if self.is_negated:
            ends = [0, *(last for _, last in merged)]
            starts = [*(first for first, _ in merged), LAST_CHARACTER + 1]
            merged = tuple((end + 1, start - 1) for end, start in zip(ends, starts, strict=True))
        return tuple(
            (max(1, first), min(last, LAST_CHARACTER))
            for first, last in merged
            if max(1, first) <= min(last, LAST_CHARACTER)
        )


@attrs.frozen
class TokenText:
    """One token of the vocabulary, or any but that one. ``text`` is ``<[id]>`` or ``<text>``."""

    text: str
    is_negated: bool = False


Item: TypeAlias = str | Characters | TokenText
"""An element of an alternative; a ``str`` is the name of a rule."""
Ways: TypeAlias = list[list[Item]]
"""The alternatives of a rule."""
Rules: TypeAlias = Mapping[str, Ways]

ANY = Characters((), is_negated=True)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_TOKEN = re.compile(
    r"""
    [ \t]*+
    (?:\#[^\r\n]*)?+
    (?:
      (?P<newline>\r\n|\r|\n)
    | (?P<define>[A-Za-z0-9-]+[ \t]*::=)
    | (?P<name>[A-Za-z0-9-]+)
    | (?P<text>"(?:\\.|[^"\\])*")
    | (?P<class>\[(?:\\.|[^\]\\])*\]|\.)
    | (?P<token>!?<(?:\[\d{1,9}\]|(?!\[)[^>]*)>)
    | (?P<repeat>[*+?]|\{[^}]*\})
    | (?P<group>[()])
    | (?P<or>\|)
    | (?P<end>\Z)
    | (?P<wrong>.)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_COUNTS = re.compile(r"\{\s*(\d{1,9})\s*(,?)\s*(\d{0,9})\s*\}")


@lru_cache(maxsize=1)  # a grammar is inspected, then compiled
def read_gbnf(grammar: str) -> Rules:
    """The rules of a grammar, those in groups included; not to be changed.

    Raises:
      GrammarError: llama.cpp cannot read it either, or it is beyond a limit.
    """
    reader = _Reader()
    reader.read(grammar)
    for name, ways in reader.rules.items():
        for item in (item for way in ways for item in way):
            if isinstance(item, str) and item not in reader.rules:
                raise GrammarError(f"the grammar has no rule {item!r}, which {name!r} asks for")
    return reader.rules


@attrs.define
class _Open:
    """A rule or group that is being read. ``last`` is where the part begins that a repetition
    would repeat; ``num_repeated``, how many rules llama.cpp makes of that part."""

    name: str
    ways: Ways = attrs.field(factory=lambda: [[]])
    last: int = 0
    num_repeated: int = 1
    rules_before: int = 0


@attrs.define(eq=False)
class _Reader:
    rules: dict[str, Ways] = attrs.field(factory=dict, init=False)
    _num_elements: int = attrs.field(default=0, init=False)
    _num_names: int = attrs.field(default=0, init=False)
    _open: list[_Open] = attrs.field(factory=list, init=False)
    _may_break: bool = attrs.field(default=True, init=False)
    """A line may end here without ending the rule."""
    _is_ended: bool = attrs.field(default=True, init=False)
    """The rule ended with its line."""

    def read(self, grammar: str) -> None:
        for token in _TOKEN.finditer(grammar):
            kind = str(token.lastgroup)
            if kind == "wrong":
                raise GrammarError(f"the grammar cannot be read at character {token.end()}")
            if kind == "newline":
                self._is_ended = self._is_ended or not (self._may_break or len(self._open) > 1)
            elif kind != "end":
                self._take(kind, token[kind])
                self._may_break = kind in ("define", "or") or token[kind] == "("
        self._close_rule()
        if not self.rules:
            raise GrammarError("the grammar has no rule")

    def _take(self, kind: str, text: str) -> None:
        if kind == "define":
            if not self._is_ended:
                raise GrammarError(f"the grammar begins the rule {text!r} in the middle of a line")
            self._close_rule()
            self._open.append(_Open(text[:-3].rstrip()))
            self._is_ended = False
            return
        if self._is_ended:
            raise GrammarError(f"the grammar has {text[:40]!r} where a rule has to begin")
        current = self._open[-1]
        match kind:
            case "or":
                current.ways.append([])
                current.last, current.num_repeated = 0, 1
            case "group" if text == "(":
                if len(self._open) > MAX_NESTING:
                    raise GrammarError(f"the grammar is nested more than {MAX_NESTING} deep")
                before = self._num_names
                self._open.append(_Open(self._new_name(), rules_before=before))
            case "group":
                self._close_group()
            case "repeat":
                self._repeat(text)
            case "name":
                self._add([text])
            case "text":
                self._add([_one(character) for character in _characters(text[1:-1])])
            case "class":
                self._add([_class_of(text)] if text not in ("[]", "[^]") else [])
            case _:
                self._add([TokenText(text.removeprefix("!"), is_negated=text[0] == "!")])

    def _add(self, items: list[Item], *, num_repeated: int = 1) -> None:
        current = self._open[-1]
        way = current.ways[-1]
        current.last, current.num_repeated = len(way), num_repeated
        way += items
        self._count(len(items))

    def _count(self, number: int) -> None:
        self._num_elements += number
        if self._num_elements > MAX_ELEMENTS:
            raise GrammarError(f"the grammar has more than {MAX_ELEMENTS} elements")

    def _repeat(self, text: str) -> None:
        current = self._open[-1]
        way = current.ways[-1]
        part = way[current.last :]
        if not part:
            raise GrammarError(f"the grammar has nothing before {text!r} to repeat")
        least, most = _times(text)
        current.num_repeated *= most or least or 1
        if current.num_repeated > MAX_COUNT:
            raise GrammarError(f"the grammar repeats repetitions more than {MAX_COUNT} times")
        links = 1 if most is None else most - least
        self._count(len(part) * (least + links))
        del way[current.last :]
        way += part * least
        rest: list[Item] = []
        for _ in range(links):
            name = self._new_name()
            self.rules[name] = [[*part, *([name] if most is None else rest)], []]
            rest = [name]
        way += rest

    def _new_name(self) -> str:
        self._num_names += 1
        return f"({self._num_names}"

    def _close_group(self) -> None:
        if len(self._open) < 2:
            raise GrammarError("the grammar closes a group that is not open")
        group = self._open.pop()
        self.rules[group.name] = group.ways
        self._add([group.name], num_repeated=self._num_names - group.rules_before)

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise GrammarError("the grammar leaves a group open")
        if self._open:
            rule = self._open.pop()
            self.rules[rule.name] = rule.ways


def _times(text: str) -> tuple[int, int | None]:
    if text in "*+?":
        return (1 if text == "+" else 0), (1 if text == "?" else None)
    counts = _COUNTS.fullmatch(text)
    if counts is None:
        raise GrammarError(f"the grammar repeats {text[:40]}, which are no counts")
    least = int(counts[1])
    most = least if not counts[2] else int(counts[3]) if counts[3] else None
    for count in (least, most or 0):
        if count > MAX_COUNT:
            raise GrammarError(f"the grammar repeats {text[:40]}, the limit is {MAX_COUNT}")
    if most is not None and most < least:
        raise GrammarError(f"the grammar repeats {text[:40]}: the smaller number comes first")
    return least, most


@lru_cache(maxsize=4096)
def _one(character: str) -> Characters:
    return Characters(((ord(character), ord(character)),))


def _characters(text: str) -> Iterator[str]:
    for two, four, eight, escaped, plain in _CHARACTER.findall(text):
        if digits := two or four or eight:
            yield chr(min(int(digits, 16), LAST_CHARACTER))
        elif not escaped:
            yield plain
        elif escaped in _ESCAPES:
            yield _ESCAPES[escaped]
        else:
            raise GrammarError(f"the grammar has the unknown escape '\\{escaped}'")


@lru_cache(maxsize=4096)
def _class_of(text: str) -> Characters:
    if text == ".":
        return ANY
    inside = text[1:-1]
    is_negated = inside.startswith("^")
    pieces = [match.group() for match in _CHARACTER.finditer(inside[is_negated:])]
    characters = [ord(next(_characters(piece))) for piece in pieces]
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and pieces[at + 1] == "-"
        ranges.append((characters[at], characters[at + 2 if is_range else at]))
        at += 3 if is_range else 1
    return Characters(tuple(ranges), is_negated)


def left_factored(rules: Rules) -> Rules:
    """The same grammar, but no two alternatives of a rule begin with the same item.

    What is the same is read once; a rule of its own has the different ends.
    """
    factored: dict[str, Ways] = {}
    waiting = [(name, [(way, 0) for way in ways]) for name, ways in rules.items()]
    while waiting:
        name, tails = waiting.pop()
        ways: Ways = []
        groups: dict[Item | None, list[tuple[list[Item], int]]] = {}
        for way, at in tails:
            item = way[at] if at < len(way) else None
            groups.setdefault(item, []).append((way, at + 1))
        for item, group in groups.items():
            if item is None:
                ways.append([])
            elif len(group) == 1:
                way, at = group[0]
                ways.append(way[at - 1 :])
            else:
                inner = f"({name}/{len(ways)}"
                ways.append([item, inner])
                waiting.append((inner, group))
        factored[name] = ways
    return factored


@attrs.define
class _Way:
    """One alternative of a rule, and how many of its items are not known to be such rules."""

    rule: str
    num_missing: int


def closed_rules(rules: Rules, *, is_given: Callable[[Item], bool]) -> set[str]:
    """Rules with an alternative of which every item is given or is such a rule. Linear."""
    users: dict[Item, list[_Way]] = {}  # of each item: the alternatives that miss it
    found: set[str] = set()
    waiting: list[str] = []
    for name, ways in rules.items():
        for way in ways:
            missing = [item for item in way if not is_given(item)]
            entry = _Way(name, len(missing))
            if not missing:
                waiting.append(name)
            for item in missing:
                users.setdefault(item, []).append(entry)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for entry in users.get(name, ()):
            entry.num_missing -= 1
            if not entry.num_missing:
                waiting.append(entry.rule)
    return found


def empty_rules(rules: Rules) -> set[str]:
    """Rules that the empty text fits."""
    return closed_rules(rules, is_given=lambda _: False)


def leftmost(ways: Ways, empty: set[str]) -> Iterator[tuple[str, bool]]:
    """Rules that a text of this one may begin with, and whether anything follows them."""
    for way in ways:
        for index, item in enumerate(way):
            if not isinstance(item, str):
                break
            yield item, index + 1 < len(way)
            if item not in empty:
                break


def components(edges: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Which names lead to each other: Tarjan's strongly connected components, without recursion.

    Those of a component have one number. A component comes after all that it leads to.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    component: dict[str, int] = {}
    waiting: list[str] = []
    for start in edges:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        waiting.append(start)
        path = [(start, iter(edges[start]))]
        while path:
            name, out = path[-1]
            following = next(out, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == index[name]:
                    while True:
                        member = waiting.pop()
                        component[member] = index[name]
                        if member == name:
                            break
            elif following not in index:
                index[following] = low[following] = len(index)
                waiting.append(following)
                path.append((following, iter(edges[following])))
            elif following not in component:
                low[name] = min(low[name], index[following])
    return component
