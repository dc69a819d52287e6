"""A request in a slot of an agent: from the grant until the agent is done with it.

The agent's reader delivers into it synchronously, and no task waits in between. So a token costs
one task switch: that of the consumer that writes it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from paddler_trio.nursery_tree.request import (
    Completed,
    Failure,
    Leased,
    RawResult,
    Request,
    Results,
    Stopping,
)
from paddler_trio.scheduler.dispatch.slot_decisions import Choice
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_trace import RequestTrace

if TYPE_CHECKING:
    from paddler_trio.nursery_tree.agent_connection import AgentConnection

MAX_MOMENTS: Final = 32
SLOW_READER = Failure(503, "The client reads too slowly; the request was stopped to protect others")


@attrs.define(eq=False, repr=False)
class Lease:
    """One request in one slot of one agent. ``wire_id`` is ours, unique on the connection;
    ``isolated``: what the request may have killed, as the agent was informed, see
    :class:`~paddler_trio.wire.trio.trio_link.Start`; None for nothing."""

    request: Request
    agent: AgentConnection
    wire_id: str
    item_timeout_s: float
    isolated: str | None = None
    choice: Choice | None = None
    """Why this agent has it."""
    prepared_s: float | None = attrs.field(default=None, init=False)
    """When the agent reported that it has prepared it."""
    model: str | None = attrs.field(default=None, init=False)
    """Fingerprint of the model that answers it, once the agent has reported that: another one may
    be in force on the agent by now."""
    prompt: PromptStages | None = attrs.field(default=None, init=False)
    """How the agent computed the prompt, once it has reported that."""
    preemptions: int = attrs.field(default=0, init=False)
    """How often the engine preempted it for others, as far as the agent has reported."""
    preempted_s: list[float] = attrs.field(factory=list, init=False)
    """When it did; only the first ``MAX_MOMENTS``. Agents from before this report no moments."""
    num_deliveries: int = attrs.field(default=0, init=False)
    """How many messages of the agent were about it."""
    heard_s: float = attrs.field(factory=trio.current_time, init=False)
    """When the last of them came, or it was granted."""

    @property
    def silent_from_s(self) -> float:
        """When its agent will have been silent about it for too long, unless it is heard."""
        return self.heard_s + self.item_timeout_s

    def __repr__(self) -> str:
        return f"<Lease {self.wire_id} of {self.request} on {self.agent.label}>"

    def deliver(
        self,
        family: str,
        results: list[RawResult],
        *,
        ends: bool,
        tokens: list[int] | None = None,
        now_s: float | None = None,
    ) -> None:
        """The agent produced these; called by its reader, never blocks.

        Args:
          tokens: what the results were made of; None if the agent does not report them. Without
            knowing the model that sampled them, no other agent can go on after them.
          now_s: Trio's time, from who has just asked for it.
        """
        self.num_deliveries += 1
        request = self.request
        if request.lease is not self:
            return  # it has lost its slot meanwhile
        if isinstance(request.phase, Stopping):
            if ends:
                request.end(request.phase.ending)
            return
        now_s = self.heard_s = trio.current_time() if now_s is None else now_s
        model = self.model or self.agent.model
        if tokens is None or model is None:
            request.is_continuable = False
        else:
            request.tokens += tokens
            request.model = model
        if not results and not tokens and not ends:
            if not self.is_being_prepared and self.prepared_s is None:
                self.prepared_s = trio.current_time()
                request.observer.prepared(self)
            return  # only a sign of life
        if request.sink is not None:
            self.agent.touched[request.sink] = None
        num_tokens = self._num_tokens(family, results, tokens)
        step = Results(self.agent.name, family, results, tokens or (), num_tokens)
        if not request.emit(step, now_s):
            (request.end if ends else request.abort)(SLOW_READER)
        elif ends:
            request.end(Completed())

    def _num_tokens(self, family: str, results: list[RawResult], tokens: list[int] | None) -> int:
        """Count results where no tokens are reported; where they are, what comes without any is an
        ending, or progress."""
        if tokens is not None or (self.agent.kind.reports_tokens and family == "GeneratedToken"):
            return len(tokens or ())
        return sum([type(result) is dict and "Done" not in result for result in results])

    def confirm_stop(self) -> None:
        """The agent has nothing of it. No effect unless it is to be stopped; safe to repeat."""
        request = self.request
        if request.lease is self and isinstance(request.phase, Stopping):
            request.end(request.phase.ending)

    def bind(self, model: str) -> None:
        """The agent reported that this model answers it."""
        self.model = model

    def progressed(self) -> None:
        """The server that answers has sent something; its answer is forwarded past the outbox."""
        self.num_deliveries += 1
        request, now_s = self.request, trio.current_time()
        self.heard_s = now_s
        if isinstance(request.phase, Leased):
            request.begin_stream(now_s)

    def trace(self) -> RequestTrace | None:
        """As it is sent to an agent: the span of this placement is the parent of the agent's."""
        trace = self.request.trace
        if trace is None:
            return None
        return RequestTrace(trace.traceparent(self.span_id), self.request.log_id, trace.state)

    @property
    def span_id(self) -> str | None:
        """Of this placement, if spans of it are exported here."""
        trace = self.request.trace
        return trace.span_below(self.wire_id) if trace and trace.is_exported else None

    def report_prompt(self, prompt: PromptStages) -> None:
        """The agent computed the prompt; it reports that with the first results."""
        self.prompt = prompt
        if self.request.lease is self:
            self.request.observer.prepared(self)

    def report_preemptions(self, count: int, *, is_now: bool) -> None:
        """So many in all; ``is_now``: the last one has just happened."""
        if is_now and count > self.preemptions and len(self.preempted_s) < MAX_MOMENTS:
            self.preempted_s.append(trio.current_time())
        self.preemptions = count
        if self.request.lease is self:
            self.request.observer.prepared(self)

    def broken_frame(self, detail: str) -> None:
        """The agent sent something that is not a result; ``detail`` names what."""
        if self.request.lease is not self:
            return
        self.request.abort(
            Failure(502, f"The agent sent a malformed frame: {detail}", blames_agent=True)
        )

    @property
    def is_announced(self) -> bool:
        """The agent reports when it begins to prepare it."""
        return self.isolated == "agent"

    @property
    def is_being_prepared(self) -> bool:
        """As far as is known: an agent of ours reports when it has prepared a request."""
        return self.num_deliveries == (1 if self.is_announced else 0)
