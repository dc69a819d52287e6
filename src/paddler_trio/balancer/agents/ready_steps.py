"""The steps of a request that one write can carry."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import trio

from paddler_trio.balancer.agents.direct_results import DirectResults
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.step_results import Results

MAX_STEPS_PER_WRITE = 64


def ready_steps(request: Request, *, after: int = 0) -> Iterator[Results]:
    """Return the steps that have arrived and were not read, without waiting.

    A client that lags thus costs fewer writes, not more. ``after``: steps that the write carries
    already; at most ``MAX_STEPS_PER_WRITE`` are in one.
    """
    try:
        for _ in range(after, MAX_STEPS_PER_WRITE):
            yield request.outbox.receive_nowait()
    except (trio.WouldBlock, trio.EndOfChannel):
        pass


@attrs.frozen(eq=False)
class StepReader:
    """Iterates over the outbox of a request, all steps that are ready at a time; while it waits,
    results may go past it."""

    request: Request
    direct: DirectResults | None = None

    def __aiter__(self) -> StepReader:
        return self

    async def __anext__(self) -> list[Results]:
        if self.direct is not None:
            self.direct.consumer_waits()
        try:
            first = await self.request.outbox.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None
        finally:
            if self.direct is not None:
                self.direct.consumer_works()
        return [first, *ready_steps(self.request, after=1)]
