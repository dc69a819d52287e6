"""The findings of a load test, one point for each workload, concurrency and target.

Pure. The terminal, the HTML page and the JSON document are three renderings of a :class:`Report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from paddler_trio.cli.bench.bench_figures import (
    Failure,
    Figures,
    Percentiles,
    RunResult,
    Sample,
    figures_of,
    percentiles,
)
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.workloads import Workload


@attrs.frozen
class TargetShown:
    """A target as reports name it."""

    label: str
    url: str
    model: str


@attrs.frozen(kw_only=True)
class Point:
    """One workload at one concurrency against one target, all rounds.

    Args:
      target: its number among the report's targets.
      rounds_tokens_per_s: of each round, in their order.
      ttfts_s: of all requests that succeeded, ascending.
      ttft_by_kind: where the workload has several sorts of prompts.
    """

    workload: Workload
    concurrency: int
    target: int
    figures: Figures
    rounds_tokens_per_s: tuple[float, ...]
    ttfts_s: tuple[float, ...]
    ttft_by_kind: dict[str, Percentiles]


@attrs.frozen(kw_only=True)
class ErrorShown:
    """Requests that failed alike: how often, and the server's words the first time."""

    target: int
    label: str
    count: int
    text: str


@attrs.frozen(kw_only=True)
class Report:
    """See the module docstring.

    Args:
      started: RFC 3339, UTC.
      version: of this package.
      stopped: why the rest of the plan was left out; empty if nothing was.
    """

    started: str
    version: str
    plan: BenchPlan
    targets: tuple[TargetShown, ...]
    points: tuple[Point, ...]
    errors: tuple[ErrorShown, ...]
    stopped: str = ""
    unmet: tuple[str, ...] = ()
    """Conditions of ``--fail-if`` that hold, or of which nobody knows, as sentences."""

    def of(self, workload: Workload) -> list[Point]:
        """The points of one workload, by concurrency and then by target."""
        return [point for point in self.points if point.workload is workload]

    @property
    def workloads(self) -> list[Workload]:
        """Those that have points."""
        return [each for each in self.plan.workloads if self.of(each)]

    @property
    def error_rates(self) -> list[float]:
        """0..1 of the requests against each target that are over."""
        return [self._error_rate(number) for number in range(len(self.targets))]

    def _error_rate(self, target: int) -> float:
        figures = [point.figures for point in self.points if point.target == target]
        total = sum(each.requests for each in figures)
        return sum(each.failed for each in figures) / total if total else 0.0

    @property
    def busy_points(self) -> list[Point]:
        """Those in which the client was as busy as what it measured."""
        return [point for point in self.points if point.figures.client_was_busy]


def report_of(
    plan: BenchPlan,
    targets: Sequence[TargetShown],
    results: Sequence[RunResult],
    *,
    started: str,
    version: str,
    stopped: str = "",
) -> Report:
    """Return the report of the runs that were begun, whole or not."""
    points = [
        _point(workload, concurrency, target, found)
        for workload in plan.workloads
        for concurrency in sorted(plan.concurrencies)
        for target in range(len(targets))
        if (
            found := [
                each
                for each in results
                if (each.run.workload, each.run.concurrency, each.run.target)
                == (workload, concurrency, target)
                and each.samples
            ]
        )
    ]
    return Report(
        started=started,
        version=version,
        plan=plan,
        targets=tuple(targets),
        points=tuple(points),
        errors=tuple(_errors(results)),
        stopped=stopped,
    )


def ratio(first: float | None, second: float | None) -> float | None:
    """Return how many times the second the first is; None where that is no number."""
    return None if first is None or not second else first / second


def _point(workload: Workload, concurrency: int, target: int, found: list[RunResult]) -> Point:
    samples = [sample for result in found for sample in result.samples if sample.failure is None]
    kinds = sorted({sample.kind for sample in samples}, reverse=True)
    by_kind = {
        kind: percentiles(_ttfts(each for each in samples if each.kind == kind)) for kind in kinds
    }
    return Point(
        workload=workload,
        concurrency=concurrency,
        target=target,
        figures=figures_of(found),
        rounds_tokens_per_s=tuple(figures_of([each]).tokens_per_s for each in found),
        ttfts_s=tuple(_ttfts(samples)),
        ttft_by_kind={
            kind: value for kind, value in by_kind.items() if value is not None and len(kinds) > 1
        },
    )


def _ttfts(samples: Iterable[Sample]) -> list[float]:
    return sorted(each.ttft_s for each in samples if each.ttft_s is not None)


def _errors(results: Sequence[RunResult]) -> Iterator[ErrorShown]:
    found: dict[tuple[int, str], list[Failure]] = {}
    for result in results:
        for sample in result.samples:
            if sample.failure is not None:
                key = result.run.target, sample.failure.label
                found.setdefault(key, []).append(sample.failure)
    for (target, label), failures in sorted(found.items()):
        yield ErrorShown(target=target, label=label, count=len(failures), text=failures[0].text)
