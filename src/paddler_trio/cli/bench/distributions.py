"""Cumulative distributions as lines, and which of many are drawn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from paddler_trio.cli.bench.report.svg_plot import Mark

STEPS: Final = 5
"""Shades of lines, and so how many there are at most."""
MAX_POINTS: Final = 200
"""Of a line."""


def spread(levels: Sequence[int], count: int) -> list[int]:
    """Return at most so many of them, the first and the last among them, evenly apart."""
    if len(levels) <= count:
        return list(levels)
    return [levels[round(n * (len(levels) - 1) / (count - 1))] for n in range(count)]


def step_of(place: int, count: int) -> int:
    """The shade from 1 to 5 of the line at this place; the last is the darkest."""
    return STEPS if count == 1 else 1 + round(place * (STEPS - 1) / (count - 1))


def distribution(ordered: Sequence[float]) -> Iterator[Mark]:
    """The share of the values, in seconds, that are no larger, at each of them in milliseconds; at
    most 200 of them."""
    count = len(ordered)
    yield Mark(ordered[0] * 1000, 0.0)
    if count <= MAX_POINTS:
        ranks = range(1, count + 1)
        for rank in ranks:
            yield Mark(ordered[rank - 1] * 1000, rank / count)
        return
    for part in range(1, MAX_POINTS + 1):
        rank = -(-part * count // MAX_POINTS)
        yield Mark(ordered[rank - 1] * 1000, rank / count)
