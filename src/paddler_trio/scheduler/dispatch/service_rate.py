"""How fast requests are served, and so how long a client that was refused should wait."""

from __future__ import annotations

import math

import attrs

SHORTEST_S = 1
LONGEST_S = 60
_WEIGHT = 0.2


@attrs.define
class ServiceRate:
    """A moving average of the time between two endings, over all slots."""

    _interval_s: float | None = attrs.field(default=None, init=False)
    _last_s: float | None = attrs.field(default=None, init=False)

    def ended(self, now_s: float) -> None:
        """A request that held a slot has ended."""
        if self._last_s is not None:
            interval_s = now_s - self._last_s
            if self._interval_s is None:
                self._interval_s = interval_s
            else:
                self._interval_s += _WEIGHT * (interval_s - self._interval_s)
        self._last_s = now_s

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Whole seconds until the buffer, with ``waiting`` requests in it, has likely moved on."""
        if self._interval_s is None or self._last_s is None:
            return LONGEST_S // 6
        # a long time without any ending is better evidence than the average
        interval_s = max(self._interval_s, (now_s - self._last_s) * _WEIGHT)
        return min(LONGEST_S, max(SHORTEST_S, math.ceil(waiting * interval_s)))
