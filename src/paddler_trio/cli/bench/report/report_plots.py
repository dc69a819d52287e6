"""The figures of one workload: throughput, latencies over concurrency, and their distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

from paddler_trio.cli.bench.bench_figures import Figures, Percentiles, percentile
from paddler_trio.cli.bench.report.page_parts import (
    DataTable,
    PlotFigure,
    Row,
    milliseconds,
    number,
    times,
)
from paddler_trio.cli.bench.report.report import Point, Report, ratio
from paddler_trio.cli.bench.report.svg_plot import (
    Axis,
    Mark,
    Series,
    level_axis,
    line_plot,
    share_axis,
    value_axis,
)
from paddler_trio.cli.bench.workloads import Workload

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


COLOURS: Final = ("one", "two")
"""Of the targets, by their number."""
PERCENTS: Final = ("p50", "p95", "p99")
SHIFT_PX: Final = 4
CDF_PERCENTS: Final = (10, 25, 50, 75, 90, 95, 99)
CLIENTS: Final = "clients at a time"
Latency = Callable[[Figures], Percentiles | None]


@attrs.frozen
class WorkloadPlots:
    """See the module docstring."""

    report: Report
    workload: Workload

    @property
    def points(self) -> list[Point]:
        return self.report.of(self.workload)

    def figures(self) -> Iterator[PlotFigure]:
        """Yield the plots in the order of the page."""
        yield self._throughput()
        yield self._latency(
            "Time to first token",
            "From sending a request to its first text.",
            "ttft",
            lambda figures: figures.ttft,
        )
        yield self._latency(
            "Inter-token latency",
            "Between two pieces of text of one answer.",
            "itl",
            lambda figures: figures.itl,
        )
        if any(point.figures.queue is not None for point in self.points):
            yield self._latency(
                "Queue",
                "What passed before the first token while the prompt was not computed, as far as "
                "the server tells.",
                "queue",
                lambda figures: figures.queue,
            )
        if any(point.ttfts_s for point in self.points):
            yield self._distribution()
        if any(point.ttft_by_kind for point in self.points):
            yield self._kinds()

    # ------------------------------------------------------------------------- over concurrency

    def _throughput(self) -> PlotFigure:
        series = [
            Series(
                style=COLOURS[target],
                marks=tuple(self._rate_mark(point) for point in self._of_target(target)),
                shift_px=(-SHIFT_PX, SHIFT_PX)[target] if len(self.report.targets) > 1 else 0,
            )
            for target in range(len(self.report.targets))
        ]
        values = [value for each in series for mark in each.marks for value in _heights(mark)]
        title = "Tokens per second"
        svg = self._over_levels(series, value_axis("tokens/s", values, may_be_log=False), title)
        return PlotFigure(
            title=title,
            caption="Tokens of all answers together; whiskers span the rounds.",
            legend=self._legend(),
            svg=svg,
            table=self._table(
                title,
                ("out", "in", "requests/s"),
                lambda f: (f.tokens_per_s, f.prompt_tokens_per_s, f.requests_per_s),
                number,
            ),
        )

    def _rate_mark(self, point: Point) -> Mark:
        rounds = point.rounds_tokens_per_s
        value = point.figures.tokens_per_s
        return Mark(
            point.concurrency,
            value,
            f"{self._label(point)}: {number(value)} tokens/s",
            min(rounds, default=None),
            max(rounds, default=None),
        )

    def _latency(self, title: str, caption: str, name: str, of: Latency) -> PlotFigure:
        series = [
            Series(
                style=f"{COLOURS[target]} {percent}",
                marks=tuple(self._time_marks(target, percent, name, of)),
                end_label=percent,
            )
            for target in range(len(self.report.targets))
            for percent in PERCENTS
        ]
        values = [mark.y for each in series for mark in each.marks]
        axis = value_axis("ms", values)
        if axis.is_log:
            axis = attrs.evolve(axis, title="ms, logarithmic")
        return PlotFigure(
            title=title,
            caption=caption,
            legend=[*self._legend(), *((percent, percent) for percent in PERCENTS)],
            svg=self._over_levels(series, axis, title),
            table=self._table(
                f"{title}, ms",
                PERCENTS,
                lambda f: _three(of(f)),
                milliseconds,
            ),
        )

    def _time_marks(self, target: int, percent: str, name: str, of: Latency) -> Iterator[Mark]:
        for point in self._of_target(target):
            values = of(point.figures)
            if values is not None:
                seconds = float(getattr(values, percent))
                words = f"{self._label(point)}: {name} {percent} {milliseconds(seconds)} ms"
                yield Mark(point.concurrency, seconds * 1000, words)

    def _over_levels(self, series: Sequence[Series], axis: Axis, title: str) -> str:
        """Empty for a single concurrency, which is no line."""
        levels = {point.concurrency for point in self.points}
        if len(levels) < 2 or not any(each.marks for each in series):
            return ""
        return line_plot(
            series,
            level_axis(CLIENTS, sorted(levels)),
            axis,
            identity=self._identity(title),
            summary=f"{title} over {CLIENTS}, workload {self.workload}; the table has the numbers",
        )

    # ------------------------------------------------------------------------ distributions

    def _distribution(self) -> PlotFigure:
        """One server: several concurrencies. Two: both at the highest one."""
        levels = sorted({point.concurrency for point in self.points if point.ttfts_s})
        is_pair = len(self.report.targets) > 1
        chosen = levels[-1:] if is_pair else spread(levels, STEPS)
        shown = [point for point in self.points if point.concurrency in chosen and point.ttfts_s]
        styles = [
            COLOURS[point.target] if is_pair else f"step-{step_of(number, len(shown))}"
            for number, point in enumerate(shown)
        ]
        series = [
            Series(style=style, marks=tuple(distribution(point.ttfts_s)), is_steps=True)
            for style, point in zip(styles, shown, strict=True)
        ]
        title = "Distribution of the time to first token"
        axis = value_axis("ms", [mark.x for each in series for mark in each.marks if mark.x > 0])
        logarithmic = ", logarithmic" if axis.is_log else ""
        where = f" with {chosen[0]} clients" if is_pair else ""
        return PlotFigure(
            title=title,
            caption=f"The share of requests{where} that had their first token by then.",
            legend=[
                (style, self._column(point)) for style, point in zip(styles, shown, strict=True)
            ],
            svg=line_plot(
                series,
                attrs.evolve(axis, title=f"time to first token, ms{logarithmic}"),
                share_axis("requests"),
                identity=self._identity(title),
                summary=f"{title}, workload {self.workload}; the table has its percentiles",
            ),
            table=DataTable(
                caption="ms until so many requests had a token",
                head=("requests", *(self._column(point) for point in shown)),
                rows=tuple(
                    Row((f"{percent} %", *(_at(point, percent) for point in shown)))
                    for percent in CDF_PERCENTS
                ),
            ),
        )

    def _kinds(self) -> PlotFigure:
        rows = [
            Row(
                (
                    str(point.concurrency),
                    self._server(point),
                    kind,
                    *map(milliseconds, _three(each)),
                )
            )
            for point in self.points
            for kind, each in point.ttft_by_kind.items()
        ]
        return PlotFigure(
            title="Time to first token of short and long prompts",
            caption="Short prompts that wait behind long ones have far slower 95th percentiles "
            "than 50th ones.",
            table=DataTable(
                caption="ms",
                head=("clients", "server", "prompts", *PERCENTS),
                rows=tuple(rows),
                num_words=3,
            ),
        )

    # ------------------------------------------------------------------------------- shared

    def _table(
        self,
        caption: str,
        head: tuple[str, ...],
        values: Callable[[Figures], Sequence[float | None]],
        shown: Callable[[float | None], str],
    ) -> DataTable:
        rows = []
        for point in self.points:
            words = map(shown, values(point.figures))
            rows.append(Row((str(point.concurrency), self._server(point), *words)))
            first = self._other(point)
            if point.target == 1 and first is not None:
                pairs = zip(values(first.figures), values(point.figures), strict=True)
                ratios = (times(ratio(ours, theirs)) for ours, theirs in pairs)
                rows.append(Row(("", "first / second", *ratios), "ratio"))
        return DataTable(
            caption=caption, head=("clients", "server", *head), rows=tuple(rows), num_words=2
        )

    def _other(self, point: Point) -> Point | None:
        """The first target's at the same concurrency."""
        return next(
            (
                each
                for each in self.points
                if each.concurrency == point.concurrency and each.target == 0
            ),
            None,
        )

    def _of_target(self, target: int) -> list[Point]:
        return [point for point in self.points if point.target == target]

    def _legend(self) -> list[tuple[str, str]]:
        if len(self.report.targets) == 1:
            return []
        return [(COLOURS[n], target.label) for n, target in enumerate(self.report.targets)]

    def _server(self, point: Point) -> str:
        return self.report.targets[point.target].label

    def _label(self, point: Point) -> str:
        clients = f"{point.concurrency} client{'s' if point.concurrency > 1 else ''}"
        return clients if len(self.report.targets) == 1 else f"{self._server(point)}, {clients}"

    def _column(self, point: Point) -> str:
        """Return what tells it from the others of one distribution."""
        return self._label(point) if len(self.report.targets) == 1 else self._server(point)

    def _identity(self, title: str) -> str:
        return f"{self.workload}-{title.lower().replace(' ', '-')}"


def _at(point: Point, percent: int) -> str:
    return milliseconds(percentile(point.ttfts_s, percent))


def _heights(mark: Mark) -> Iterator[float]:
    yield mark.y
    if mark.high is not None:
        yield mark.high


def _three(values: Percentiles | None) -> tuple[float | None, ...]:
    return (None, None, None) if values is None else (values.p50, values.p95, values.p99)
