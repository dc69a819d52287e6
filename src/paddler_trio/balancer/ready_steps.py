"""The steps of a request that one write can carry."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from paddler_trio.nursery_tree.request import Request, Results

MAX_STEPS_PER_WRITE = 64


def ready_steps(request: Request, *, after: int = 0) -> Iterator[Results]:
    """The steps that have arrived and were not read, without waiting.

    A client that lags thus costs fewer writes, not more. ``after``: steps that the write carries
    already; at most ``MAX_STEPS_PER_WRITE`` are in one.
    """
    try:
        for _ in range(after, MAX_STEPS_PER_WRITE):
            yield request.outbox.receive_nowait()
    except (trio.WouldBlock, trio.EndOfChannel):
        pass
