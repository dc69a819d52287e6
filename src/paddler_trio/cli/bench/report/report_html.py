"""The report as one page: no script, nothing fetched, light and dark as the reader's system is.

Each plot has its numbers in a table beside it. Pure, but for the style, a file of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from types import MappingProxyType
from typing import Final

import attrs

from paddler_trio.cli.bench.bench_figures import BUSY_SHARE
from paddler_trio.cli.bench.report.page_parts import (
    DataTable,
    Row,
    milliseconds,
    number,
    seconds_words,
    share,
    text,
    times,
)
from paddler_trio.cli.bench.report.report import Point, Report, ratio
from paddler_trio.cli.bench.report.report_plots import COLOURS, WorkloadPlots


@attrs.frozen
class Meaning:
    """A figure in words."""

    term: str
    words: str


WORKLOADS: Final = MappingProxyType(
    {
        "plain": "Prompts of one length, none like another.",
        "prefix": "All prompts begin with the same long text, as behind one system prompt.",
        "mixed": "One prompt in four is long.",
    }
)

MEANINGS: Final = (
    Meaning(
        "Tokens per second",
        "Tokens of all answers as the server counts them, over the time of the runs. The end of "
        "a run, when some clients have finished, is included.",
    ),
    Meaning(
        "Time to first token",
        "From sending a request, with its connection if it needs a new one, to the first text, "
        "of reasoning too where the server shows it.",
    ),
    Meaning(
        "Inter-token latency",
        "Between two pieces of text of one answer. A server that sends several tokens at once "
        "has fewer and longer ones.",
    ),
    Meaning(
        "Queue",
        "The time to first token less the time that the server says it computed the prompt "
        "(timings.prompt_ms): waiting for a slot and the engine, and the way there and back.",
    ),
    Meaning(
        "p50, p95, p99",
        "So many percent of the requests of all rounds were no slower. Of fewer than 100 "
        "requests p99 is the slowest.",
    ),
    Meaning(
        "Failed",
        "Requests that failed count here and in no other figure. Unfinished ones were under way "
        "when the test was ended.",
    ),
    Meaning(
        "Client CPU",
        "Processor time of the load test itself, as a share of one core; it shares the machine "
        "with what it measures unless it runs on another one.",
    ),
)


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What the page may do; browsers hold it to that."""


COUNTED: Final = (
    "workload",
    "server",
    "clients",
    "requests",
    "failed",
    "unfinished",
    "seconds",
    "prompt tokens",
    "cached",
    "answer tokens",
    "total p50",
    "total p95",
    "client CPU",
)


def report_html(report: Report) -> str:
    """The whole page."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Load test of {text(report.targets[0].label)}</title>",
            f"<style>{files(__package__).joinpath('report.css').read_text()}</style>",
            "</head><body><main>",
            *_head(report),
            *_notes(report),
            *_workloads(report),
            *_everything(report),
            "</main></body></html>",
            "",
        ]
    )


def _head(report: Report) -> Iterator[str]:
    plan = report.plan
    yield "<header><h1>Load test</h1>"
    yield f'<p class="muted">{_time(report.started)} · paddler-trio {text(report.version)}</p>'
    yield '<ul class="servers">'
    for place, target in enumerate(report.targets):
        key = f'<span class="key {COLOURS[place]}"></span>' if len(report.targets) > 1 else ""
        yield (
            f"<li>{key}<strong>{text(target.label)}</strong> "
            f'<span class="muted">{text(target.url)}, model {text(target.model)}</span></li>'
        )
    yield "</ul>"
    yield (
        f'<p class="muted">Answers of up to {plan.sizes.max_tokens} tokens to prompts of '
        f"{plan.sizes.prompt_words} words; {plan.requests} requests of each client in a run, "
        f"{plan.rounds} rounds, seed {plan.seed}. A request may take "
        f"{seconds_words(plan.timeout_s)}.</p></header>"
    )


def _time(rfc3339: str) -> str:
    """Return a time to the minute, for people."""
    return text(rfc3339[:16].replace("T", " ") + " UTC")


def _notes(report: Report) -> Iterator[str]:
    found = list(notes_of(report))
    if found:
        yield '<aside class="notes" aria-label="Before you read on"><ul>'
        yield from (f"<li>{text(each)}</li>" for each in found)
        yield "</ul></aside>"


def notes_of(report: Report) -> Iterator[str]:
    """Yield what a reader must know before the figures: failures, doubts, and what was left out."""
    if report.stopped:
        yield f"Not all runs were done: {report.stopped}."
    for each in report.errors:
        label = report.targets[each.target].label
        yield f"{label}: {each.count} requests failed ({each.label}): {each.text}"
    if busy := report.busy_points:
        worst = max(point.figures.client_share for point in busy)
        levels = ", ".join(f"{point.workload} with {point.concurrency}" for point in busy)
        yield (
            f"The load test itself needed up to {share(worst)} of a core, more than "
            f"{share(BUSY_SHARE)} ({levels}): it was a bottleneck, and the servers may be faster "
            "than shown."
        )
    for sentence in report.unmet:
        yield f"--fail-if {sentence}"


def _workloads(report: Report) -> Iterator[str]:
    for workload in report.workloads:
        yield f"<h2>Workload {workload}</h2>"
        yield f'<p class="muted">{WORKLOADS[workload]}</p>'
        yield from _tiles(report, report.of(workload))
        for figure in WorkloadPlots(report, workload).figures():
            yield figure.html()


def _tiles(report: Report, points: list[Point]) -> Iterator[str]:
    """The most that each server gave, and its latencies with the fewest and the most clients."""
    levels = sorted({point.concurrency for point in points})
    by_target = [
        [point for point in points if point.target == n] for n in range(len(report.targets))
    ]
    best = [max(each, key=_speed) if each else None for each in by_target]
    yield '<ul class="tiles">'
    yield _tile(report, "Most tokens per second", best, _speed, number, "tokens/s")
    tiles = [("Time to first token", level, _ttft) for level in sorted({levels[0], levels[-1]})]
    for name, level, value in (*tiles, ("Inter-token latency", levels[-1], _itl)):
        at_level = [
            next((point for point in each if point.concurrency == level), None)
            for each in by_target
        ]
        yield _tile(report, f"{name}, 95th percentile", at_level, value, milliseconds, "ms")
    yield "</ul>"


def _speed(point: Point) -> float:
    return point.figures.tokens_per_s


def _ttft(point: Point) -> float | None:
    return None if point.figures.ttft is None else point.figures.ttft.p95


def _itl(point: Point) -> float | None:
    return None if point.figures.itl is None else point.figures.itl.p95


def _tile(
    report: Report,
    name: str,
    points: list[Point | None],
    value: Callable[[Point], float | None],
    shown: Callable[[float | None], str],
    unit: str,
) -> str:
    """``points``: one of each target, where it has one."""
    values = [None if point is None else value(point) for point in points]
    parts = [
        f'<li><div class="name">{text(name)}</div>',
        f'<div class="value">{shown(values[0])} <small>{unit}</small></div>',
        f'<div class="other">{_with_clients(points[0])}</div>',
    ]
    if len(points) > 1:
        label, compared = text(report.targets[1].label), times(ratio(values[0], values[1]))
        parts.append(
            f'<div class="other">{label}: {shown(values[1])} {unit} {_with_clients(points[1])}; '
            f"ratio {compared}</div>"
        )
    return "".join([*parts, "</li>"])


def _with_clients(point: Point | None) -> str:
    if point is None:
        return ""
    return f"with {point.concurrency} client{'s' if point.concurrency > 1 else ''}"


def _everything(report: Report) -> Iterator[str]:
    rows = []
    for point in report.points:
        figures = point.figures
        total = figures.total
        rows.append(
            Row(
                (
                    str(point.workload),
                    report.targets[point.target].label,
                    str(point.concurrency),
                    str(figures.requests),
                    str(figures.failed),
                    str(figures.unfinished),
                    number(figures.wall_s),
                    number(figures.prompt_tokens),
                    share(figures.cached_share),
                    number(figures.completion_tokens),
                    milliseconds(None if total is None else total.p50),
                    milliseconds(None if total is None else total.p95),
                    share(figures.client_share),
                )
            )
        )
    table = DataTable(caption="times in ms", head=COUNTED, rows=tuple(rows), num_words=2)
    yield '<details class="card"><summary>What was counted</summary>'
    yield table.html()
    yield "</details>"
    yield '<details class="card" open><summary>What the figures mean</summary><dl>'
    yield from (f"<dt>{each.term}</dt><dd>{text(each.words)}</dd>" for each in MEANINGS)
    yield "</dl></details>"
