"""Running ``paddler-trio bench``: who is asked, what it will take, the run, and its three reports.

Ctrl-C ends the run and not the command: what was measured until then is reported.

A load test as it goes on: a bar on a terminal, a line for each run elsewhere.

Drawing takes processor time from the clients that are measured: a terminal gets two pictures a
second.
"""

from __future__ import annotations

import datetime
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paddler_trio import __version__
from paddler_trio.cli.bench.bench_figures import RunResult, percentiles
from paddler_trio.cli.bench.bench_order import STANDARD_OUTPUT, BenchOrder, TargetOrder, unmet
from paddler_trio.cli.bench.client_connection import listed_model
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.report.report import Report, TargetShown, report_of
from paddler_trio.cli.bench.report.report_html import report_html
from paddler_trio.cli.bench.report.report_json import notes, report_json, tables
from paddler_trio.cli.bench.runner import Results, run_bench
from paddler_trio.cli.bench.target import (
    Resolved,
    Target,
    TargetUnreachableError,
    connected,
    resolve,
)
from paddler_trio.cli.figures import NOTHING, duration, rate
from paddler_trio.cli.terminal import DONE, FAILED, INTERRUPTED, printable, stderr, stdout
from paddler_trio.errors import ConfigurationError, PaddlerError
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_errors import tls_error_in, tls_problem
from paddler_trio.system.durable import read_secret
from paddler_trio.system.heap import freeze_heap

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


INTERRUPT: Final = "interrupted"


class ReportUnwrittenError(PaddlerError):
    """A file could not be written after all; everything else was shown before."""


def run(order: BenchOrder) -> int:
    """The exit code.

    Errors:
      ConfigurationError: a target cannot be found or may not be tested; nothing was sent to it.
      PaddlerError: a target does not answer; a file cannot be written.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    results = Results()
    targets = trio.run(_measure, order, results)
    if results.stopped == INTERRUPT and not results.runs:
        return INTERRUPTED
    report = report_of(
        order.plan,
        targets,
        results.runs,
        started=started,
        version=__version__,
        stopped=results.stopped,
    )
    report = attrs.evolve(report, unmet=tuple(unmet(order.conditions, report)))
    _show(order, report)
    if results.stopped == INTERRUPT:
        return INTERRUPTED
    failed_too_often = any(rate > order.max_error_rate for rate in report.error_rates)
    return FAILED if failed_too_often or report.unmet or not report.points else DONE


async def _measure(order: BenchOrder, results: Results) -> list[TargetShown]:
    """Find the targets, say what it will take, and do it; who was asked for what."""
    failures: list[PaddlerError] = []
    shown: list[TargetShown] = []

    async def measure() -> None:
        targets = await _targets_of(order)
        shown.extend(TargetShown(each.label, str(each.url), each.model) for each in targets)
        _announce(order.plan, shown)
        freeze_heap()  # a full collection of what was imported would be a pause of the client
        with display_of(order.plan, shown, results, stderr()) as draw:
            async with trio.open_nursery() as beside:
                beside.start_soon(draw)
                try:
                    await run_bench(order.plan, targets, results)
                except PaddlerError as error:
                    failures.append(error)
                beside.cancel_scope.cancel(reason="nothing more to show")

    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, nursery.cancel_scope, results)
        try:
            await measure()
        except PaddlerError as error:
            failures.append(error)  # the nursery would wrap it
        nursery.cancel_scope.cancel(reason="the load test is over")
    for failure in failures:
        raise failure
    return shown


async def _watch_signals(
    everything: trio.CancelScope,
    results: Results,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        task_status.started()
        async for _ in received:
            results.stopped = INTERRUPT
            everything.cancel(reason="interrupted")


async def _targets_of(order: BenchOrder) -> tuple[Target, ...]:
    found = [await resolve(each.url) for each in order.targets]
    if not order.allow_public:
        for each in found:
            _refuse_public(each)
    return tuple(
        [
            await _target_of(wanted, each, ignores_end=order.plan.ignores_end)
            for wanted, each in zip(order.targets, found, strict=True)
        ]
    )


def _refuse_public(found: Resolved) -> None:
    if found.public_ip is not None:
        raise ConfigurationError(
            f"{found.url} is at the public address {found.public_ip}, and a load test of a machine "
            "that is not yours is an attack: give --allow-public if it is yours, or its owner "
            "agrees"
        )


async def _target_of(wanted: TargetOrder, found: Resolved, *, ignores_end: bool) -> Target:
    context = None
    if wanted.url.is_tls:
        context = await trio.to_thread.run_sync(wanted.tls.context)
    key = None if wanted.key_file is None else read_secret(wanted.key_file)
    ip = await found.answering_ip()

    async def dial() -> trio.abc.Stream:
        return await connected(ip, wanted.url.port)

    target = Target(
        label=wanted.label,
        url=wanted.url,
        dial=dial,
        model=wanted.model,
        key=key,
        tls=context,
        ignores_end=ignores_end,
    )
    if wanted.model:
        return target
    try:
        return attrs.evolve(target, model=await listed_model(target))
    except TargetUnreachableError as error:
        problem = tls_error_in(error)
        if problem is None:
            raise
        address = BalancerAddress(wanted.url.host, wanted.url.port, is_tls=True)
        raise TargetUnreachableError(tls_problem(problem, address)) from error


def _announce(plan: BenchPlan, targets: list[TargetShown]) -> None:
    console = stderr()
    for each in targets:
        console.print(Text(printable(f"{each.label}: {each.url}, model {each.model}")))
    warming = f", {plan.num_warming} before them to warm up" if plan.num_warming else ""
    console.print(
        f"{len(plan.runs)} runs, {plan.num_requests} requests of up to "
        f"{plan.sizes.max_tokens} tokens{warming}; over after {duration(plan.longest_s * 1000)} at "
        "the latest; Ctrl-C ends it with the results so far"
    )


def _show(order: BenchOrder, report: Report) -> None:
    """Files first: neither is lost over the other, or over who reads the table and leaves.

    Errors:
      ReportUnwrittenError: of all files that could not be written; the rest is shown.
    """
    document = json.dumps(report_json(report), indent=1) + "\n"
    files = []
    if order.json is not None and order.json != STANDARD_OUTPUT:
        files.append((order.json, document))
    if order.html is not None:
        files.append((order.html, report_html(report)))
    problems = [problem for path, text in files if (problem := _write(path, text))]
    if order.json == STANDARD_OUTPUT:
        sys.stdout.write(document)
    else:
        console = stdout()
        for each in tables(report, console.width):
            console.print(each)
    if order.html is not None and not problems:
        stderr().print(Text(printable(f"the page is {order.html}")), soft_wrap=True)
    for line in notes(report):
        stderr().print(Text(printable(line)))
    if problems:
        raise ReportUnwrittenError("; ".join(problems))


def _write(path: Path, text: str) -> str:
    """Why it could not be written; empty if it was."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""
