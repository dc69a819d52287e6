"""Decide whose turn it is where sequences are computed with different adapters.

All sequences of a pass have the same adapters, so those of one choice share passes and the others
wait. The choices take turns in the order in which they began to wait. A turn has one pass at least,
and goes on for its part of ``ROUND_MS``: to change adapters costs some milliseconds, which would be
half of the time of a small model that changed them with each pass. With ``n`` choices nobody waits
for more than ``n - 1`` turns, however many sequences the others have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from paddler_trio.scheduler.batching.sequences import AdapterScales, Sequence

ROUND_MS: Final = 100.0
"""The time in which every choice has its turn, where passes are shorter than its part of it."""


@attrs.define
class AdapterTurns:
    """``now``: the choice whose turn it is."""

    now: AdapterScales = ()
    _used_ms: float = attrs.field(default=0.0, init=False)
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
            part_ms = ROUND_MS / len(choices)
            if not self._waiting or not self._has_passed or self._used_ms < part_ms:
                return
        if not self._waiting:
            return  # nothing runs
        is_waiting_again = self.now in choices
        before, self.now = self.now, next(iter(self._waiting))
        del self._waiting[self.now]
        if is_waiting_again:
            self._waiting[before] = None
        self._used_ms, self._has_passed = 0.0, False

    def passed(self, took_ms: float) -> None:
        """Note that a pass of this turn took so long; one without anything to compute ends it."""
        self._has_passed = True
        self._used_ms += took_ms if took_ms > 0 else ROUND_MS

    def members(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those of the sequences whose turn it is."""
        return [sequence for sequence in sequences if sequence.adapters == self.now]
