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
from array import array
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TypeAlias

import attrs
import numpy as np

from paddler_trio.errors import PaddlerError
from paddler_trio.language.grammars.character_classes import CharacterClasses
from paddler_trio.language.grammars.gbnf_reader import TokenText
from paddler_trio.language.grammars.transition_table import DEAD, UNKNOWN, TransitionTable
from paddler_trio.wire.engine.grammar_rules import GrammarRules

MAX_WORK = 50_000
"""Stacks looked at in one piece of work: a tenth of a second, for which other answers wait.
Lists of 300 kinds of objects take half of it."""
MAX_KEPT_STACKS = 50_000
MAX_TABLE_BYTES = 4 * 1024 * 1024
"""What is kept for the next texts; beyond it all of it is forgotten."""
BYTES_OF_WORK = 256
"""So many bytes of the table count as a stack that is looked at: both take room and time."""

Stacks: TypeAlias = "tuple[tuple[int, _Below], ...]"
"""Places on top of stacks, ascending, each with the stacks below it."""


class PlaceKind(IntEnum):
    """What stands at a place of a grammar."""

    END = 0
    RULE = 1
    CHARACTERS = 2
    TOKEN = 3


_END, _RULE, _CHARACTERS, _TOKEN = map(int, PlaceKind)
_BOTTOM = 0
"""The place at which nothing is left to be read."""


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

    ``table``: the row of the state after each class of the vocabulary's characters. ``work``:
    stacks looked at since ``begin``. ``tokens``: whole tokens that the grammar names.
    """

    def __init__(self, rules: GrammarRules, code_points: np.ndarray) -> None:
        self.lock = threading.Lock()
        self._kinds, self._values = rules.kinds, _numbers_of(rules.values)
        self._is_empty, self._ranks = rules.are_empty, _numbers_of(rules.ranks)
        self._begin_starts = _numbers_of(rules.begin_starts)
        self._begins = _numbers_of(rules.begins)
        self.classes = CharacterClasses(
            _numbers_of(rules.set_starts),
            _numbers_of(rules.set_firsts),
            _numbers_of(rules.set_lasts),
            code_points,
        )
        self.tokens = [TokenText(text.lstrip("!"), text[0] == "!") for text in rules.tokens]
        self._sets: dict[Stacks, _Below] = {}
        self._unions: dict[frozenset[_Below], _Below] = {}
        self.work = self._num_kept = 0
        self._rows: dict[Stacks, int] = {}
        self._stacks: list[Stacks] = []
        self._others: dict[tuple[int, int], int] = {}
        """Transitions by classes that no token holds whole."""
        self.table = TransitionTable(self.classes.count)
        self._forget()
        bottom = _Below(())
        is_empty = self._is_empty[rules.root]
        self.start = self._closed([(_BOTTOM, bottom)] if is_empty else [], {rules.root: [bottom]})

    def begin(self) -> None:
        """A piece of work begins; rows that were given out before mean nothing any more."""
        self.work = 0

    def tidy(self) -> bool:
        """A piece of work is over; forget all states if they are too many to be kept: whether."""
        is_full = self.table.nbytes > MAX_TABLE_BYTES or self._num_kept > MAX_KEPT_STACKS
        if is_full:
            self._forget()
        return is_full

    def row_of(self, stacks: Stacks) -> int:
        """The row of this state in ``table``."""
        row = self._rows.get(stacks)
        if row is None:
            row = self._rows[stacks] = len(self._stacks)
            self._stacks.append(stacks)
            self._count(len(stacks))
            self._count(self.table.add_row() // BYTES_OF_WORK)
        return row

    def stacks_of(self, row: int) -> Stacks:
        """The state of this row."""
        return self._stacks[row]

    def may_end(self, stacks: Stacks) -> bool:
        """Whether nothing more has to come."""
        return bool(stacks) and stacks[0][0] == _BOTTOM

    def step(self, row: int, character_class: int) -> int:
        """The row after one character."""
        is_kept = character_class < self.classes.count
        if is_kept:
            following = self.table.after_one(row, character_class)
        else:
            following = self._others.get((row, character_class), UNKNOWN)
        if following == UNKNOWN:
            is_in, kinds, values = self.classes.is_in, self._kinds, self._values
            taken = [
                (place + 1, below)
                for place, below in self._stacks[row]
                if kinds[place] == _CHARACTERS and is_in(character_class, values[place])
            ]
            self._count(len(self._stacks[row]))
            following = self.row_of(self._closed(taken, {}))
            if is_kept:
                added_bytes = self.table.set(row, character_class, following)
                self._count(added_bytes // BYTES_OF_WORK)
            else:
                self._others[row, character_class] = following
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

    def tokens_next(self, stacks: Stacks) -> list[TokenText]:
        """Whole tokens that may come next."""
        return [self.tokens[self._values[p]] for p, _ in stacks if self._kinds[p] == _TOKEN]

    def after_whole(self, stacks: Stacks, is_it: Callable[[TokenText], bool]) -> list[Stacks]:
        """The states after a token, one for each that may come next and is it."""
        return [
            self._closed([(place + 1, below)], {})
            for place, below in stacks
            if self._kinds[place] == _TOKEN and is_it(self.tokens[self._values[place]])
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
        self.table.clear()
        self._others.clear()
        self.classes.forget()
        self._rows[()] = DEAD
        self._stacks.append(())

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
            begins = self._begins[self._begin_starts[rule] : self._begin_starts[rule + 1]]
            self._count(len(begins))
            for place in begins:
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


def _numbers_of(int32s: bytes) -> array[int]:
    return array("i", int32s)
