"""The metrics that both daemons have."""

from __future__ import annotations

from types import ModuleType
from typing import Final, Literal

from paddler_trio import __version__
from paddler_trio.telemetry.metric_kind import (
    LAG_BUCKETS_S,
    MetricDefinition,
    histogram,
    metric,
)
from paddler_trio.telemetry.recording import Family, family

SLOTS_PROCESSING: Final = metric(
    "gauge", "slots_processing", "Number of processing slots", where="both"
)
SLOTS_TOTAL: Final = metric("gauge", "slots_total", "Number of total slots", where="both")
REQUESTS_BUFFERED: Final = metric(
    "gauge", "requests_buffered", "Number of buffered requests", where="both"
)
PADDLERS: Final = (SLOTS_PROCESSING, SLOTS_TOTAL, REQUESTS_BUFFERED)
"""Paddler 4.1's, in its order and words."""

BUILD_INFO: Final = metric(
    "info", "build_info", "The version that runs", "component", "version", where="both"
)
LOOP_LAG_SECONDS: Final = histogram(
    "loop_lag_seconds",
    "How late the event loop was, measured ten times a second",
    buckets=LAG_BUCKETS_S,
    where="both",
)


def build_info(component: Literal["balancer", "agent"]) -> Family:
    """Return the version that runs as a metric: its value is 1, its labels say the rest."""
    return family(BUILD_INFO, {(component, __version__): 1})


def metrics_of(daemon: Literal["balancer", "agent"], module: ModuleType) -> list[MetricDefinition]:
    """Return all metrics of a daemon: those here, and those that its module defines."""
    values = (each for place in (globals(), vars(module)) for each in place.values())
    found = [each for each in values if isinstance(each, MetricDefinition)]
    return list(dict.fromkeys(each for each in found if each.where in (daemon, "both")))
