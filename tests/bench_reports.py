"""A load test that nobody made: runs of known times, and their report."""

from __future__ import annotations

from array import array

from paddler_trio.cli.bench.bench_figures import (
    Failure,
    FailureKind,
    RunResult,
    Sample,
    ServerCounts,
)
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.report.report import Report, TargetShown, report_of

PLAN = BenchPlan(concurrencies=(2, 1), rounds=2, requests=1, num_targets=2, seed=7)
TARGETS = (
    TargetShown("ours", "http://127.0.0.1:8061", "demo"),
    TargetShown("<b>other</b>", "http://127.0.0.1:8080", "m & n"),
)


def sample(ttft_s: float, *, kind: str = "plain", prompt_ms: float | None = None) -> Sample:
    return Sample(
        kind=kind,
        sent_s=1.0,
        ended_s=1.0 + ttft_s + 0.1,
        first_s=1.0 + ttft_s,
        gaps_s=array("d", [0.04, 0.06]),
        counts=ServerCounts(
            prompt_tokens=30, cached_tokens=6, completion_tokens=40, prompt_ms=prompt_ms
        ),
    )


def failed(text: str = "full", status: int = 503) -> Sample:
    return Sample(
        kind="plain", sent_s=1, ended_s=2, failure=Failure(FailureKind.status, text, status)
    )


def results() -> list[RunResult]:
    """Each run takes a second; the first tokens of the second target come twice as late."""
    found = []
    for run in PLAN.runs:
        ttft_s = 0.1 * run.concurrency * (1 + run.target) + 0.01 * run.round
        samples = [sample(ttft_s, prompt_ms=None if run.target == 0 else 20)]
        if run.concurrency == 2:
            samples += [sample(ttft_s), failed("no <slot>")]
        result = RunResult(
            run=run,
            began_s=0,
            ended_s=1 if run.concurrency == 2 or run.round else 1 / 3,
            client_cpu_s=0.1,
            num_sent=len(samples),
            samples=samples,
            is_over=True,
        )
        found.append(result)
    return found


def report(*, stopped: str = "") -> Report:
    return report_of(
        PLAN,
        TARGETS,
        results(),
        started="2026-01-02T03:04:05+00:00",
        version="1",
        stopped=stopped,
    )
