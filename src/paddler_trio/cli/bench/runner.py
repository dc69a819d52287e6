"""Running a plan: warm up, then one run after the other, each in a nursery of its clients.

Results are written into a :class:`Results` while they come, so that a cancelled run still has
everything that was measured until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import trio

from paddler_trio.cli.bench.bench_figures import Failure, RunResult, Sample
from paddler_trio.cli.bench.client_connection import ClientConnection
from paddler_trio.cli.bench.plan import BenchPlan, Run
from paddler_trio.cli.bench.target import Target
from paddler_trio.cli.bench.workloads import Ask, asks
from paddler_trio.errors import PaddlerError

WARM_UP: Final = -1
"""The occasion of what is asked before the first run."""


class TargetSilentError(PaddlerError):
    """No request of the warm-up was answered; the text names the target and its words."""


@attrs.define
class Results:
    """The results so far. ``stopped``: why the rest of the plan was left out; empty if
    nothing was."""

    runs: list[RunResult] = attrs.field(factory=list)
    warming: Target | None = None
    stopped: str = ""
    on_change: Callable[[], None] = lambda: None


async def run_bench(plan: BenchPlan, targets: tuple[Target, ...], results: Results) -> None:
    """Everything, bounded by ``plan.max_s``.

    Cancellation: connections are closed, which stops their requests; ``results`` are kept.

    Errors:
      TargetSilentError: a target answers nothing; no run began.
    """
    assert len(targets) == plan.num_targets
    with trio.move_on_after(plan.max_s) as scope:
        for number, target in enumerate(targets):
            results.warming = target
            results.on_change()
            await _warm_up(plan, number, target)
        results.warming = None
        for run in plan.runs:
            await _do(run, plan, targets[run.target], results)
    if scope.cancelled_caught:
        results.warming = None
        results.stopped = f"--max-time {plan.max_s:g} was over"


async def _warm_up(plan: BenchPlan, number: int, target: Target) -> None:
    """Requests that count nowhere: the first ones make connections, code and caches warm."""
    samples: list[Sample] = []

    async def one(ask: Ask) -> None:
        samples.append(await _alone(target, ask, plan.timeout_s))

    async with trio.open_nursery() as nursery:
        for workload in plan.workloads:
            for ask in asks(
                workload,
                plan.sizes,
                seed=plan.seed,
                target=number,
                occasion=WARM_UP,
                count=plan.warmup,
            ):
                nursery.start_soon(one, ask)
    failures = [each.failure for each in samples if each.failure is not None]
    if samples and len(failures) == len(samples):
        raise TargetSilentError(f"{target.label} answers no request: {_told(failures[0])}")


async def _alone(target: Target, ask: Ask, timeout_s: float) -> Sample:
    client = ClientConnection(target)
    try:
        return await client.ask(ask, timeout_s=timeout_s)
    finally:
        await client.close()


async def _do(run: Run, plan: BenchPlan, target: Target, results: Results) -> None:
    """One run: as many clients as its concurrency says, until the requests or the time are used
    up."""
    waiting = asks(
        run.workload,
        plan.sizes,
        seed=plan.seed,
        target=run.target,
        occasion=run.occasion,
        count=plan.num_requests_of(run),
    )
    began_s, began_cpu_s = trio.current_time(), time.process_time()
    result = RunResult(run=run, began_s=began_s, ended_s=began_s)
    results.runs.append(result)
    results.on_change()
    try:
        async with trio.open_nursery() as clients:
            for _ in range(run.concurrency):
                clients.start_soon(_send_one_by_one, waiting, plan, target, result, results)
    finally:
        result.ended_s = trio.current_time()
        result.client_cpu_s = time.process_time() - began_cpu_s
        result.is_over = True
        results.on_change()


async def _send_one_by_one(
    waiting: Iterator[Ask],
    plan: BenchPlan,
    target: Target,
    result: RunResult,
    results: Results,
) -> None:
    client = ClientConnection(target)
    try:
        while trio.current_time() < result.began_s + plan.run_s:
            ask = next(waiting, None)
            if ask is None:
                break
            result.num_sent += 1
            result.samples.append(await client.ask(ask, timeout_s=plan.timeout_s))
            results.on_change()
    finally:
        await client.close()


def _told(failure: Failure) -> str:
    return f"{failure.label}: {failure.text}" if failure.text else failure.label
