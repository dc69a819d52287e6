"""What was measured, beside its goal; and whether a figure stays the same over a long time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import attrs


@attrs.frozen
class Figure:
    """``most`` and ``least`` are goals; a figure without one only informs."""

    part: str
    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None

    @property
    def is_good(self) -> bool:
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    @property
    def goal(self) -> str:
        if self.most is not None:
            return f"<= {self.most:g}"
        return "" if self.least is None else f">= {self.least:g}"


@attrs.frozen
class Trend:
    """How something went over a time.

    Args:
      slope_per_hour: of the line with the least squares, as a share of the mean.
      change: from the mean of the first third to that of the last, as a share of the first.
    """

    mean: float
    slope_per_hour: float
    change: float


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """Of at least three samples, at different times, whose mean is not 0."""
    if len(times_s) != len(values) or len(values) < 3:
        raise ValueError(f"{len(values)} values at {len(times_s)} times; three are needed")
    mean_s, mean = fmean(times_s), fmean(values)
    spread = sum((at_s - mean_s) ** 2 for at_s in times_s)
    slope = sum(
        (at_s - mean_s) * (value - mean) for at_s, value in zip(times_s, values, strict=True)
    )
    third = len(values) // 3
    first, last = fmean(values[:third]), fmean(values[-third:])
    return Trend(mean, slope / spread * 3600 / mean, last / first - 1)


def table(figures: Sequence[Figure]) -> str:
    """One line for each figure."""
    lines = [f"{'':8} {'':54} {'measured':>12} {'':8} goal"]
    for each in figures:
        mark = "" if each.is_good else "   MISSED"
        shown = f"{each.value:,.0f}" if abs(each.value) >= 1000 else f"{each.value:,.3g}"
        lines.append(f"{each.part:8} {each.name:54} {shown:>12} {each.unit:8} {each.goal}{mark}")
    return "\n".join(lines)
