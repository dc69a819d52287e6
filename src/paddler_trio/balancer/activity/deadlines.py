"""Ends requests whose clients said how long they wait: when that time is over, and as soon as it is
sure that it will not do.

What is sure is a matter of prediction: the requests that stand before one, at the pace at which the
queue has moved, and the quickest first token that any agent is predicted to have. As long as
nothing was measured nothing is sure.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Final

import attrs
import trio

from paddler_trio.net.server.client_identity import PATIENCE, Patience
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.pools import Pools
from paddler_trio.nursery_tree.request import Buffered, Ended, Leased, Phase, Request
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.system.printed_tree import explain_this_task

LOOK_S: Final = 0.25
SURE: Final = 2.0
"""What has a slot is given up only if it would take so many times what is left."""
MAX_LOOKED_AT: Final = 256
"""Requests in the queue that are judged at a time."""


def expected_start_s(pools: Pools, request: Request) -> float | None:
    """Return how long a request that waits will wait yet; None if it does not, or if neither the
    pace of its queue nor the end of a load is known."""
    paced_s, held = _paced_start_s(pools, request), pools.hold_of(request)
    left_s = 0.0 if held is None else held.until_s - trio.current_time()
    if left_s <= 0 or pools.position(request) is None:
        return paced_s
    return max(paced_s or 0.0, left_s)


def _paced_start_s(pools: Pools, request: Request) -> float | None:
    """Return the same by the pace of its queue alone: how long a load takes is less sure."""
    pool = pools.find(request.deployment)
    ahead = None if pool is None else pool.ledger.position(request.key)
    if pool is None or ahead is None:
        return None
    return pool.rate.wait_s(ahead + 1, trio.current_time())


@attrs.frozen
class _Watched:
    request: Request
    patience: Patience
    ends_s: float


@attrs.define(eq=False, repr=False)
class Deadlines(DispatchObserver):
    """See the module docstring; one for a balancer. Its task ends requests, not the observer."""

    placement: WarmPlacement
    _watched: dict[RequestKey, _Watched] = attrs.field(factory=dict, init=False)
    """Requests that have not ended and whose clients do not wait for ever."""
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._watched)} requests>"

    def arrived(self, request: Request) -> None:
        patience = PATIENCE.get()
        if patience is not None:
            since_s = request.arrived_s if patience.since_s is None else patience.since_s
            watched = _Watched(request, patience, since_s + patience.seconds)
            self._watched[request.key] = watched
            self._news.set()

    def moved(self, request: Request, left: Phase) -> None:
        if isinstance(request.phase, Ended):
            self._watched.pop(request.key, None)

    async def run(self, pools: Pools) -> None:
        """End requests until cancelled."""
        explain_this_task(lambda: repr(self))
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._watched:
                self.look(pools)
                with trio.move_on_after(self._pause_s()):
                    await self._news.wait()
                self._news = trio.Event()

    def look(self, pools: Pools) -> None:
        """End those whose time is over, or will be before they have an answer."""
        now_s = trio.current_time()
        for each in list(self._watched.values()):
            if now_s >= each.ends_s:
                each.request.abort(_over(each))
        for key in list(islice(self._watched, MAX_LOOKED_AT)):
            each = self._watched.pop(key)
            request = each.request
            if not request.is_over:
                self._watched[key] = each  # others the next time
                left_s = each.ends_s - now_s
                needed_s = self._needed_s(pools, request)
                sure_s = left_s if isinstance(request.phase, Buffered) else SURE * left_s
                if needed_s is not None and needed_s > sure_s:
                    request.abort(_hopeless(each, now_s + needed_s))

    def _pause_s(self) -> float:
        """Return when to look again, if nobody comes."""
        now_s = trio.current_time()
        ends_s = [each.ends_s for each in self._watched.values()]
        left_s = max(0.0, min(ends_s, default=math.inf) - now_s)
        waits = any(isinstance(each.request.phase, Buffered) for each in self._watched.values())
        return min(left_s, LOOK_S) if waits else left_s

    def _needed_s(self, pools: Pools, request: Request) -> float | None:
        """Return when the first token of a request is expected; None if that is not known, or if it
        is there."""
        match request.phase:
            case Buffered():
                start_s = _paced_start_s(pools, request)
                quickest_s = self.placement.quickest_s(request.key)
                return None if start_s is None else start_s + quickest_s
            case Leased(lease) if lease.num_deliveries == 0 and lease.choice is not None:
                prediction = lease.choice.prediction
                is_measured = self.placement.quickest_s(request.key) > 0
                if prediction is None or not is_measured:
                    return None
                for option in prediction.options:
                    if option.agent == lease.agent.label:
                        since_s = trio.current_time() - lease.heard_s
                        return option.predicted_s - option.wait_s - since_s
                return None
            case _:
                return None


def _over(watched: _Watched) -> Failure:
    patience = watched.patience
    if not watched.request.agents:
        words = f"{patience.field}: no slot was free within {patience.seconds:g} s"
        return Failure(503, words)
    words = f"{patience.field}: the answer was not complete after {patience.seconds:g} s"
    return Failure(504, words)


def _hopeless(watched: _Watched, ready_s: float) -> Failure:
    patience = watched.patience
    since_s = watched.ends_s - patience.seconds
    words = (
        f"{patience.field}: {patience.seconds:g} s will not do, the first token is expected "
        f"{ready_s - since_s:.1f} s after the arrival"
    )
    return Failure(503, words)
