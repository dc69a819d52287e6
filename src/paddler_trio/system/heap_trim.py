"""Memory that peaks of load leave behind is given back while the daemon goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from paddler_trio.system.heap import trim_heap

TRIM_EVERY_S: Final = 30.0


async def run_heap_trim(trim: Callable[[], None] = trim_heap) -> None:
    """Trim the heap every ``TRIM_EVERY_S`` until cancelled; a trim that has begun is awaited."""
    while True:
        await trio.sleep(TRIM_EVERY_S)
        await trio.to_thread.run_sync(trim)
