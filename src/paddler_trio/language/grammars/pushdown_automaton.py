"""Which character may come next under a grammar: a pushdown automaton with merged stacks.

A state is the set of all stacks that the text so far can have left: what is still to be read, the
next character on top. Stacks with the same top are kept as one, and so is what is below them: 2^n
readings of a text take room for n. States and transitions are made when a text first needs them and
kept, as in a lazy DFA: text of a form seen before costs one look-up a character.

Source:
  Tomita's graph-structured stack (1987), here as hash-consed sets instead of a graph.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from paddler_trio.errors import PaddlerError
from paddler_trio.language.grammars.gbnf_reader import (
    LAST_CHARACTER,
    Characters,
    Item,
    Rules,
    TokenText,
    components,
    empty_rules,
    left_factored,
    leftmost,
    read_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import GrammarError

MAX_WORK = 150_000
"""Stacks looked at in one piece of work: some tenths of a second."""
LARGE_PLACES = 50_000
MAX_KEPT_STACKS = 50_000
MAX_TABLE_BYTES = 4 * 1024 * 1024
"""What is kept for the next texts; beyond it all of it is forgotten."""
DEAD = 0
"""The row of the state after a text that does not fit."""
UNKNOWN = -1
"""A transition that was not needed yet."""

Stacks: TypeAlias = "tuple[tuple[int, _Below], ...]"
"""Places on top of stacks, ascending, each with the stacks below it."""

_END, _RULE, _CHARACTERS, _TOKEN = range(4)
_BOTTOM = 0
"""The place at which nothing is left to be read."""
_SEED = 20_240_501


class CharacterClasses:
    """Characters that no set of a grammar distinguishes, numbered as classes, ``count`` of them."""

    def __init__(self, sets: Sequence[Characters]) -> None:
        spans = [characters.spans for characters in sets]
        # Ranges in the same sets have the same sum of the sets' random numbers.
        marks = np.random.default_rng(_SEED).integers(1, 2**63, len(sets), dtype=np.uint64)
        changes: dict[int, int] = {0: 0, LAST_CHARACTER + 1: 0}
        for mark, ranges in zip(marks.tolist(), spans, strict=True):
            for first, last in ranges:
                changes[first] = changes.get(first, 0) + mark
                changes[last + 1] = changes.get(last + 1, 0) - mark
        firsts = sorted(changes)
        steps = np.array([changes[first] % 2**64 for first in firsts], np.uint64)
        _, examples, classes = np.unique(np.cumsum(steps), return_index=True, return_inverse=True)
        self.count = len(examples)
        self._firsts = np.array(firsts, np.int64)
        self._classes = classes.astype(np.int32)
        self._examples = [firsts[index] for index in examples.tolist()]
        self._known: dict[str, int] = {}
        self._set_firsts = [[first for first, _ in ranges] for ranges in spans]
        self._set_lasts = [[last for _, last in ranges] for ranges in spans]

    def of_all(self, code_points: np.ndarray) -> np.ndarray:
        """The class of each code point: int32 of the same shape."""
        return self._classes[np.searchsorted(self._firsts, code_points, side="right") - 1]

    def of(self, character: str) -> int:
        """The class of one character."""
        known = self._known.get(character)
        if known is None:
            known = int(self.of_all(np.array([ord(character)]))[0])
            self._known[character] = known
        return known

    def is_in(self, character_class: int, number: int) -> bool:
        """Whether the characters of this class are in the set of this number."""
        example = self._examples[character_class]
        return self.meets(number, example, example)

    def meets(self, number: int, low: int, high: int) -> bool:
        """Whether any code point of a range, inclusive, is in the set of this number."""
        index = bisect_right(self._set_firsts[number], high) - 1
        return index >= 0 and self._set_lasts[number][index] >= low


@attrs.frozen(eq=False, repr=False)
class _Below:
    """The stacks below a place. Made once for the same stacks, so that they are compared by
    identity; those from before all was forgotten only count as different."""

    stacks: Stacks


class TooManyStacksError(PaddlerError):
    """The grammar goes on in more ways than may be followed."""


class PushdownAutomaton:
    """See the module. Shared by threads: hold ``lock``, and call :meth:`begin` before each piece of
    work. Methods that make states raise TooManyStacksError.

    ``table``: the row of the state after each class of characters, int32, shape (rows, classes).
    ``work``: stacks looked at since ``begin``. ``tokens``: whole tokens that the grammar names.
    """

    def __init__(self, rules: Rules, root: str) -> None:
        self.lock = threading.Lock()
        self._kinds: list[int] = [_END]  # of each place
        self._values: list[int] = [_BOTTOM]
        self.tokens: list[TokenText] = []
        self._compile(left_factored(rules))
        self._sets: dict[Stacks, _Below] = {}
        self._unions: dict[frozenset[_Below], _Below] = {}
        self.work = self._num_kept = 0
        self._rows: dict[Stacks, int] = {}
        self._stacks: list[Stacks] = []
        self.table = self._new_table()
        self._forget()
        bottom = _Below(())
        number = self._numbers[root]
        is_empty = self._is_empty[number]
        self.start = self._closed([(_BOTTOM, bottom)] if is_empty else [], {number: [bottom]})

    # ------------------------------------------------------------------ the grammar

    def _compile(self, rules: Rules) -> None:
        self._numbers = {name: number for number, name in enumerate(rules)}
        sets: dict[Characters, int] = {}
        empty = empty_rules(rules)
        self._is_empty = [name in empty for name in rules]
        self._fresh: list[list[int]] = []
        """Of each rule: the places at which it can begin, but for those that take nothing."""
        for ways in rules.values():
            fresh: list[int] = []
            for way in ways:
                begins = True
                for item in way:
                    if begins:
                        fresh.append(len(self._kinds))
                        begins = isinstance(item, str) and item in empty
                    self._add_place(item, sets)
                self._kinds.append(_END)
                self._values.append(_BOTTOM)
            self._fresh.append(fresh)
        self.classes = CharacterClasses(list(sets))
        below = components(
            {name: [item for item, _ in leftmost(ways, empty)] for name, ways in rules.items()}
        )
        self._ranks = [0] * len(rules)
        for rank, name in enumerate(reversed(below)):
            self._ranks[self._numbers[name]] = rank

    def _add_place(self, item: Item, sets: dict[Characters, int]) -> None:
        if isinstance(item, str):
            kind, value = _RULE, self._numbers[item]
        elif isinstance(item, Characters):
            kind, value = _CHARACTERS, sets.setdefault(item, len(sets))
        else:
            kind, value = _TOKEN, len(self.tokens)
            self.tokens.append(item)
        self._kinds.append(kind)
        self._values.append(value)

    # ------------------------------------------------------------------ the states

    @property
    def is_large(self) -> bool:
        """The grammar takes megabytes, too much to keep it for the next request."""
        return len(self._kinds) > LARGE_PLACES

    def begin(self) -> None:
        """A piece of work begins; rows that were given out before mean nothing any more."""
        self.work = 0
        if self.table.nbytes > MAX_TABLE_BYTES or self._num_kept > MAX_KEPT_STACKS:
            self._forget()

    def row_of(self, stacks: Stacks) -> int:
        """The row of this state in ``table``."""
        row = self._rows.get(stacks)
        if row is None:
            row = self._rows[stacks] = len(self._stacks)
            self._stacks.append(stacks)
            self._count(len(stacks))
            if row == len(self.table):
                more = np.full_like(self.table, UNKNOWN)
                self.table = np.concatenate([self.table, more])
        return row

    def stacks_of(self, row: int) -> Stacks:
        """The state of this row."""
        return self._stacks[row]

    def may_end(self, stacks: Stacks) -> bool:
        """Whether nothing more has to come."""
        return bool(stacks) and stacks[0][0] == _BOTTOM

    def step(self, row: int, character_class: int) -> int:
        """The row after one character."""
        following = int(self.table[row, character_class])
        if following == UNKNOWN:
            is_in, kinds, values = self.classes.is_in, self._kinds, self._values
            taken = [
                (place + 1, below)
                for place, below in self._stacks[row]
                if kinds[place] == _CHARACTERS and is_in(character_class, values[place])
            ]
            self._count(len(self._stacks[row]))
            following = self.row_of(self._closed(taken, {}))
            self.table[row, character_class] = following
        return following

    def step_text(self, row: int, text: str) -> int:
        """The row after a text."""
        for character in text:
            row = self.step(row, self.classes.of(character))
            if row == DEAD:
                break
        return row

    def may_begin(self, stacks: Stacks, low: int, high: int) -> bool:
        """Whether a character of this range of code points, inclusive, may come next."""
        meets, kinds, values = self.classes.meets, self._kinds, self._values
        return any(
            kinds[place] == _CHARACTERS and meets(values[place], low, high) for place, _ in stacks
        )

    def tokens_next(self, stacks: Stacks) -> list[tuple[TokenText, Stacks]]:
        """Whole tokens that may come next, each with the state after it."""
        return [
            (self.tokens[self._values[place]], self._closed([(place + 1, below)], {}))
            for place, below in stacks
            if self._kinds[place] == _TOKEN
        ]

    def union_of(self, states: Iterable[Stacks]) -> Stacks:
        """The state that any of these lead to."""
        return self._merged(state for stacks in states for state in stacks)

    def _forget(self) -> None:
        self._sets.clear()
        self._unions.clear()
        self._num_kept = 0
        self._rows.clear()
        self._stacks.clear()
        self.table = self._new_table()
        self._rows[()] = DEAD
        self._stacks.append(())

    def _new_table(self) -> np.ndarray:
        table = np.full((16, self.classes.count), UNKNOWN, np.int32)
        table[DEAD] = DEAD
        return table

    def _closed(
        self, resumed: list[tuple[int, _Below]], entered: dict[int, list[_Below]]
    ) -> Stacks:
        """The state with everything that comes next before a character or a whole token.

        ``resumed``: places reached by reading, with what is below. ``entered``: rules that begin
        here, with what is below; their empty alternatives are left to what comes after them.
        """
        kinds, values, ranks = self._kinds, self._values, self._ranks
        found: list[tuple[int, _Below]] = []
        seen: set[tuple[int, _Below]] = set()
        while resumed:
            top = resumed.pop()
            if top in seen:
                continue
            seen.add(top)
            self._count(1)
            place, below = top
            if kinds[place] == _RULE:
                self._enter(entered, place, below)
                if self._is_empty[values[place]]:
                    resumed.append((place + 1, below))
            elif kinds[place] == _END and below.stacks:
                resumed.extend(below.stacks)
            else:
                found.append((_BOTTOM if kinds[place] == _END else place, below))
        waiting = [(ranks[rule], rule) for rule in entered]
        heapq.heapify(waiting)
        done: dict[int, _Below] = {}
        while waiting:
            _, rule = heapq.heappop(waiting)
            several = entered.pop(rule, None)
            if several is None:
                continue
            if rule in done:
                several.append(done[rule])
            below = self._union(several)
            if below is done.get(rule):
                continue
            done[rule] = below
            self._count(len(self._fresh[rule]))
            for place in self._fresh[rule]:
                if kinds[place] != _RULE:
                    found.append((place, below))
                    continue
                inner = values[place]
                if inner not in entered:
                    heapq.heappush(waiting, (ranks[inner], inner))
                self._enter(entered, place, below)
        return self._merged(found)

    def _enter(self, entered: dict[int, list[_Below]], place: int, below: _Below) -> None:
        """The rule at this place begins; what follows the place comes after it."""
        if self._kinds[place + 1] != _END:
            below = self._set_of(((place + 1, below),))
        entered.setdefault(self._values[place], []).append(below)

    def _merged(self, tops: Iterable[tuple[int, _Below]]) -> Stacks:
        """Those with one place are one."""
        found: dict[int, list[_Below]] = {}
        for place, below in tops:
            found.setdefault(place, []).append(below)
        return tuple((place, self._union(found[place])) for place in sorted(found))

    def _union(self, several: list[_Below]) -> _Below:
        if len(several) == 1:
            return several[0]
        key = frozenset(several)
        if len(key) == 1:
            return several[0]
        known = self._unions.get(key)
        if known is None:
            tops = [top for one in key for top in one.stacks or ((_BOTTOM, one),)]
            self._count(len(tops))
            try:
                known = self._unions[key] = self._set_of(self._merged(tops))
            except RecursionError as error:
                raise TooManyStacksError("the grammar is nested too deeply here") from error
        return known

    def _set_of(self, stacks: Stacks) -> _Below:
        known = self._sets.get(stacks)
        if known is None:
            known = self._sets[stacks] = _Below(stacks)
        self._count(len(stacks))
        return known

    def _count(self, work: int) -> None:
        self.work += work
        self._num_kept += work
        if self.work > MAX_WORK:
            raise TooManyStacksError("the grammar goes on in too many ways here")


def compile_gbnf(grammar: str, root: str) -> PushdownAutomaton:
    """The automaton of a grammar, without any state but the first.

    Raises:
      GrammarError: it cannot be read, has no rule ``root``, or begins in too many ways.
    """
    rules = read_gbnf(grammar)
    if root not in rules or root.startswith("("):
        raise GrammarError(f"the grammar has no rule {root!r}")
    try:
        return PushdownAutomaton(rules, root)
    except TooManyStacksError as error:
        raise GrammarError(str(error)) from error
