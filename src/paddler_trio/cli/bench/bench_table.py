"""The report of a load test for a terminal: a table for each workload, and notes below them.

With two targets each concurrency has a third line: the first divided by the second. Narrow
terminals lose columns, the least important first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.bench.bench_figures import BUSY_SHARE, Figures, Percentiles
from paddler_trio.cli.bench.report.page_parts import NOTHING, milliseconds, number, share, times
from paddler_trio.cli.bench.report.report import Point, Report, ratio
from paddler_trio.cli.bench.workloads import Workload
from paddler_trio.cli.terminal import printable

LABEL_COLUMNS: Final = 22
FIGURE_COLUMNS: Final = 9
"""Of a terminal, with what is between two of them."""


@attrs.frozen
class FigureColumn:
    """One figure; ``importance`` 0 always stays, the largest goes first."""

    title: str
    value: Callable[[Figures], float | None]
    shown: Callable[[float | None], str]
    importance: int = 0


def _percentile(
    of: Callable[[Figures], Percentiles | None], name: str
) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        values = of(figures)
        return None if values is None else float(getattr(values, name))

    return value


def _times(
    title: str, of: Callable[[Figures], Percentiles | None], importances: tuple[int, int, int]
) -> Iterator[FigureColumn]:
    for name, importance in zip(("p50", "p95", "p99"), importances, strict=True):
        yield FigureColumn(f"{title}\n{name}", _percentile(of, name), milliseconds, importance)


COLUMNS: Final = (
    FigureColumn("tokens/s\nout", lambda f: f.tokens_per_s, number),
    FigureColumn("tokens/s\nin", lambda f: f.prompt_tokens_per_s, number, 4),
    FigureColumn("requests\n/s", lambda f: f.requests_per_s, number, 6),
    *_times("TTFT", lambda f: f.ttft, (0, 1, 5)),
    *_times("ITL", lambda f: f.itl, (0, 1, 5)),
    *_times("queue", lambda f: f.queue, (2, 3, 7)),
    FigureColumn("client\nCPU", lambda f: f.client_share, share, 8),
)


def tables(report: Report, width: int) -> Iterator[Table]:
    """One for each workload, in times of milliseconds."""
    columns = fitting(report, width)
    for workload in report.workloads:
        yield _table(report, workload, columns)


def fitting(report: Report, width: int) -> list[FigureColumn]:
    """Those that somebody has told of, as far as there is room."""
    told = [
        column
        for column in COLUMNS
        if any(column.value(point.figures) is not None for point in report.points)
    ]
    while told and LABEL_COLUMNS + FIGURE_COLUMNS * (len(told) + 1) > width:
        least = max(told, key=lambda column: column.importance)
        if least.importance == 0:
            break
        told.remove(least)
    return told


def _table(report: Report, workload: Workload, columns: list[FigureColumn]) -> Table:
    table = Table(
        title=f"{workload}: times in ms", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    table.add_column("clients", justify="right")
    table.add_column("server", no_wrap=True, overflow="ellipsis", max_width=LABEL_COLUMNS)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    table.add_column("failed", justify="right")
    points = report.of(workload)
    for point in points:
        is_first = point.target == 0
        table.add_row(
            str(point.concurrency) if is_first else "",
            Text(printable(report.targets[point.target].label)),
            *(column.shown(column.value(point.figures)) for column in columns),
            _failed(point),
        )
        if point.target == 1:
            pair = [each for each in points if each.concurrency == point.concurrency]
            table.add_row(*_ratios(pair, columns), style="dim")
    return table


def _failed(point: Point) -> Text:
    figures = point.figures
    return Text(f"{figures.failed}/{figures.requests}", style="red" if figures.failed else "")


def _ratios(pair: list[Point], columns: list[FigureColumn]) -> Iterator[str]:
    yield ""
    yield "first / second"
    for column in columns:
        if len(pair) != 2:
            yield NOTHING
            continue
        first, second = (column.value(point.figures) for point in pair)
        yield times(ratio(first, second))
    yield ""


def notes(report: Report) -> Iterator[str]:
    """Yield what a reader of the tables must know: errors, doubts, and what was left out."""
    for each in report.errors:
        target = report.targets[each.target].label
        yield f"{target}: {each.count} requests failed ({each.label}): {each.text}"
    for point in report.points:
        if point.ttft_by_kind:
            target = report.targets[point.target].label
            told = ", ".join(
                f"{kind} p50 {milliseconds(each.p50)} p95 {milliseconds(each.p95)} ms"
                for kind, each in point.ttft_by_kind.items()
            )
            yield f"{target}, {point.workload} x{point.concurrency}: TTFT of {told}"
    if busy := report.busy_points:
        worst = max(point.figures.client_share for point in busy)
        levels = ", ".join(f"{point.workload} x{point.concurrency}" for point in busy)
        yield (
            f"warning: this client needed {share(worst)} of a core ({levels}), more than "
            f"{share(BUSY_SHARE)}: it was a bottleneck itself; the servers may be faster than shown"
        )
    if report.stopped:
        yield f"not all runs were done: {report.stopped}"
    for sentence in report.unmet:
        yield f"--fail-if {sentence}"
