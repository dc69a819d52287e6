"""Grammars looked at before llama.cpp is: what would crash it, fill its memory or never end.

* Its parser calls itself for every open parenthesis and overruns the stack (measured: between
  10 000 and 30 000 of them with 8 MB).
* Counts become copies: ``"a long text"{2000}`` is that text 2000 times in memory.
* Its search for left recursion walks every leftmost path anew, which takes 2^n steps where n rules
  each lead to the next in two ways.
* The same search does not see recursion behind rules that are empty only by way of others; such a
  grammar then makes it grow stacks without an end.

Source:
  llama.cpp's ``grammars/README.md`` for the notation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from paddler_trio.language.grammars.writer import GrammarError

MAX_NESTING = 2000
MAX_ELEMENTS = 500_000
MAX_LEFTMOST_STEPS = 500_000

Ways: TypeAlias = list[list[str]]
"""The alternatives of a rule: names of rules, and letters as they are written in the grammar."""

_CHARACTERS = ('"', "[", ".", "<", "!")
_TOKEN = re.compile(
    r"""
    (?:[ \t\r\n]+|\#[^\r\n]*)*+
    (?:
      (?P<define>[A-Za-z0-9-]+[ \t]*::=)
    | (?P<name>[A-Za-z0-9-]+)
    | (?P<text>"(?:\\.|[^"\\])*")
    | (?P<letters>\[(?:\\.|[^\]\\])*\]|\.|!?<[^>]*>)
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
_TOO_MANY = 10**9
_LINKS = 33


class LeftRecursionError(GrammarError):
    """A rule that begins with itself."""


class _Reader:
    """Takes a grammar apart; groups and repetitions become rules without a name of their own."""

    def __init__(self) -> None:
        self.rules: dict[str, Ways] = {}
        self.num_elements = 0
        self._anonymous = 0
        # Of every group that is open: its name, its alternatives, and the size of its last part.
        self._open: list[tuple[str, Ways]] = []
        self._last_size = 0

    def read(self, grammar: str) -> None:
        for token in _TOKEN.finditer(grammar):
            kind = str(token.lastgroup)
            if kind == "wrong":
                raise GrammarError(f"the grammar cannot be read at letter {token.end()}")
            if kind != "end":
                self._take(kind, token[kind])
        self._close_rule()

    def _take(self, kind: str, text: str) -> None:
        match kind:
            case "define":
                self._close_rule()
                self._open.append((text[:-3].rstrip(), [[]]))
                return
            case _ if not self._open:
                raise GrammarError("the grammar does not begin with a rule")
            case "or":
                self._open[-1][1].append([])
            case "group" if text == "(":
                if len(self._open) > MAX_NESTING:
                    raise GrammarError(f"the grammar is nested more than {MAX_NESTING} deep")
                self._open.append((self._new_name(), [[]]))
            case "group":
                if len(self._open) < 2:
                    raise GrammarError("the grammar closes a group that is not open")
                name, ways = self._open.pop()
                self.rules[name] = ways
                self._add(name, 1)
            case "repeat":
                self._repeat(text)
            case "name":
                self._add(text, 1)
            case "text":
                # An empty text takes no letter and leaves nothing that could be repeated.
                size = len(text) - 2
                self._add(text if size else self._empty(), size)
            case _:
                self._add(text, len(text))
        if self.num_elements > MAX_ELEMENTS:
            raise GrammarError(f"the grammar has more than {MAX_ELEMENTS} elements")

    def _add(self, item: str, size: int) -> None:
        self._open[-1][1][-1].append(item)
        self._last_size = size
        self.num_elements += size

    def _repeat(self, text: str) -> None:
        way = self._open[-1][1][-1]
        if not way:
            raise GrammarError(f"the grammar has nothing before {text!r} to repeat")
        least, most = _times(text)
        self.num_elements += self._last_size * max(least, most or 1)
        item = way.pop()
        rest = self._new_name()
        if most is None:
            self.rules[rest] = [[item, rest], []]
        else:
            # One link for each more that may come; more than anybody looks at are not needed.
            self.rules[rest] = [[]]
            for _ in range(min(most - least, _LINKS)):
                link = self._new_name()
                self.rules[link] = [[item, rest], []]
                rest = link
        name = self._new_name()
        self.rules[name] = [[*([item] * min(least, _LINKS)), rest]]
        way.append(name)

    def _empty(self) -> str:
        name = self._new_name()
        self.rules[name] = [[]]
        return name

    def _new_name(self) -> str:
        self._anonymous += 1
        return f"({self._anonymous}"

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise GrammarError("the grammar leaves a group open")
        if self._open:
            name, ways = self._open.pop()
            self.rules[name] = ways


def _times(text: str) -> tuple[int, int | None]:
    if text in "*+?":
        return (1 if text == "+" else 0), (1 if text == "?" else None)
    counts = _COUNTS.fullmatch(text)
    if counts is None:
        raise GrammarError(f"the grammar repeats {text[:40]}, which are no counts")
    least = int(counts[1])
    most = least if not counts[2] else int(counts[3]) if counts[3] else None
    for count in (least, most or 0):
        if count > 2000:
            raise GrammarError(f"the grammar repeats {text[:40]}, the limit is 2000")
    if most is not None and most < least:
        raise GrammarError(f"the grammar repeats {text[:40]}: the smaller number comes first")
    return least, most


@attrs.frozen
class Inspection:
    """A grammar that llama.cpp can be given; ``rules`` by their names, groups included."""

    rules: Mapping[str, Ways]

    def endless(self, root: str) -> list[str]:
        """Rules that ``root`` leads to and no finite text fits."""
        reached = {root}
        waiting = [root]
        while waiting:
            for item in _items(self.rules[waiting.pop()]):
                if item not in reached and not takes_characters(item):
                    reached.add(item)
                    waiting.append(item)
        return sorted(reached - _closed(self.rules, is_given=takes_characters))


def inspect(grammar: str) -> Inspection:
    """Take a grammar apart and look at it; milliseconds for the largest.

    Raises:
      GrammarError: it cannot be read, or would harm llama.cpp; the text says how.
    """
    reader = _Reader()
    reader.read(grammar)
    rules = reader.rules
    for name, ways in rules.items():
        for item in _items(ways):
            if not takes_characters(item) and item not in rules:
                raise GrammarError(f"the grammar has no rule {item!r}, which {name!r} asks for")
    plainly_empty = {name for name, ways in rules.items() if [] in ways}
    edges = {name: list(_leftmost(ways, plainly_empty)) for name, ways in rules.items()}
    order = _without_cycles({name: [item for item, _ in out] for name, out in edges.items()})
    if order is None:
        raise LeftRecursionError("the grammar has a rule that begins with itself (left recursion)")
    steps: dict[str, int] = {}
    for name in order:
        steps[name] = min(_TOO_MANY, 1 + sum(steps[item] for item, _ in edges[name]))
    if any(count > MAX_LEFTMOST_STEPS for count in steps.values()):
        raise GrammarError(f"the grammar begins in more than {MAX_LEFTMOST_STEPS} ways")
    empty = _closed(rules, is_given=lambda _: False)
    edges = {name: list(_leftmost(ways, empty)) for name, ways in rules.items()}
    if _grows(edges):
        raise LeftRecursionError("the grammar has a rule that may begin with itself")
    return Inspection(rules)


def takes_characters(item: str) -> bool:
    """Whether a part of a rule is letters and no other rule; rules in groups are called ``(1``."""
    return item.startswith(_CHARACTERS)


def _items(ways: Ways) -> Iterator[str]:
    return (item for way in ways for item in way)


@attrs.define
class _Way:
    """One way of a rule, and how many of its parts are not known to be such rules."""

    rule: str
    num_missing: int


def _closed(rules: Mapping[str, Ways], *, is_given: Callable[[str], bool]) -> set[str]:
    """Rules with a way of which every part is given or is such a rule. Linear in the grammar."""
    users: dict[str, list[_Way]] = {}  # of each part: the ways that miss it
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


def _leftmost(ways: Ways, empty: set[str]) -> Iterator[tuple[str, bool]]:
    """Rules that a text of this one may begin with, and whether anything follows them."""
    for way in ways:
        for index, item in enumerate(way):
            if takes_characters(item):
                break
            yield item, index + 1 < len(way)
            if item not in empty:
                break


def _without_cycles(edges: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Every name after those it leads to; None if one leads to itself."""
    order: list[str] = []
    state: dict[str, bool] = {}  # False: entered, True: left
    for start in edges:
        if start in state:
            continue
        state[start] = False
        path = [(start, iter(edges[start]))]
        while path:
            name, out = path[-1]
            following = next(out, None)
            if following is None:
                state[name] = True
                order.append(name)
                path.pop()
            elif following not in state:
                state[following] = False
                path.append((following, iter(edges[following])))
            elif not state[following]:
                return None
    return order


def _grows(edges: Mapping[str, list[tuple[str, bool]]]) -> bool:
    """Whether a rule comes back to itself with something left to be read behind it."""
    component = _components({name: [item for item, _ in out] for name, out in edges.items()})
    return any(
        follows and component[name] == component[item]
        for name, out in edges.items()
        for item, follows in out
    )


def _components(edges: Mapping[str, list[str]]) -> dict[str, int]:
    """Which names lead to each other: Tarjan's strongly connected components, without recursion."""
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
