"""A plot of lines as SVG that stands in a page: colours and fonts are the page's style. Pure.

Every mark has a title that browsers show as a tooltip. What a series is called, the legend of the
page says; classes tell them apart by colour and by the pattern of the line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
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


WIDTH: Final = 640
HEIGHT: Final = 400
LEFT: Final = 64
RIGHT: Final = 48
TOP: Final = 28
BOTTOM: Final = 46
LABEL_PX: Final = 14
"""Between two labels at the ends of lines."""
TICK_PX: Final = 26
"""Between two numbers at the lower axis."""


@attrs.frozen
class Mark:
    """A point. ``text`` is its tooltip; ``low`` and ``high`` are the ends of a whisker."""

    x: float
    y: float
    text: str = ""
    low: float | None = None
    high: float | None = None


@attrs.frozen(kw_only=True)
class Series:
    """One line.

    Args:
      style: classes of the page's style.
      end_label: a word beside its last point; empty for none.
      shift_px: to the right, so that whiskers of two lines do not cover each other.
      is_steps: the value stays until the next point, as in a distribution; without markers.
    """

    style: str
    marks: tuple[Mark, ...]
    end_label: str = ""
    shift_px: int = 0
    is_steps: bool = False


def line_plot(
    series: Sequence[Series], x_axis: Axis, y_axis: Axis, *, identity: str, summary: str
) -> str:
    """The whole ``<svg>``; ``summary`` is what a screen reader says instead."""
    frame = _Frame(x_axis, y_axis)
    drawn = [each for each in series if each.marks]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{identity}">',
        f'<title id="{identity}">{escape(summary)}</title>',
        *frame.grid(),
        *(part for each in drawn for part in frame.line(each)),
        *frame.end_labels(drawn),
        "</svg>",
    ]
    return "\n".join(parts)


@attrs.frozen
class _Frame:
    x_axis: Axis
    y_axis: Axis

    def x(self, value: float) -> float:
        return round(LEFT + self.x_axis.place(value) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - self.y_axis.place(value) * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self) -> Iterator[str]:
        left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
        for tick in self.y_axis.ticks:
            y = self.y(tick.value)
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
            yield _text("tick end", left - 8, y + 4, tick.label)
        yield f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        free = float(-WIDTH)
        for tick in self.x_axis.ticks:
            x = self.x(tick.value)
            yield f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
            if x - free >= TICK_PX:
                free = x
                yield _text("tick middle", x, bottom + 19, tick.label)
        yield _text("title middle", (left + right) / 2, HEIGHT - 6, self.x_axis.title)
        yield _text("title", 0, 12, self.y_axis.title)

    def line(self, series: Series) -> Iterator[str]:
        shift = series.shift_px
        points = [(self.x(mark.x) + shift, self.y(mark.y)) for mark in series.marks]
        yield f'<g class="{escape(series.style)}">'
        yield f'<path class="line" d="{_steps(points) if series.is_steps else _path(points)}"/>'
        for mark, (x, y) in zip(series.marks, points, strict=True):
            if mark.low is not None and mark.high is not None and mark.high > mark.low:
                low, high = self.y(mark.low), self.y(mark.high)
                path = f"M{x - 5} {high}h10M{x} {high}V{low}M{x - 5} {low}h10"
                yield f'<path class="whisker" d="{path}"/>'
            if not series.is_steps:
                title = f"<title>{escape(mark.text)}</title>"
                yield f'<circle class="mark" cx="{x}" cy="{y}" r="4">{title}</circle>'
                yield f'<circle class="reach" cx="{x}" cy="{y}" r="12">{title}</circle>'
        yield "</g>"

    def end_labels(self, series: Sequence[Series]) -> Iterator[str]:
        """Beside the last points, moved apart where they would meet; in the order of the lines."""
        ends = [
            (self.y(each.marks[-1].y), self.x(each.marks[-1].x), each.end_label)
            for each in series
            if each.end_label
        ]
        free = float(-HEIGHT)
        for y, x, words in sorted(ends):
            free = max(y + 4, free + LABEL_PX)
            yield _text("tick", x + 9, round(free, 1), words)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _steps(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    return f"M{x} {y}" + "".join(f"H{x}V{y}" for x, y in rest)


def _text(style: str, x: float, y: float, words: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(words)}</text>'
