"""Show what a balancer knows of its model store: what the store's process reported last."""

from __future__ import annotations

from collections.abc import Iterator

from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild
from paddler_trio.telemetry.balancer_metrics import (
    STORE_BYTES,
    STORE_DOWNLOADS,
    STORE_DOWNLOADS_RUNNING,
    STORE_EVICTIONS,
    STORE_FETCHED_BYTES,
    STORE_FILES,
    STORE_LIMIT_BYTES,
    STORE_PUSHED_BYTES,
    STORE_REQUESTS,
    STORE_SENT_BYTES,
    STORE_UP,
)
from paddler_trio.telemetry.label_values import DOWNLOAD_OUTCOMES, STORE_FOUND
from paddler_trio.telemetry.recording import Family, family, single


def of_store(store: ModelStoreChild) -> Iterator[Family]:
    """Return the metrics of the store."""
    counts = store.counts
    yield single(STORE_UP, int(store.is_up))
    yield single(STORE_BYTES, counts.used_bytes)
    yield single(STORE_LIMIT_BYTES, store.size_bytes)
    yield single(STORE_FILES, counts.files)
    found = zip(STORE_FOUND, counts.found, strict=True)
    yield family(STORE_REQUESTS, {(word,): number for word, number in found})
    yield single(STORE_FETCHED_BYTES, counts.fetched_bytes)
    yield single(STORE_PUSHED_BYTES, counts.pushed_bytes)
    yield single(STORE_SENT_BYTES, counts.sent_bytes)
    yield single(STORE_EVICTIONS, counts.evictions)
    yield single(STORE_DOWNLOADS_RUNNING, counts.downloads_running if store.is_up else 0)
    ended = zip(DOWNLOAD_OUTCOMES, counts.downloads, strict=True)
    yield family(STORE_DOWNLOADS, {(word,): number for word, number in ended})
