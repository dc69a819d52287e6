"""Count what happens to requests for ``/metrics``: an observer of the dispatcher.

Every delivered step passes here: what it costs, each token costs. So the series that a request adds
to are looked up once, at its arrival, and a step finds them in one object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.activity.measures.agent_measures import AgentMeasures
from paddler_trio.balancer.activity.measures.endings import (
    queue_outcome,
    request_outcome,
    retry_reason,
)
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Buffered, Ended, Phase, Request, Stopping
from paddler_trio.nursery_tree.request_endings import BUFFERED_TOO_LONG
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.telemetry.balancer_metrics import (
    CACHED_PROMPT_TOKENS,
    CONTINUATIONS,
    EMBEDDINGS,
    GENERATION_TOKENS,
    INTER_TOKEN_LATENCY,
    PREEMPTIONS,
    PROMPT_TOKENS,
    QUEUE_DURATION,
    REQUEST_DURATION,
    REQUESTS,
    RETRIES,
    TIME_TO_FIRST_TOKEN,
)
from paddler_trio.telemetry.label_values import QUEUE_OUTCOMES, RETRY_REASONS, TOKEN_CLASSES
from paddler_trio.telemetry.metric_kind import INTER_TOKEN_BUCKETS_S, OTHER
from paddler_trio.telemetry.recording import (
    BoundedValues,
    Buckets,
    Counts,
    Family,
    Histogram,
    counted,
    distributed,
    family,
)
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

SLOW_STEP_S: Final = 0.25
"""A longer time between two tokens is kept as an example of its bucket."""
_CLASSES: Final = {
    "ContentToken": 0,
    "ReasoningToken": 1,
    "ToolCallToken": 2,
    "UndeterminableToken": 3,
}
"""Places in ``TOKEN_CLASSES``."""
INFERENCE_ROUTES: Final = frozenset(
    {
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/api/generate",
        "/api/v1/continue_from_conversation_history",
        "/api/v1/continue_from_raw_prompt",
        "/api/v1/generate_embedding_batch",
        "/api/v1/inference_socket",
        "/api/v2/generate",
        "/chat/completions",
        "/completion",
        "/completions",
        "/embedding",
        "/embeddings",
        "/infill",
        "/rerank",
        "/reranking",
        "/responses",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/reranking",
        "/v1/responses",
    }
)
"""The paths on which requests for inference come; none has a parameter."""


@attrs.define(eq=False)
class _Series:
    """Hold the series of one deployment."""

    duration: Buckets
    ttft: Buckets
    between_tokens: Buckets
    tokens: list[int] = attrs.field(factory=lambda: [0] * len(TOKEN_CLASSES))
    """Generated, by class."""
    embeddings: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@attrs.define(eq=False)
class _Open:
    """A request that has not ended."""

    series: _Series
    last_s: float | None = None
    """When its newest tokens came; None before there are any."""
    lost: str = ""
    """How it lost the slot that it leaves next."""


@attrs.define(eq=False, repr=False)
class RequestMeasures(DispatchObserver):
    """See the module docstring.

    Args:
      finished: the records of requests that ended; the newest is there before this is called.
      has_agents: whether an agent serves a deployment.
      agents: is shown what happens to agents.
    """

    finished: FinishedRequests
    has_agents: Callable[[str], bool]
    agents: AgentMeasures
    requests: Counts = attrs.field(factory=lambda: Counts(REQUESTS), init=False)
    duration: Histogram = attrs.field(factory=lambda: Histogram(REQUEST_DURATION), init=False)
    queue: Histogram = attrs.field(factory=lambda: Histogram(QUEUE_DURATION), init=False)
    ttft: Histogram = attrs.field(factory=lambda: Histogram(TIME_TO_FIRST_TOKEN), init=False)
    between_tokens: Histogram = attrs.field(
        factory=lambda: Histogram(INTER_TOKEN_LATENCY), init=False
    )
    retries: Counts = attrs.field(factory=lambda: Counts(RETRIES), init=False)
    preemptions: Counts = attrs.field(factory=lambda: Counts(PREEMPTIONS), init=False)
    continuations: Counts = attrs.field(factory=lambda: Counts(CONTINUATIONS), init=False)
    _series: dict[str, _Series] = attrs.field(factory=dict, init=False)
    """By deployment, bounded as the histograms are."""
    _deployments: BoundedValues = attrs.field(
        factory=lambda: BoundedValues(REQUEST_DURATION.max_label_values), init=False
    )
    _open: dict[RequestKey, _Open] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin what always is at 0, so that the first event is seen as an increase."""
        self._series_of(DEFAULT_DEPLOYMENT)
        for outcome in QUEUE_OUTCOMES:
            self.queue.of(outcome)
        for reason in RETRY_REASONS:
            self.retries.add(0, reason)

    def __repr__(self) -> str:
        return f"<RequestMeasures of {len(self._open)} open requests>"

    # ------------------------------------------------------------ observing

    def arrived(self, request: Request) -> None:
        self._open[request.key] = _Open(self._series_of(request.deployment))

    def moved(self, request: Request, left: Phase) -> None:
        open_ = self._open[request.key]
        now_s = trio.current_time()
        phase = request.phase
        if isinstance(left, Buffered):
            outcome = queue_outcome(
                request.ending,
                has_agents=request.ending != BUFFERED_TOO_LONG
                or self.has_agents(request.deployment),
            )
            self._example(self.queue.of(outcome), now_s - left.since_s, request)
        elif isinstance(phase, Buffered):
            self.retries.add(1, retry_reason(open_.lost))
            if request.tokens:
                self.continuations.add(1)
        if request.is_over and not isinstance(left, Stopping):
            route = request.route if request.route in INFERENCE_ROUTES else OTHER
            self.requests.add(1, route, request_outcome(request.ending, request.answered_with))
            self._example(open_.series.duration, now_s - request.arrived_s, request)
        if isinstance(phase, Ended):
            del self._open[request.key]
            self._count_placements(open_.series)

    def lost(self, request: Request, how: str) -> None:
        self._open[request.key].lost = how

    def delivered(self, request: Request, results: Results, now_s: float) -> None:
        if results.family == "GeneratedToken":
            tokens = results.num_tokens
            if tokens:
                open_ = self._open[request.key]
                series, last_s = open_.series, open_.last_s
                open_.last_s = now_s
                try:
                    place = _CLASSES[next(iter(results.results[0]))]
                except (KeyError, IndexError):  # nothing was passed on, or not one class of text
                    place = 0
                series.tokens[place] += tokens
                if last_s is None:
                    self._example(series.ttft, now_s - request.arrived_s, request)
                else:
                    gap_s = (now_s - last_s) / tokens
                    buckets = series.between_tokens
                    # as Buckets.add, which is a call more for each token
                    buckets.counts[bisect_left(INTER_TOKEN_BUCKETS_S, gap_s)] += tokens
                    buckets.sum += now_s - last_s
                    if gap_s > SLOW_STEP_S:
                        buckets.exemplify(gap_s, *_named(request))
        else:
            self._open[request.key].series.embeddings += _num_embeddings(results)

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        self.agents.agent_changed(agent, is_here=is_here)

    # -------------------------------------------------------------- reading

    def families(self) -> list[Family]:
        """Return the families, now."""
        series = self._series

        def totals(of: Callable[[_Series], int]) -> dict[tuple[str, ...], float]:
            return {(name,): of(each) for name, each in series.items()}

        return [
            counted(self.requests),
            distributed(self.duration),
            distributed(self.queue),
            distributed(self.ttft),
            distributed(self.between_tokens),
            family(PROMPT_TOKENS, totals(lambda each: each.prompt_tokens)),
            family(CACHED_PROMPT_TOKENS, totals(lambda each: each.cached_tokens)),
            family(
                GENERATION_TOKENS,
                {
                    (name, words): number
                    for name, each in series.items()
                    for words, number in zip(TOKEN_CLASSES, each.tokens, strict=True)
                },
            ),
            family(EMBEDDINGS, totals(lambda each: each.embeddings)),
            counted(self.preemptions),
            counted(self.continuations),
            counted(self.retries),
        ]

    # -------------------------------------------------------------- private

    def _series_of(self, deployment: str) -> _Series:
        found = self._series.get(deployment)
        if found is not None:
            return found
        name = self._deployments.bounded(deployment)
        if name not in self._series:
            self._series[name] = _Series(
                self.duration.of(name), self.ttft.of(name), self.between_tokens.of(name)
            )
        return self._series[name]

    def _count_placements(self, series: _Series) -> None:
        """Count what agents reported of the prompts of the request that has just ended."""
        record = self.finished.last
        for placement in () if record is None else record.placements:
            if placement.prompt_tokens is not None:
                series.prompt_tokens += placement.prompt_tokens
                series.cached_tokens += placement.cached_tokens or 0
            self.preemptions.add(placement.preemptions)

    def _example(self, buckets: Buckets, value_s: float, request: Request) -> None:
        buckets.add(value_s)
        buckets.exemplify(value_s, *_named(request))


def _num_embeddings(results: Results) -> int:
    return sum(type(each) is dict and "Embedding" in each for each in results.results)


def _named(request: Request) -> tuple[str, str]:
    """Return what finds it in traces or logs: a client may have chosen its id, so that is not
    said."""
    trace_id = request.trace_id
    return ("request_id", str(request.key)) if trace_id is None else ("trace_id", trace_id)
