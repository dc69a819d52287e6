"""What both daemons measure."""

from __future__ import annotations

from typing import Final

from paddler_trio.telemetry.metric_kind import LAG_BUCKETS_S, histogram, metric

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
