"""Decide whose turn it is where sequences are computed with different adapters.

All sequences of a pass have the same adapters, so those of one choice share passes and the others
wait. The choices take turns in the order in which they began to wait. With ``n`` choices nobody
waits for more than ``n - 1`` turns, however many sequences the others have.

To change adapters costs some milliseconds, which would be more than half of the time of a small
model that changed them with each pass. So a turn computes for ``WORTH`` times as long, but takes no
longer than its part of ``ROUND_MS``; it has one pass in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from paddler_trio.scheduler.batching.sequences import AdapterScales, Sequence

ROUND_MS: Final = 250.0
"""The time in which every choice has its turn, where passes are shorter than its part of it."""
WORTH: Final = 96
"""A change costs about a hundredth of a turn by itself, and some more since what was in the caches
of the processor is not there any more."""


@attrs.define
class AdapterTurns:
    """``switch_ms``: the computing time of a change; ``now``: the choice whose turn it is."""

    switch_ms: float = 0.0
    now: AdapterScales = attrs.field(default=(), init=False)
    _used_ms: float = attrs.field(default=0.0, init=False)
    _ran_ms: float = attrs.field(default=0.0, init=False)
    _has_passed: bool = attrs.field(default=False, init=False)
    """The turn had a pass."""
    _waiting: dict[AdapterScales, None] = attrs.field(factory=dict, init=False)
    """The other choices, in the order in which they began to wait."""

    def begin(self, running: Iterable[Sequence]) -> None:
        """Decide before each pass; all of ``running`` have something to compute."""
        choices = dict.fromkeys([sequence.adapters for sequence in running])
        if len(choices) == 1 and self.now in choices and not self._waiting:
            return  # nearly always
        self._waiting = {choice: None for choice in self._waiting if choice in choices}
        self._waiting |= {choice: None for choice in choices if choice != self.now}
        if self.now in choices:
            is_worth_it = self._ran_ms < WORTH * self.switch_ms
            has_time = self._used_ms < ROUND_MS / len(choices) and is_worth_it
            if not self._waiting or not self._has_passed or has_time:
                return
        if not self._waiting:
            return  # nothing runs
        is_waiting_again = self.now in choices
        before, self.now = self.now, next(iter(self._waiting))
        del self._waiting[self.now]
        if is_waiting_again:
            self._waiting[before] = None
        self._used_ms, self._ran_ms, self._has_passed = 0.0, 0.0, False

    def passed(self, took_ms: float, ran_ms: float) -> None:
        """Note that a pass of this turn took so long, and was computed for so long: others may have
        the core as well. One without anything to compute ends the turn."""
        self._has_passed = True
        self._used_ms += took_ms if took_ms > 0 else ROUND_MS
        self._ran_ms += ran_ms

    def members(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those of the sequences whose turn it is."""
        return [sequence for sequence in sequences if sequence.adapters == self.now]
