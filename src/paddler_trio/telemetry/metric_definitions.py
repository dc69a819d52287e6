"""Every metric that there is, with names, kinds, labels and buckets: the one place.

What renders them, documents them and makes dashboards and alerts of them reads these tuples, so a
name cannot differ between any two of them. Names are without the prefix, which operators choose for
a balancer (``--statsd-prefix``, ``paddler_`` by default) and which is ``paddler_`` on agents.
"""

from __future__ import annotations

from paddler_trio.telemetry.agent_metrics import AGENT_METRICS
from paddler_trio.telemetry.balancer_metrics import BALANCER_METRICS
from paddler_trio.telemetry.metric_kind import AGENT_PREFIX, MetricDefinition, MetricKind, Where

__all__ = [
    "AGENT_METRICS",
    "AGENT_PREFIX",
    "BALANCER_METRICS",
    "MetricDefinition",
    "MetricKind",
    "Where",
]
