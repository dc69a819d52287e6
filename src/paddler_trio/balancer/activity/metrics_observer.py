"""Record what happens to requests in the figures of the last hour: an observer.

Every delivered step passes here: what it costs, each token costs.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.activity.measures.endings import request_outcome
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Buffered, Ended, Leased, Phase, Request, Stopping
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.scheduler.dispatch.fair_order import RequestKey

FAULTLESS: Final = frozenset({"completed", "stopped", "cancelled", "refused"})
"""Outcomes of requests that did not fail: it was as those wished who sent, asked or ordered it."""


@attrs.define(eq=False)
class MetricsObserver(DispatchObserver):
    """See the module docstring.

    Args:
      finished: the records of requests that ended; the newest is there before this is called.
    """

    metrics: MetricsHistory
    finished: FinishedRequests
    _last_s: dict[RequestKey, float] = attrs.field(factory=dict, init=False)
    """Of requests that have tokens, when the newest came."""

    def arrived(self, request: Request) -> None:
        self.metrics.enters_queue()

    def moved(self, request: Request, left: Phase) -> None:
        metrics, phase = self.metrics, request.phase
        if isinstance(left, Buffered):
            metrics.leaves_queue(
                request.waited_s,
                granted=isinstance(phase, Leased),
                is_first=len(request.agents) == 1,
            )
        elif isinstance(phase, Buffered | Ended):
            metrics.leaves_slot()
            if isinstance(phase, Buffered):
                metrics.enters_queue()
        if request.is_over and not isinstance(left, Stopping):
            outcome = request_outcome(request.ending, request.answered_with)
            metrics.ended(failed=outcome not in FAULTLESS)
        if isinstance(phase, Ended):
            self._last_s.pop(request.key, None)
            record = self.finished.last
            for placement in () if record is None else record.placements:
                if placement.prompt_tokens is not None:
                    metrics.prompt(placement.prompt_tokens, placement.cached_tokens or 0)

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        if results.family != "GeneratedToken":
            return
        tokens = results.num_tokens
        if not tokens:
            return
        last_s = self._last_s.get(request.key)
        self._last_s[request.key] = now_s
        if last_s is None:
            self.metrics.first_result(now_s - request.arrived_s, tokens)
        else:
            self.metrics.step(now_s - last_s, tokens)
