"""Durations, speeds and counts in few characters, for tables and lines that change all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NOTHING: Final = "-"
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def duration(ms: float | None) -> str:
    """Milliseconds, in the two largest units that matter; a dash for None."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{max(0, ms):.0f} ms"
    seconds = ms / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    hours, minutes_left = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes_left} min"
    days, hours_left = divmod(hours, 24)
    return f"{days} d {hours_left} h"


def exact(ms: float) -> str:
    """Return a duration with one more digit where seconds are few."""
    return f"{ms / 1000:.2f} s" if 1000 <= ms < 9995 else duration(ms)


def rate(per_s: float | None) -> str:
    """Tokens a second; a dash for None."""
    if per_s is None:
        return NOTHING
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else count(round(per_s))


def count(number: int | None) -> str:
    """``987``, ``12.3k``, ``4.5M``; a dash for None."""
    if number is None:
        return NOTHING
    if number < 10_000:
        return str(number)
    for power, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if number < 999.95 * power:
            return f"{number / power:.1f}{unit}"
    return f"{number / 1e12:.1f}T"


def share(part: float | None) -> str:
    """0..1 in hundredths; a dash for None."""
    return NOTHING if part is None else f"{part:.0%}"


def part_of(part: int | None, whole: int | None) -> str:
    """Return how much of ``whole`` is ``part``; a dash where that is not known."""
    return share(part / whole) if part is not None and whole else NOTHING


def sparkline(values: Sequence[float]) -> str:
    """A block for each value, from nothing to the largest of them."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    last = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(last, max(0, round(value / top * last)))] for value in values)
