"""Context sizes worth trying: few, and numbers that people may type.

llama.cpp gives each slot a multiple of 256 cells. Of these, the sizes with four significant bits:
256, 512, ... 2048, 2304, 2560 and so on, at most an eighth apart, so that little is lost by
rounding and a hundred sizes reach from nothing to a million tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddler_trio.scheduler.fit.fit_values import CELLS_STEP

_STEPS_AN_OCTAVE = 8


def sizes_below(limit: int, *, slots: int, least: int = CELLS_STEP) -> list[int]:
    """Return context sizes for this many slots that are less than ``limit`` tokens, ascending.

    Args:
      least: cells of a slot, at least.
    """
    found: list[int] = []
    for cells in _cells():
        if cells * slots >= limit:
            return found
        if cells >= least:
            found.append(cells * slots)
    raise AssertionError("the sizes have no end")


def sizes_up_to(n_ctx_train: int, *, slots: int, least: int) -> list[int]:
    """Return the sizes up to ``n_ctx_train`` cells a slot, which is the last one; never empty."""
    most = max(1, n_ctx_train) * slots
    return [*sizes_below(most, slots=slots, least=min(least, n_ctx_train)), most]


def _cells() -> Iterator[int]:
    cells = step = CELLS_STEP
    while True:
        yield cells
        cells += step
        if cells == 2 * _STEPS_AN_OCTAVE * step:
            step *= 2
