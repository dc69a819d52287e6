"""Percentiles, rates, and the merging of rounds."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.bench.bench_figures import (
    Failure,
    FailureKind,
    RunResult,
    Sample,
    ServerCounts,
    figures_of,
    percentile,
    percentiles,
)
from paddler_trio.cli.bench.plan import Run
from paddler_trio.cli.bench.workloads import Workload

TIMES = st.floats(min_value=0, max_value=1e4, allow_nan=False)
RUN = Run(number=0, occasion=0, workload=Workload.plain, concurrency=1, round=0, target=0)


def sample(
    ttft_s: float | None = 0.1,
    gaps_s: list[float] | None = None,
    *,
    prompt_ms: float | None = None,
    failure: Failure | None = None,
    tokens: int | None = None,
) -> Sample:
    gaps = array("d", gaps_s or [])
    first_s = None if ttft_s is None else 5.0 + ttft_s
    return Sample(
        kind="plain",
        sent_s=5.0,
        ended_s=5.0 + (ttft_s or 0.0) + sum(gaps),
        first_s=first_s,
        gaps_s=gaps,
        num_pieces=len(gaps) + 1,
        counts=ServerCounts(completion_tokens=tokens, prompt_ms=prompt_ms),
        failure=failure,
    )


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    if draw(st.booleans()):
        kind = draw(st.sampled_from(FailureKind))
        status = 503 if kind is FailureKind.status else 0
        return sample(None, failure=Failure(kind, "words", status))
    return sample(
        draw(TIMES),
        draw(st.lists(TIMES, max_size=5)),
        prompt_ms=draw(st.none() | TIMES),
        tokens=draw(st.none() | st.integers(0, 1000)),
    )


@st.composite
def results(draw: st.DrawFn) -> RunResult:
    found = draw(st.lists(samples(), max_size=6))
    began_s = draw(TIMES)
    return RunResult(
        run=RUN,
        began_s=began_s,
        ended_s=began_s + draw(st.floats(min_value=0.5, max_value=60)),
        client_cpu_s=draw(st.floats(min_value=0, max_value=60)),
        num_sent=len(found) + draw(st.integers(0, 3)),
        samples=found,
    )


@given(st.lists(TIMES, min_size=1), st.integers(1, 100))
def test_so_many_percent_of_the_values_are_no_larger_and_it_is_the_smallest_such_value(
    values: list[float], percent: int
) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    needed = percent * len(values) / 100
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (95, 10), (99, 10), (10, 1), (11, 2)])
def test_percentiles_are_of_the_nearest_rank(percent: int, value: int) -> None:
    assert percentile(range(1, 11), percent) == value


@given(st.lists(TIMES, min_size=1))
def test_percentiles_rise_and_order_does_not_matter(values: list[float]) -> None:
    found = percentiles(values)
    assert found == percentiles(reversed(values))
    assert found is not None
    assert min(values) <= found.p50 <= found.p95 <= found.p99 <= max(values)
    assert found.count == len(values)


def test_of_no_values_there_are_no_percentiles() -> None:
    assert percentiles([]) is None
    nothing = figures_of([])
    assert (nothing.ttft, nothing.tokens_per_s, nothing.error_rate) == (None, 0.0, 0.0)


@given(st.lists(results(), min_size=1, max_size=4))
def test_merged_rounds_have_all_requests_and_rates_between_those_of_the_rounds(
    rounds: list[RunResult],
) -> None:
    merged = figures_of(rounds)
    each = [figures_of([result]) for result in rounds]
    for name in ("requests", "failed", "unfinished", "completion_tokens"):
        assert getattr(merged, name) == sum(getattr(figures, name) for figures in each), name
    assert merged.requests == merged.failed + (0 if merged.total is None else merged.total.count)
    assert sum(merged.errors.values()) == merged.failed
    for name in ("tokens_per_s", "requests_per_s", "client_share"):
        rates = [getattr(figures, name) for figures in each]
        assert min(rates) - 1e-6 <= getattr(merged, name) <= max(rates) + 1e-6, name


@given(st.lists(results(), min_size=1, max_size=4))
def test_the_order_of_rounds_changes_nothing(rounds: list[RunResult]) -> None:
    merged = figures_of(rounds)
    again = figures_of(rounds[::-1])
    assert merged.ttft == again.ttft
    assert merged.itl == again.itl
    assert merged.errors == again.errors
    assert merged.wall_s == pytest.approx(again.wall_s)


@given(st.lists(results(), min_size=1, max_size=4))
def test_failed_requests_count_in_no_time_and_no_rate(rounds: list[RunResult]) -> None:
    merged = figures_of(rounds)
    for result in rounds:
        result.samples = [each for each in result.samples if each.failure is None]
    alone = figures_of(rounds)
    assert (merged.ttft, merged.itl, merged.queue) == (alone.ttft, alone.itl, alone.queue)
    assert merged.tokens_per_s == alone.tokens_per_s


def test_the_queue_is_what_the_time_of_the_prompt_leaves_of_the_first_token() -> None:
    assert sample(0.5, prompt_ms=200).queue_s == pytest.approx(0.3)
    assert sample(0.5, prompt_ms=900).queue_s == 0, "clocks of two machines may differ"
    assert sample(0.5).queue_s is None
    assert sample(None, prompt_ms=200).queue_s is None


def test_pieces_are_counted_where_the_server_counts_no_tokens() -> None:
    assert sample(0.1, [0.1, 0.1]).completion_tokens == 3
    assert sample(0.1, [0.1, 0.1], tokens=7).completion_tokens == 7


def test_a_client_that_needs_most_of_a_core_is_told_of() -> None:
    busy = RunResult(run=RUN, began_s=0, ended_s=10, client_cpu_s=7.1)
    idle = RunResult(run=RUN, began_s=0, ended_s=10, client_cpu_s=6.9)
    assert figures_of([busy]).client_was_busy
    assert not figures_of([idle]).client_was_busy


def test_failures_are_counted_by_what_happened_and_by_status() -> None:
    failures = [
        Failure(FailureKind.status, "full", 503),
        Failure(FailureKind.status, "full", 503),
        Failure(FailureKind.status, "what?", 400),
        Failure(FailureKind.timeout, "not over"),
    ]
    result = RunResult(
        run=RUN, num_sent=5, samples=[sample(None, failure=each) for each in failures]
    )
    figures = figures_of([result])
    assert figures.errors == {"status 400": 1, "status 503": 2, "timeout": 1}
    assert (figures.error_rate, figures.unfinished) == (1.0, 1)
