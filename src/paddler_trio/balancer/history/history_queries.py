"""Read the history file. All of it blocks; HistoryError."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.balancer.history.history_file import HistoryFile
from paddler_trio.scheduler.limits.periods import day_text, first_day, month_text
from paddler_trio.scheduler.metering.latency_histogram import LatencyHistogram
from paddler_trio.scheduler.metering.time_samples import (
    LATENCIES,
    LEVELS,
    NUMBERS,
    OTHER,
    Kind,
    Sample,
)
from paddler_trio.scheduler.metering.time_steps import Plan

MAX_SERIES: Final = 8
"""That are shown by name; the rest are one more."""
MAX_ROWS: Final = 10_000
"""Of usage."""

By: TypeAlias = Literal["key", "user", "model"]
Per: TypeAlias = Literal["day", "month", "all"]
Row: TypeAlias = "tuple[int | float | None, ...]"

_NUMBERS: Final = ", ".join((*NUMBERS, *LEVELS))
_SUMS: Final = ", ".join(
    (*(f"sum({name})" for name in NUMBERS), *(f"max({name})" for name in LEVELS))
)
_IN_RANGE: Final = "step = ? AND start >= ? AND start < ?"
_OF_KIND: Final = "series IN (SELECT id FROM series WHERE kind = ?)"
_RANKED: Final = (
    "SELECT series.id, name FROM sample JOIN series ON id = series "  # noqa: S608  # our names
    f"WHERE {_IN_RANGE} AND kind = ? GROUP BY id "
    "ORDER BY sum(generated_tokens + prompt_tokens) DESC, sum(requests) DESC, name"
)
_GROUPS: Final[dict[By, tuple[str, ...]]] = {
    "key": ("key",),
    "user": ("key", "user"),
    "model": ("model",),
}
"""A user is one of a key: two keys may name different people alike."""


@attrs.frozen
class SeriesRows:
    """One line: a name, and rows of a moment and ``time_samples.FIELDS``; ``is_other``: it is of
    all that are not shown by name, without latencies."""

    name: str
    rows: Sequence[Row]
    is_other: bool = False


@attrs.frozen(kw_only=True)
class UsageRow:
    """One line of usage; what is not asked for apart is None.

    Args:
      period: ``2026-11-29``, ``2026-11`` or ``all``, UTC.
      last_s: when the last request ended or was refused, seconds of Unix.
    """

    period: str
    key: str | None = None
    user: str | None = None
    model: str | None = None
    requests: int
    failed: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    last_s: int


def series_of(
    file: HistoryFile, plan: Plan, kind: Kind, only: str | None = None
) -> list[SeriesRows]:
    """Return the series of a kind, the busiest first; of many only some by name.

    Args:
      only: the one that is asked for.
    """
    with file.using() as database:
        ranked = [
            (number, name)
            for number, name in database.execute(
                _RANKED,
                (plan.step_s, plan.begin, plan.end, kind),
            )
        ]
        if only is not None:
            ranked = [each for each in ranked if each[1] == only]
        shown = [each for each in ranked if each[1] != OTHER or only][:MAX_SERIES]
        numbers = [number for number, _ in shown]
        rows = _rows(database, plan, numbers)
        found = [SeriesRows(name, rows[number]) for number, name in shown]
        if len(shown) < len(ranked):
            found.append(SeriesRows(OTHER, [*_rest(database, plan, kind, numbers)], is_other=True))
    return found


def _rows(database: sqlite3.Connection, plan: Plan, series: Sequence[int]) -> dict[int, list[Row]]:
    """Read all of them at once: rows lie in the order of time."""
    samples: dict[int, dict[int, Sample]] = {number: {} for number in series}
    marks = ", ".join("?" * len(series))
    for number, start, *values in database.execute(
        f"SELECT series, start, {_NUMBERS}, {', '.join(LATENCIES)} FROM sample "  # noqa: S608
        f"WHERE {_IN_RANGE} AND series IN ({marks}) ORDER BY start",
        (plan.step_s, plan.begin, plan.end, *series),
    ):
        numbers, blocks = values[: -len(LATENCIES)], values[-len(LATENCIES) :]
        sample = Sample(*numbers, *map(LatencyHistogram.unpack, blocks))
        known = samples[number].setdefault(start - start % plan.shown_s, sample)
        if known is not sample:
            known.include(sample)
    return {
        number: [(start, *sample.row()) for start, sample in of_series.items()]
        for number, of_series in samples.items()
    }


def _rest(
    database: sqlite3.Connection, plan: Plan, kind: Kind, shown: Sequence[int]
) -> Iterator[Row]:
    marks = ", ".join("?" * len(shown))
    for start, *numbers in database.execute(
        f"SELECT start - start % ?, {_SUMS} FROM sample "  # noqa: S608
        f"WHERE {_IN_RANGE} AND {_OF_KIND} AND series NOT IN ({marks}) GROUP BY 1 ORDER BY 1",
        (plan.shown_s, plan.step_s, plan.begin, plan.end, kind, *shown),
    ):
        yield (start, *Sample(*numbers).row())


def usage_of(file: HistoryFile, days: range, by: By, per: Per) -> list[UsageRow]:
    """Return what was used in these days, the newest period first, and of each who used most; at
    most ``MAX_ROWS``."""
    names = _GROUPS[by]
    group = ", ".join(names)
    counts = "requests, failed, refused, prompt_tokens, cached_tokens, generated_tokens"
    sums = ", ".join(f"sum({name})" for name in counts.split(", "))
    period = {"day": "day", "month": "month_of(day)", "all": "0"}[per]
    with file.using() as database:
        found = database.execute(
            f"SELECT {period}, {group}, {sums}, max(last_s) FROM usage "  # noqa: S608
            f"WHERE day >= ? AND day < ? GROUP BY 1, {group} "
            f"ORDER BY 1 DESC, sum(prompt_tokens + generated_tokens) DESC, {group} LIMIT ?",
            (days.start, days.stop, MAX_ROWS),
        ).fetchall()
    write: Callable[[int], str] = {
        "day": day_text,
        "month": month_text,
        "all": lambda number: "all",
    }[per]
    keys = (*names, *counts.split(", "), "last_s")
    return [
        UsageRow(period=write(number), **dict(zip(keys, values, strict=True)))
        for number, *values in found
    ]


def days_of_month(month: int) -> range:
    """Return the days of a month of UTC."""
    return range(first_day(month), first_day(month + 1))
