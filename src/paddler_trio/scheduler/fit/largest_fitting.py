"""The largest value of a list with which a load fits, found with few dry runs.

What a load takes on a device grows with its context and with its layers there, and nearly in
proportion: the KV cache is affine in the number of cells (windows of attention and recurrent
states are constants, from some size on), weights are affine in the number of equal layers, compute
buffers are affine in the cells that attention looks at. So a straight line through two dry runs
names the place where the memory ends, to within an entry or two, and a third and fourth dry run
prove it: this one fits, the next one does not. Where a line leads nowhere (a bend, a layer larger
than the others) every second step halves what is left, so the number of dry runs is bounded by
twice the logarithm of the list's length.

Nothing is returned that was not dry-run and found to fit, whatever the line said.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.scheduler.fit.fit_values import LoadShape, Need

DryRuns: TypeAlias = Generator[LoadShape, Need | None, "Fitting | None"]
"""Yields loads, is sent what each takes: None if llama.cpp refuses it."""
Excess: TypeAlias = Callable[[Need], "Sequence[tuple[int, int]]"]
"""``(needed, available)`` of every device that counts."""


@attrs.frozen
class Fitting:
    """A load that was dry-run and fits."""

    value: int
    shape: LoadShape
    need: Need


def largest_fitting(
    values: Sequence[int],
    shape_of: Callable[[int], LoadShape],
    pairs_of: Excess,
    *,
    above: tuple[int, Need] | None = None,
) -> DryRuns:
    """Return the last of ``values`` with which the load fits, or None if the first does not.

    Args:
      values: ascending; the need must not shrink with them, or a smaller one than the largest
        may be found.
      shape_of: the load for a value.
      above: a value beyond all of ``values`` that is known not to fit, and what it takes.
    """
    if not values:
        return None
    if above is None:
        top = values[-1]
        need = yield shape_of(top)
        if need is not None and _fits(need, pairs_of):
            return Fitting(top, shape_of(top), need)
        above = None if need is None else (top, need)
        values = values[:-1]
        if not values:
            return None
    first = yield shape_of(values[0])
    if first is None or not _fits(first, pairs_of):
        return None
    best = Fitting(values[0], shape_of(values[0]), first)
    low, high = 0, len(values)  # values[low] fits; values[high], or what is above, does not
    halve = False
    while high - low > 1:
        middle = (low + high) // 2
        guess = None if halve or above is None else _crossing(best, above, pairs_of)
        place = (
            middle
            if guess is None
            else min(max(bisect_right(values, guess) - 1, low + 1), high - 1)
        )
        width = high - low
        shape = shape_of(values[place])
        need = yield shape
        if need is not None and _fits(need, pairs_of):
            best, low = Fitting(values[place], shape, need), place
        else:
            high = place
            above = None if need is None else (values[place], need)
        halve = not halve and high - low > max(1, width // 2)
    return best


def _fits(need: Need, pairs_of: Excess) -> bool:
    return all(needed <= available for needed, available in pairs_of(need))


def _crossing(best: Fitting, above: tuple[int, Need], pairs_of: Excess) -> float:
    """Return where the straight line between the two leaves what is available, on the device where
    it does so first."""
    value, need = above
    crossing = math.inf
    for (low, available), (high, _) in zip(pairs_of(best.need), pairs_of(need), strict=True):
        if high > low:
            part = (available - low) / (high - low)
            crossing = min(crossing, best.value + part * (value - best.value))
    return crossing
