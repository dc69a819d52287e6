"""Quantiles of latencies from counts in logarithmic buckets, exact to 5 %.

Each bucket is ``2 ** (1/8)`` times as wide as the one before, and stands for its geometric middle:
what is read differs from what was measured by at most a factor of ``2 ** (1/16)``, which is 4.4 %.
A histogram has at most 240 counts however many values there are, and histograms add up exactly: the
quantile of an hour is not the mean of quantiles of its minutes.
"""

from __future__ import annotations

import struct
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
_LAST: Final = NUM_BUCKETS - 1
_FORMS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Of a count in a block, by its bytes."""


@attrs.define(repr=False)
class LatencyHistogram:
    """See the module docstring. Times in seconds."""

    _counts: dict[int, int] = attrs.field(factory=dict)
    """The counts of the buckets that have any, by place."""

    def __repr__(self) -> str:
        return f"<LatencyHistogram of {self.count} values>"

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    def add(self, value_s: float, times: int = 1) -> None:
        """Count one more latency, or several of the same length."""
        place = int(BUCKETS_PER_OCTAVE * log2(value_s) + _OFFSET) if value_s > LEAST_S else 0
        if place > _LAST:
            place = _LAST
        self._counts[place] = self._counts.get(place, 0) + times

    def include(self, other: LatencyHistogram) -> None:
        """Count all of another one too."""
        counts = self._counts
        for place, number in other._counts.items():
            counts[place] = counts.get(place, 0) + number

    def without(self, before: LatencyHistogram) -> LatencyHistogram:
        """Return what has come since it was ``before``."""
        known = before._counts
        return LatencyHistogram(
            {
                place: number - known.get(place, 0)
                for place, number in self._counts.items()
                if number > known.get(place, 0)
            }
        )

    def copy(self) -> LatencyHistogram:
        """Return one that does not change with this one."""
        return LatencyHistogram(dict(self._counts))

    def quantile(self, share: float) -> float | None:
        """Return the smallest latency that at least this share of all does not exceed, in seconds.

        None if there is no latency. ``share`` is above 0, at most 1.
        """
        rank = ceil(share * self.count)
        if rank == 0:
            return None
        for place in sorted(self._counts):
            rank -= self._counts[place]
            if rank <= 0:
                return LEAST_S * exp2((place + 0.5) / BUCKETS_PER_OCTAVE)
        raise AssertionError("a rank beyond the count")

    def clear(self) -> None:
        """Begin anew."""
        self._counts = {}

    def pack(self) -> bytes:
        """Return a block: how many bytes a count has (1, 2, 4 or 8), the places of all buckets that
        have one, a byte each, and the counts, the lowest byte first. Empty without any."""
        counts = self._counts
        if not counts:
            return b""
        most = max(counts.values())
        width = next(width for width in _FORMS if most < 1 << 8 * width)
        form = f"<{len(counts)}{_FORMS[width]}"
        return bytes((width, *counts)) + struct.pack(form, *counts.values())

    @classmethod
    def unpack(cls, block: bytes) -> LatencyHistogram:
        """Return what ``pack`` was called of; ValueError for what it did not make."""
        if not block:
            return cls()
        form = _FORMS.get(block[0])
        if form is None or (len(block) - 1) % (1 + block[0]):
            raise ValueError("no block of a histogram")
        number = (len(block) - 1) // (1 + block[0])
        places = block[1 : 1 + number]
        counts = dict(
            zip(places, struct.unpack_from(f"<{number}{form}", block, 1 + number), strict=True)
        )
        if len(counts) < number or (counts and max(places) > _LAST) or 0 in counts.values():
            raise ValueError("no buckets of a histogram")
        return cls(counts)
