"""Counters and histograms against plain sums, and the bounds of labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitoring_files import BALANCER_METRICS
from paddler_trio.telemetry.balancer_metrics import (
    REQUESTS,
    TIME_TO_FIRST_TOKEN,
)
from paddler_trio.telemetry.metric_kind import MetricDefinition
from paddler_trio.telemetry.recording import (
    BoundedValues,
    Buckets,
    Counts,
    Histogram,
    Sample,
    counted,
    distributed,
)

VALUES = st.floats(min_value=0, max_value=1e4, allow_nan=False)


def small(most: int, *labels: str, buckets: tuple[float, ...] = ()) -> MetricDefinition:
    return MetricDefinition(
        name="x_total",
        kind="histogram" if buckets else "counter",
        help="x",
        labels=labels,
        buckets=buckets,
        max_label_values=most,
    )


@given(st.lists(st.tuples(VALUES, st.integers(1, 5))))
def test_a_bucket_has_what_is_not_above_its_bound(values: list[tuple[float, int]]) -> None:
    bounds = TIME_TO_FIRST_TOKEN.buckets
    histogram = Histogram(TIME_TO_FIRST_TOKEN)
    for value, times in values:
        histogram.of("default").add(value, times)
    samples = list(distributed(histogram).samples) or []
    if not values:
        assert samples == []
        return
    by_bound = {dict(each.labels)["le"]: each.value for each in samples if each.suffix == "_bucket"}
    for bound in bounds:
        assert by_bound[repr(bound)] == sum(times for value, times in values if value <= bound)
    number = sum(times for _, times in values)
    total = sum(value * times for value, times in values)
    assert by_bound["+Inf"] == number
    (count,) = (each.value for each in samples if each.suffix == "_count")
    (sum_,) = (each.value for each in samples if each.suffix == "_sum")
    assert count == number
    assert abs(sum_ - total) <= 1e-9 * max(1.0, total)


@given(st.lists(st.sampled_from([f"agent{number}" for number in range(9)])))
def test_values_beyond_the_bound_are_others_for_good(names: list[str]) -> None:
    counts = Counts(small(3, "agent"))
    for name in names:
        counts.add(1, name)
    kept = list(dict.fromkeys(names))[:3]
    expected = {(name,): float(names.count(name)) for name in kept}
    others = sum(name not in kept for name in names)
    assert counts.values == expected | ({("other",): others} if others else {})


def test_each_label_of_a_counter_has_its_own_bound() -> None:
    counts = Counts(small(2, "route", "outcome"))
    for route in "abc":
        for outcome in "xyz":
            counts.add(1, route, outcome)
    assert counts.values.keys() == {
        (route, outcome) for route in ("a", "b", "other") for outcome in ("x", "y", "other")
    }
    assert sum(counts.values.values()) == 9
    assert counts.values["other", "other"] == 1


def test_a_forgotten_value_makes_room() -> None:
    bounded = BoundedValues(1)
    assert [bounded.bounded(each) for each in ("a", "b", "a")] == ["a", "other", "a"]
    bounded.forget("a")
    assert [bounded.bounded(each) for each in ("b", "a")] == ["b", "other"]


def test_a_histogram_has_a_bound_too() -> None:
    histogram = Histogram(small(2, "deployment", buckets=(1.0,)))
    assert histogram.of("a") is histogram.of("a")
    assert histogram.of("b") is not histogram.of("c")
    assert histogram.of("c") is histogram.of("d")
    assert list(histogram.series) == ["a", "b", "other"]


def test_what_was_collected_does_not_change_while_it_is_rendered() -> None:
    counts, histogram = Counts(REQUESTS), Histogram(TIME_TO_FIRST_TOKEN)
    counts.add(1, "/v1/x", "completed")
    histogram.of("default").add(0.5)
    before = counted(counts), distributed(histogram)
    counts.add(1, "/v1/x", "completed")
    counts.add(1, "/v1/y", "completed")
    histogram.of("default").add(0.5)
    histogram.of("coder").add(0.5)
    assert [each.value for each in before[0].samples] == [1]
    assert max(each.value for each in before[1].samples) == 1


def test_a_bucket_keeps_its_newest_example() -> None:
    buckets = Buckets((1.0, 2.0))
    for value, trace in ((0.5, "first"), (0.6, "second"), (1.0, "on the bound"), (9.0, "above")):
        buckets.add(value)
        buckets.exemplify(value, "trace_id", trace)
    assert {place: each[:3] for place, each in buckets.exemplars.items()} == {
        0: ("trace_id", "on the bound", 1.0),
        2: ("trace_id", "above", 9.0),
    }


def test_a_counter_without_labels_begins_at_nothing() -> None:
    (definition,) = (each for each in BALANCER_METRICS if each.name == "continuations_total")
    assert list(counted(Counts(definition)).samples) == [Sample((), 0)]
