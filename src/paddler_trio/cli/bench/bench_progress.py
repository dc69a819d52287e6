"""A load test as it goes on: a bar on a terminal, a line for each run elsewhere.

Drawing takes processor time from the clients that are measured: a terminal gets two pictures a
second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.bench.bench_figures import RunResult, percentiles
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.report.report import TargetShown
from paddler_trio.cli.bench.runner import Results
from paddler_trio.cli.figures import NOTHING, duration, rate
from paddler_trio.cli.terminal import printable

PICTURE_S: Final = 0.5
BAR_COLUMNS: Final = 30
LATEST: Final = 200
"""Requests whose times are looked at: sorting those of a long run would stop the clients."""


@contextmanager
def display_of(
    plan: BenchPlan, targets: Sequence[TargetShown], results: Results, console: Console
) -> Iterator[Callable[[], Awaitable[None]]]:
    """A task to run beside the load test; the terminal is as it was when the block is left."""
    if not console.is_terminal:
        lines = _Lines(plan, targets, results, console)
        results.on_change = lines.look
        yield trio.lowlevel.checkpoint
        return
    picture = _Picture(plan, targets, results, began_s=trio.current_time())
    with Live(console=console, auto_refresh=False, transient=True) as live:

        async def draw() -> None:
            while True:
                live.update(picture.render(trio.current_time()), refresh=True)
                await trio.sleep(PICTURE_S)

        yield draw


@attrs.define
class _Lines:
    """Each run when it is over."""

    plan: BenchPlan
    targets: Sequence[TargetShown]
    results: Results
    console: Console
    _num_told: int = attrs.field(default=0, init=False)

    def look(self) -> None:
        for result in self.results.runs[self._num_told :]:
            if not result.is_over:
                break
            self._num_told += 1
            words = run_words(result, self.plan, self.targets)
            self.console.print(Text(printable(words)))


@attrs.define
class _Picture:
    """The picture of how far everything is, and of what the present run does."""

    plan: BenchPlan
    targets: Sequence[TargetShown]
    results: Results
    began_s: float

    def render(self, now_s: float) -> RenderableType:
        num_runs, runs = len(self.plan.runs), self.results.runs
        num_over = sum(result.is_over for result in runs)
        elapsed = duration((now_s - self.began_s) * 1000)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=num_runs, completed=num_over, width=BAR_COLUMNS),
            Text(f"{num_over}/{num_runs} runs, {elapsed}"),
        )
        if self.results.warming is not None:
            return Group(bar, Text(printable(f"warming up {self.results.warming.label}")))
        if not runs:
            return bar
        now = attrs.evolve(runs[-1], ended_s=now_s) if not runs[-1].is_over else runs[-1]
        return Group(bar, Text(printable(run_words(now, self.plan, self.targets))))


def run_words(result: RunResult, plan: BenchPlan, targets: Sequence[TargetShown]) -> str:
    """One run, under way or over, in a line."""
    run, samples = result.run, result.samples
    num_failed = sum(sample.failure is not None for sample in samples)
    tokens = sum(sample.completion_tokens for sample in samples if sample.failure is None)
    speed = tokens / result.wall_s if result.wall_s > 0 else 0.0
    latest = percentiles(s.ttft_s for s in samples[-LATEST:] if s.ttft_s is not None)
    ttft = NOTHING if latest is None else duration(latest.p50 * 1000)
    failed = f", {num_failed} failed" if num_failed else ""
    return (
        f"{run.workload} x{run.concurrency}, round {run.round + 1}/{plan.rounds}, "
        f"{targets[run.target].label}: {len(samples)}/{plan.num_requests_of(run)} requests, "
        f"{rate(speed)} tokens/s, first token {ttft}{failed}"
    )
