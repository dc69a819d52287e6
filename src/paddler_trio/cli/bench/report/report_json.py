"""The report as a JSON document for other programs. Pure.

Its ``schema`` is a number that grows with every change that is more than a new member. Times are
milliseconds, shares 0..1; null is what nobody told.

The report of a load test for a terminal: a table for each workload, and notes below them.

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

SCHEMA: Final = 1
Json = dict[str, object]


def report_json(report: Report) -> Json:
    """The whole of it, as plain JSON."""
    plan = report.plan
    return {
        "kind": "paddler-trio bench",
        "schema": SCHEMA,
        "version": report.version,
        "started": report.started,
        "stopped": report.stopped or None,
        "targets": [
            {"label": each.label, "url": each.url, "model": each.model} for each in report.targets
        ],
        "plan": {
            "workloads": [str(each) for each in plan.workloads],
            "concurrencies": list(plan.concurrencies),
            "rounds": plan.rounds,
            "requests_per_client": plan.requests,
            "warmup": plan.warmup,
            "run_s": plan.run_s,
            "timeout_s": plan.timeout_s,
            "max_s": plan.max_s,
            "prompt_words": plan.sizes.prompt_words,
            "prefix_words": plan.sizes.prefix_words,
            "long_words": plan.sizes.long_words,
            "max_tokens": plan.sizes.max_tokens,
            "seed": plan.seed,
        },
        "points": [_point(point) for point in report.points],
        "errors": [
            {
                "target": each.target,
                "kind": each.label,
                "count": each.count,
                "first": each.text,
            }
            for each in report.errors
        ],
        "error_rates": [_rounded(each) for each in report.error_rates],
        "unmet": list(report.unmet),
    }


def _point(point: Point) -> Json:
    figures = point.figures
    return {
        "workload": str(point.workload),
        "concurrency": point.concurrency,
        "target": point.target,
        "requests": figures.requests,
        "failed": figures.failed,
        "unfinished": figures.unfinished,
        "errors": dict(figures.errors),
        "wall_s": round(figures.wall_s, 6),
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "completion_tokens": figures.completion_tokens,
        "requests_per_s": _rounded(figures.requests_per_s),
        "prompt_tokens_per_s": _rounded(figures.prompt_tokens_per_s),
        "tokens_per_s": _rounded(figures.tokens_per_s),
        "rounds_tokens_per_s": [_rounded(each) for each in point.rounds_tokens_per_s],
        "ttft_ms": _percentiles(figures.ttft),
        "itl_ms": _percentiles(figures.itl),
        "queue_ms": _percentiles(figures.queue),
        "total_ms": _percentiles(figures.total),
        "ttft_ms_by_kind": {kind: _percentiles(each) for kind, each in point.ttft_by_kind.items()},
        "client_cpu_share": _rounded(figures.client_share),
    }


def _percentiles(values: Percentiles | None) -> Json | None:
    if values is None:
        return None
    return {
        **{name: _rounded(getattr(values, name) * 1000) for name in ("p50", "p95", "p99")},
        "count": values.count,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


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
