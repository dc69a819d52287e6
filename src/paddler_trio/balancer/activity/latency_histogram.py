"""Quantiles of latencies from counts in logarithmic buckets, exact to 5 %.

Each bucket is ``2 ** (1/8)`` times as wide as the one before, and stands for its geometric middle:
what is read differs from what was measured by at most a factor of ``2 ** (1/16)``, which is 4.4 %.
A histogram is as large with a million values as with one. Pure.
"""

from __future__ import annotations

from math import ceil, exp2, log2
from typing import Final

import attrs

BUCKETS_PER_OCTAVE: Final = 8
LEAST_S: Final = 1e-5
"""Shorter latencies count as this one."""
OCTAVES: Final = 30
"""From there: up to three hours."""
NUM_BUCKETS: Final = OCTAVES * BUCKETS_PER_OCTAVE
_OFFSET: Final = -BUCKETS_PER_OCTAVE * log2(LEAST_S)


@attrs.define(eq=False, repr=False)
class LatencyHistogram:
    """See the module docstring. Times in seconds."""

    _counts: list[int] = attrs.field(factory=lambda: [0] * NUM_BUCKETS, init=False)

    def __repr__(self) -> str:
        return f"<LatencyHistogram of {self.count} values>"

    @property
    def count(self) -> int:
        return sum(self._counts)

    def add(self, value_s: float, times: int = 1) -> None:
        """Count one more latency, or several of the same length."""
        place = int(BUCKETS_PER_OCTAVE * log2(value_s) + _OFFSET) if value_s > LEAST_S else 0
        try:
            self._counts[place] += times
        except IndexError:
            self._counts[-1] += times

    def quantile(self, share: float) -> float | None:
        """Return the smallest latency that at least this share of all does not exceed, in seconds.

        None if there is no latency. ``share`` is above 0, at most 1.
        """
        rank = ceil(share * self.count)
        if rank == 0:
            return None
        for place, number in enumerate(self._counts):
            rank -= number
            if rank <= 0:
                return LEAST_S * exp2((place + 0.5) / BUCKETS_PER_OCTAVE)
        raise AssertionError("a rank beyond the count")

    def clear(self) -> None:
        """Begin anew."""
        self._counts = [0] * NUM_BUCKETS
