"""Tells the placement of requests what happens to them: what they begin with, and what agents
report of the prompts that they computed."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Lease, Phase, Request, Streaming
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.telemetry.balancer_metrics import (
    MISSED_PROMPT_TOKENS,
    PLACEMENT_FIRST_TOKEN,
    REUSABLE_PROMPT_TOKENS,
)
from paddler_trio.telemetry.label_values import MISS_REASONS
from paddler_trio.telemetry.recording import Family, Histogram, distributed, family, single
from paddler_trio.wire.trio.request_frame import EncodedWork


@attrs.define(eq=False)
class PlacementObserver(DispatchObserver):
    """See the module docstring; grants are known to the placement, which decides about them."""

    placement: WarmPlacement
    _engines: dict[AgentKey, tuple[int, str | None]] = attrs.field(factory=dict, init=False)
    """How often each agent's engine was started anew, and its model."""
    _preemptions: dict[RequestKey, int] = attrs.field(factory=dict, init=False)

    first_token: Histogram = attrs.field(
        factory=lambda: Histogram(PLACEMENT_FIRST_TOKEN), init=False
    )

    def __attrs_post_init__(self) -> None:
        """Begin what always is at 0, so that the first event is seen as an increase."""
        for kind in ("predicted", "measured"):
            self.first_token.of(kind)

    def families(self) -> Iterator[Family]:
        """Yield the metrics, now."""
        counts = self.placement.counts
        missed: dict[tuple[str, ...], float] = {
            (reason,): counts.missed[reason] for reason in MISS_REASONS
        }
        yield single(REUSABLE_PROMPT_TOKENS, counts.reusable)
        yield family(MISSED_PROMPT_TOKENS, missed)
        yield distributed(self.first_token)

    def arrived(self, request: Request) -> None:
        if isinstance(request.work, EncodedWork):
            self.placement.arrived(request.key, request.work.prompt, request.deployment)

    def moved(self, request: Request, left: Phase) -> None:
        match request.phase:
            case Streaming(lease) if not lease.agent.kind.reports_tokens:
                self.placement.began(request.key, lease.agent.key)
            case Ended():
                self._preemptions.pop(request.key, None)
                if isinstance(left, Streaming) and request.num_results:
                    num_tokens = len(request.tokens) or request.num_results
                    self.placement.answered(request.key, left.lease.agent.key, num_tokens)
                self.placement.ended(request.key)

    def prepared(self, lease: Lease) -> None:
        key, agent, prompt = lease.request.key, lease.agent.key, lease.prompt
        if lease.preemptions > self._preemptions.get(key, 0):
            self._preemptions[key] = lease.preemptions
            self.placement.preempted(agent)
        if prompt is not None:
            took_s = (prompt.template_ms + prompt.wait_ms + prompt.prefill_ms) / 1000
            is_new = self.placement.computed(
                key, agent, tokens=prompt.tokens, cached=prompt.cached, took_s=took_s
            )
            predicted_s = _predicted_s(lease)
            if is_new and predicted_s is not None:
                self.first_token.of("predicted").add(predicted_s)
                self.first_token.of("measured").add(took_s)

    def agent_changed(self, agent: AgentConnection, *, is_here: bool) -> None:
        if not is_here:
            self._engines.pop(agent.key, None)
            self.placement.left(agent.key)
        elif not agent.kind.forwards:
            self.placement.joined(agent.key, agent.label, agent.deployment)
            engine = agent.engine_restarts, agent.model
            if self._engines.setdefault(agent.key, engine) != engine:
                self._engines[agent.key] = engine
                self.placement.restarted(agent.key)


def _predicted_s(lease: Lease) -> float | None:
    """Return when the first token was predicted, from the grant on."""
    prediction = None if lease.choice is None else lease.choice.prediction
    for option in () if prediction is None else prediction.options:
        if option.agent == lease.agent.label:
            return option.predicted_s - option.wait_s
    return None
