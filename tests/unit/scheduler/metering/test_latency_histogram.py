"""What is read of a histogram is what was measured, within its promise."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.metering.latency_histogram import LEAST_S, LatencyHistogram

LATENCIES = st.lists(st.floats(LEAST_S, 10_000), min_size=1, max_size=200)


@given(LATENCIES, st.floats(0.001, 1))
def test_quantiles_are_exact_to_five_percent(latencies_s: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for latency_s in latencies_s:
        histogram.add(latency_s)
    exact_s = sorted(latencies_s)[ceil(share * len(latencies_s)) - 1]
    read_s = histogram.quantile(share)
    assert read_s is not None
    assert abs(read_s - exact_s) <= 0.05 * exact_s


@given(LATENCIES, st.integers(1, 50))
def test_several_at_once_are_as_many_one_by_one(latencies_s: list[float], times: int) -> None:
    one_by_one, at_once = LatencyHistogram(), LatencyHistogram()
    for latency_s in latencies_s:
        at_once.add(latency_s, times)
        for _ in range(times):
            one_by_one.add(latency_s)
    for share in (0.01, 0.5, 0.95, 1):
        assert one_by_one.quantile(share) == at_once.quantile(share)


@given(st.floats(allow_nan=False, max_value=1e-5))
def test_what_is_too_short_or_negative_counts_as_the_least(latency_s: float) -> None:
    histogram = LatencyHistogram()
    histogram.add(latency_s)
    read_s = histogram.quantile(1)
    assert read_s is not None
    assert 1 <= read_s / LEAST_S < 1.1


def test_the_longest_have_a_bucket_and_an_empty_one_has_no_quantile() -> None:
    histogram = LatencyHistogram()
    assert histogram.quantile(0.5) is None
    histogram.add(1e9)
    read_s = histogram.quantile(0.5)
    assert read_s is not None
    assert read_s > 3600
    histogram.clear()
    assert histogram.quantile(0.5) is None


def histogram_of(latencies_s: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency_s in latencies_s:
        histogram.add(latency_s, 1 + int(latency_s) % 300)
    return histogram


@given(LATENCIES, LATENCIES)
def test_parts_add_up_to_the_whole_and_are_found_again(
    early_s: list[float], late_s: list[float]
) -> None:
    whole, before = histogram_of(early_s + late_s), histogram_of(early_s)
    assert whole.without(before) == histogram_of(late_s)
    parts = before.copy()
    parts.include(histogram_of(late_s))
    assert parts == whole
    assert before == histogram_of(early_s)
    assert LatencyHistogram.unpack(whole.pack()) == whole


@given(st.binary(max_size=40))
def test_what_is_no_block_is_an_error_and_never_another_histogram(block: bytes) -> None:
    try:
        found = LatencyHistogram.unpack(block)
    except ValueError:
        return
    assert LatencyHistogram.unpack(found.pack()) == found
