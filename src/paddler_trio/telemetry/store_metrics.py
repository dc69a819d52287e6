"""The metrics that ``GET /metrics`` of a balancer with a model store shows of it.

The store is a process of its own, which reports once a second; its totals begin anew with it.
"""

from __future__ import annotations

from typing import Final

from paddler_trio.telemetry.metric_kind import metric

STORE_UP: Final = metric("gauge", "model_store_up", "1 while the process of the model store serves")
STORE_BYTES: Final = metric(
    "gauge",
    "model_store_bytes",
    "Bytes that count as taken: of files that lie there, and of those on their way in full",
    unit="bytes",
)
STORE_LIMIT_BYTES: Final = metric(
    "gauge", "model_store_limit_bytes", "Bytes that it may take of the disk", unit="bytes"
)
STORE_FILES: Final = metric("gauge", "model_store_files", "Files that lie there, whole or not")
STORE_REQUESTS: Final = metric(
    "counter",
    "model_store_requests_total",
    "Requests for files, by what was there of the file; an agent asks for a file in parts",
    "found",
)
STORE_FETCHED_BYTES: Final = metric(
    "counter",
    "model_store_fetched_bytes_total",
    "Bytes of files that it received from their sources",
    unit="bytes",
)
STORE_PUSHED_BYTES: Final = metric(
    "counter",
    "model_store_pushed_bytes_total",
    "Bytes of files that were pushed to it",
    unit="bytes",
)
STORE_SENT_BYTES: Final = metric(
    "counter",
    "model_store_sent_bytes_total",
    "Bytes of files that it sent to agents and to other clients",
    unit="bytes",
)
STORE_EVICTIONS: Final = metric(
    "counter", "model_store_evictions_total", "Files that went for want of room"
)
STORE_DOWNLOADS_RUNNING: Final = metric(
    "gauge", "model_store_downloads_running", "Files on their way from their sources"
)
STORE_DOWNLOADS: Final = metric(
    "counter",
    "model_store_downloads_total",
    "Downloads from sources that are over, by outcome",
    "outcome",
)

STORE_METRICS: Final = (
    STORE_UP,
    STORE_BYTES,
    STORE_LIMIT_BYTES,
    STORE_FILES,
    STORE_REQUESTS,
    STORE_FETCHED_BYTES,
    STORE_PUSHED_BYTES,
    STORE_SENT_BYTES,
    STORE_EVICTIONS,
    STORE_DOWNLOADS_RUNNING,
    STORE_DOWNLOADS,
)
"""The metrics in this order, and only of a balancer with a store."""
