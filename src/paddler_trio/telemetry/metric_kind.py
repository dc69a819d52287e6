"""The shape of a metric, and the conventions: base units, buckets, bounds.

Conventions are those of Prometheus: base units, counters end in ``_total``. Exceptions are older
than that here: Paddler's three gauges, gauges that count, and one in milliseconds.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]
Where: TypeAlias = Literal["balancer", "agent", "both"]

MAX_LABEL_VALUES: Final = 1000
OTHER: Final = "other"
"""The value of a label for everything beyond the bound."""
AGENT_PREFIX: Final = "paddler_"
"""The prefix of the names of an agent's metrics."""


def doubling(first: float, number: int) -> tuple[float, ...]:
    return tuple(round(first * 2**power, 10) for power in range(number))


TTFT_BUCKETS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
"""Those of OpenTelemetry's GenAI conventions, and longer ones: a large model on a CPU."""
INTER_TOKEN_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0),
)
"""The buckets of ``time_per_output_token``, and shorter ones: several tokens a step."""
DURATION_BUCKETS_S: Final = doubling(0.01, 17)
QUEUE_BUCKETS_S: Final = (
    *(0.001, 0.01, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
LOAD_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@attrs.frozen(kw_only=True)
class MetricDefinition:
    """One metric.

    Args:
      name: as it is exposed, without the prefix; a counter's ends in ``_total``.
      labels: their names, in order.
      buckets: upper bounds of a histogram, ascending; ``+Inf`` is not among them.
      unit: ``seconds``, ``bytes``, ``tokens``, ``ratio`` (0 to 1), or empty for plain counts.
      max_label_values: of each label; what is beyond is counted as ``other``.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    unit: str = ""
    where: Where = "balancer"
    max_label_values: int = MAX_LABEL_VALUES


def metric(
    kind: MetricKind,
    name: str,
    words: str,
    *labels: str,
    unit: str = "",
    where: Where = "balancer",
) -> MetricDefinition:
    return MetricDefinition(name=name, kind=kind, help=words, labels=labels, unit=unit, where=where)


MAX_HISTOGRAM_VALUES: Final = 100
"""A histogram is twenty series for each value of its label."""


def histogram(
    name: str,
    words: str,
    *labels: str,
    buckets: tuple[float, ...],
    where: Where = "balancer",
) -> MetricDefinition:
    return MetricDefinition(
        name=name,
        kind="histogram",
        help=words,
        labels=labels,
        buckets=buckets,
        unit="seconds",
        where=where,
        max_label_values=MAX_HISTOGRAM_VALUES,
    )
