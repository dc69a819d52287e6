"""Scales of plots: which numbers stand at an axis, and where a value is on it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

MAX_TICKS: Final = 7
LOG_FROM: Final = 30.0
"""Values that differ by more than this factor are drawn on a logarithmic axis."""
LOG_SPAN: Final = 1e5
"""From its one end to the other; smaller values are at its low end."""

LEAST_TOP: Final = 1e-12
"""Of an axis: nothing that is measured is smaller, and a float near zero has no logarithm."""


@attrs.frozen
class Tick:
    """A number at an axis."""

    value: float
    label: str


@attrs.frozen(kw_only=True)
class Axis:
    """An axis from ``low`` to ``high``, which is more; logarithmic only if ``low`` is more than
    0."""

    title: str
    low: float
    high: float
    ticks: tuple[Tick, ...]
    is_log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what lies beyond is at the end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def value_axis(title: str, values: Sequence[float], *, may_be_log: bool = True) -> Axis:
    """Return an axis for values >= 0: from 0, or logarithmic if they differ very much."""
    positive = [value for value in values if value > 0]
    top = max(LEAST_TOP, max(positive, default=1.0))
    bottom = min(positive, default=1.0)
    is_wide = bottom >= LEAST_TOP and top / bottom > LOG_FROM
    if may_be_log and is_wide and len(positive) == len(values):
        return _log_axis(title, max(bottom, top / LOG_SPAN), top)
    step = _step(top / (MAX_TICKS - 1))
    high = step * math.ceil(top / step - 1e-9)
    ticks = (Tick(step * n, label(step * n)) for n in range(round(high / step) + 1))
    return Axis(title=title, low=0.0, high=high, ticks=tuple(ticks))


def level_axis(title: str, levels: Sequence[int]) -> Axis:
    """Return a logarithmic axis for at least two numbers of clients, which are its labels."""
    ordered = sorted(set(levels))
    ticks = tuple(Tick(level, str(level)) for level in ordered)
    return Axis(title=title, low=ordered[0], high=ordered[-1], ticks=ticks, is_log=True)


def share_axis(title: str) -> Axis:
    """Return an axis from 0 to 100 %."""
    ticks = tuple(Tick(quarter / 4, f"{25 * quarter} %") for quarter in range(5))
    return Axis(title=title, low=0.0, high=1.0, ticks=ticks)


def label(value: float) -> str:
    """Return the label of a value at an axis, with no digit more than is needed."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.6g}"


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten, and at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _log_axis(title: str, bottom: float, top: float) -> Axis:
    powers = range(math.floor(math.log10(bottom)) - 1, math.ceil(math.log10(top)) + 2)
    shown: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        marks = [factor * 10.0**power for power in powers for factor in factors]
        low = max(mark for mark in marks if mark <= bottom * (1 + 1e-9))
        high = min(mark for mark in marks if mark >= top * (1 - 1e-9))
        shown = [mark for mark in marks if low <= mark <= high]
        if len(shown) <= MAX_TICKS + 1:
            break
    ticks = tuple(Tick(mark, label(mark)) for mark in shown)
    return Axis(title=title, low=shown[0], high=shown[-1], ticks=ticks, is_log=True)
