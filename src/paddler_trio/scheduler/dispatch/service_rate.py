"""Measure how fast requests are served, and so how long a client that was refused should wait."""

from __future__ import annotations

import math

import attrs

SHORTEST_S = 1
LONGEST_S = 60
_WEIGHT = 0.2


@attrs.define
class ServiceRate:
    """A moving average of the time between two endings while requests wait, over all slots.

    While none waits, endings come as requests do: that says nothing of how fast a queue moves.
    """

    _interval_s: float | None = attrs.field(default=None, init=False)
    _since_s: float | None = attrs.field(default=None, init=False)
    """The time at which the last one ended, or the first one began to wait; None while none
    waits."""

    def waits(self, now_s: float) -> None:
        """Note that a request has come for which there is no slot, and perhaps no room."""
        if self._since_s is None:
            self._since_s = now_s

    def ended(self, now_s: float, *, waiting: int) -> None:
        """Note that a request that held a slot has ended; ``waiting``: who still waits now."""
        if self._since_s is not None:
            interval_s = now_s - self._since_s
            if self._interval_s is None:
                self._interval_s = interval_s
            else:
                self._interval_s += _WEIGHT * (interval_s - self._interval_s)
        self._since_s = now_s if waiting else None

    def wait_s(self, places: int, now_s: float) -> float | None:
        """Return when so many more requests will likely have got a slot; None if it is not
        known."""
        interval_s = self._interval_s
        if interval_s is None:
            return None
        if self._since_s is not None:
            # a long time without any ending is better evidence than the average
            interval_s = max(interval_s, (now_s - self._since_s) * _WEIGHT)
        return places * interval_s

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Return the whole seconds after which all of these and one more have likely got a slot."""
        wait_s = self.wait_s(waiting + 1, now_s)
        if wait_s is None:
            return LONGEST_S // 6
        return min(LONGEST_S, max(SHORTEST_S, math.ceil(wait_s)))
