"""Counters and histograms that are cheap to add to, and are read when somebody scrapes them.

Plain lists and dictionaries, changed by the one thread of the event loop: no locks, no label
objects. A token costs a look-up in a sorted tuple and two additions. What labels may become is
bounded: values beyond the bound are counted as ``other``, so what a client or an agent calls itself
cannot fill the memory, nor the database behind the scrape. Pure, but for the time of an exemplar.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from paddler_trio.telemetry.metric_kind import OTHER, MetricDefinition

Exemplar: TypeAlias = tuple[str, str, float, float]
"""Label (``trace_id`` or ``request_id``), its value, what was measured, and when."""


@attrs.define(eq=False)
class BoundedValues:
    """The values that a label has had: the first ``most`` keep their names."""

    most: int
    _known: dict[str, str] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._known)

    def bounded(self, value: str) -> str:
        """Return ``value`` if it has a place or gets one, else ``other``."""
        known = self._known.get(value)
        if known is not None:
            return known
        if len(self._known) >= self.most:
            return OTHER
        self._known[value] = value
        return value

    def forget(self, value: str) -> None:
        """Free the place of a value."""
        self._known.pop(value, None)


@attrs.define(eq=False, repr=False)
class Counts:
    """A counter with labels.

    Args:
      definition: its ``labels`` are what :meth:`add` takes, in order.
    """

    definition: MetricDefinition
    values: dict[tuple[str, ...], float] = attrs.field(factory=dict, init=False)
    """The counts by label values."""
    _bounds: tuple[BoundedValues, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        definition = self.definition
        self._bounds = tuple(BoundedValues(definition.max_label_values) for _ in definition.labels)
        if not definition.labels:
            self.values[()] = 0

    def __repr__(self) -> str:
        return f"<Counts {self.definition.name} of {len(self.values)} series>"

    def add(self, number: float, *labels: str) -> None:
        """Count so many more of these label values."""
        key = labels
        if key not in self.values:
            key = tuple(
                bound.bounded(each) for bound, each in zip(self._bounds, labels, strict=True)
            )
        self.values[key] = self.values.get(key, 0) + number


@attrs.define(eq=False, repr=False)
class Buckets:
    """Counts of how often values fell between the bounds of a histogram, and their sum; one series
    of it.

    A value that equals a bound is below it, as Prometheus has it.
    """

    bounds: tuple[float, ...]
    counts: list[int] = attrs.field(init=False)
    """One for each bound, not cumulative, and one for what is above all of them."""
    sum: float = attrs.field(default=0.0, init=False)
    exemplars: dict[int, Exemplar] = attrs.field(factory=dict, init=False)
    """The newest of a bucket, by its place in ``counts``."""

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def __repr__(self) -> str:
        return f"<Buckets with {sum(self.counts)} values>"

    def add(self, value: float, times: int = 1) -> None:
        """Count one more value, or several equal ones."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def exemplify(self, value: float, label: str, of: str) -> None:
        """Note that ``of`` is an example of what had this value."""
        self.exemplars[bisect_left(self.bounds, value)] = (label, of, value, time.time())


@attrs.define(eq=False, repr=False)
class Histogram:
    """The series of a histogram with at most one label."""

    definition: MetricDefinition
    series: dict[str, Buckets] = attrs.field(factory=dict, init=False)
    """The series by the value of the label; by the empty string without one."""

    def __attrs_post_init__(self) -> None:
        assert len(self.definition.labels) <= 1, f"{self.definition.name} has several labels"
        if not self.definition.labels:
            self.series[""] = Buckets(self.definition.buckets)

    def __repr__(self) -> str:
        return f"<Histogram {self.definition.name} of {len(self.series)} series>"

    def of(self, label: str = "") -> Buckets:
        """Return the series of this value, or of ``other`` when there are too many; keep it."""
        found = self.series.get(label)
        if found is not None:
            return found
        name = label if len(self.series) < self.definition.max_label_values else OTHER
        return self.series.setdefault(name, Buckets(self.definition.buckets))


@attrs.frozen
class Sample:
    """One line of a metric.

    Args:
      suffix: after the metric's name: ``_bucket``, ``_sum``, ``_count`` or empty.
      labels: pairs; with ``le`` for a bucket.
    """

    labels: tuple[tuple[str, str], ...]
    value: float
    suffix: str = ""
    exemplar: Exemplar | None = None


@attrs.frozen
class Family:
    """A metric and its lines, as they are now."""

    definition: MetricDefinition
    samples: Iterator[Sample]


def counted(counts: Counts) -> Family:
    """Return a counter as it is now."""
    return family(counts.definition, dict(counts.values))


def family(definition: MetricDefinition, values: dict[tuple[str, ...], float]) -> Family:
    """Return a counter or gauge with these values, by label values."""
    names = definition.labels
    return Family(
        definition,
        (Sample(tuple(zip(names, labels, strict=True)), value) for labels, value in values.items()),
    )


def single(definition: MetricDefinition, value: float) -> Family:
    """Return a counter or gauge without labels."""
    return Family(definition, iter((Sample((), value),)))


def distributed(histogram: Histogram) -> Family:
    """Return a histogram as it is now."""
    copies = [
        (label, list(buckets.counts), buckets.sum, dict(buckets.exemplars))
        for label, buckets in histogram.series.items()
    ]
    return Family(histogram.definition, _lines(histogram.definition, copies))


def _lines(
    definition: MetricDefinition, series: list[tuple[str, list[int], float, dict[int, Exemplar]]]
) -> Iterator[Sample]:
    bounds = [_le(bound) for bound in definition.buckets] + ["+Inf"]
    for label, counts, total, exemplars in series:
        labels = tuple((name, label) for name in definition.labels)
        below = 0
        for place, (bound, count) in enumerate(zip(bounds, counts, strict=True)):
            below += count
            yield Sample((*labels, ("le", bound)), below, "_bucket", exemplars.get(place))
        yield Sample(labels, below, "_count")
        yield Sample(labels, total, "_sum")


def _le(bound: float) -> str:
    """Return a bound as Prometheus's own clients write it: ``1.0``, not ``1``."""
    return repr(float(bound))
