"""Tell whose requests keep the slots of an upstream server busy: ours, or somebody else's.

What we sent and what has not ended is counted here; the server says how many of its slots are busy.
Both are true at different moments: while the server's answer is on its way, requests of ours start
and end. So the largest number that we had in flight meanwhile is taken off, and what is left counts
as somebody else's only when two answers in a row say so. Less is believed at once.

A request that we cancelled may keep its slot: some builds notice a closed connection late, or not
at all. Such a slot is ``still_generating`` until an answer has no room for it beside the fewest
that we had in flight, or for a bounded time. A request that waits in the server's own queue can
hide one: then it counts as somebody else's, once that request has its slot.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

LONGEST_AFTERLIFE_S: Final = 30.0
"""The afterlife of a cancelled request; a slot that is busy after that is somebody else's to us."""


@attrs.define(eq=False)
class SlotAccount:
    """Times are seconds of any clock that does not go back."""

    in_flight: int = attrs.field(default=0, init=False)
    """Requests that we sent and that have neither ended nor been cancelled."""
    busy_elsewhere: int = attrs.field(default=0, init=False)
    """Slots that others keep busy."""
    still_generating: int = attrs.field(default=0, init=False)
    """Slots that our cancelled requests may still keep busy."""
    _largest: int = attrs.field(default=0, init=False)
    _least: int = attrs.field(default=0, init=False)
    """The most and the fewest in flight since the read began."""
    _excess_before: int = attrs.field(default=0, init=False)
    _is_reading: bool = attrs.field(default=False, init=False)
    _cancelled: deque[float] = attrs.field(factory=deque, init=False)
    """The times at which those in ``still_generating`` were cancelled, the oldest first."""
    _num_readable: int = attrs.field(default=0, init=False)
    """The number of these that were cancelled before the read began."""

    @property
    def is_calm(self) -> bool:
        """Return whether nothing of ours is there, and the last answer had nothing of others."""
        return not (self.in_flight or self.still_generating or self._excess_before)

    def started(self) -> None:
        """Note that a request is about to be sent."""
        self.in_flight += 1
        self._largest = max(self._largest, self.in_flight)

    def ended(self, now_s: float, *, was_cancelled: bool) -> None:
        """Note that a request came to its end, or its connection was closed before."""
        assert self.in_flight, "more requests ended than were started"
        self.in_flight -= 1
        self._least = min(self._least, self.in_flight)
        if was_cancelled:
            self._cancelled.append(now_s)
            self.still_generating += 1

    def read_begins(self) -> None:
        """Note that the server is about to be asked."""
        self._is_reading = True
        self._largest = self._least = self.in_flight
        self._num_readable = len(self._cancelled)

    def read_ended(self, num_busy: int) -> None:
        """Note that the server answered that so many of its slots are busy."""
        assert self._is_reading, "an answer without a question"
        self._is_reading = False
        num_free = self._num_readable - max(0, num_busy - self._least)
        for _ in range(num_free):
            self._cancelled.popleft()
        self.still_generating = len(self._cancelled)
        excess = max(0, num_busy - self._largest - self.still_generating)
        self.busy_elsewhere = min(excess, self._excess_before)
        self._excess_before = excess

    def read_failed(self) -> None:
        """Note that there was no answer: what was known stays, and proves nothing with the next."""
        self._is_reading = False
        self._excess_before = self.busy_elsewhere

    def forget(self) -> None:
        """Note that the server tells nothing any more, or is a new process: only our count is
        left."""
        self._is_reading = False
        self.busy_elsewhere = self.still_generating = self._excess_before = 0
        self._cancelled.clear()
        self._num_readable = 0

    def expire(self, now_s: float) -> None:
        """Give up those that were cancelled too long ago."""
        while self._cancelled and self._cancelled[0] <= now_s - LONGEST_AFTERLIFE_S:
            self._cancelled.popleft()
            self._num_readable = max(0, self._num_readable - 1)
        self.still_generating = len(self._cancelled)
