"""All requests, all agents, one slot ledger: every request is a task, every slot a lease.

The ledger decides which request gets which slot, requests change their phases, and the dispatcher
does what each change means: it sends work and stops to agents, returns slots, and sets deadlines.
All of that is synchronous, in the step in which the change happens, so no cancellation can fall in
between. The task of a request only waits for the deadline of its phase, and makes sure that the
request ends when the task is cancelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.handover import run_in
from paddler_trio.nursery_tree.lease import Lease
from paddler_trio.nursery_tree.printed_tree import explain_this_task
from paddler_trio.nursery_tree.request import (
    Buffered,
    Completed,
    Ended,
    Failure,
    Leased,
    Phase,
    Request,
    Stopped,
    Stopping,
    Streaming,
)
from paddler_trio.nursery_tree.synchronization import Changes
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits, Loss, refusal
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.scheduler.dispatch.slot_ledger import (
    BufferFull,
    Granted,
    LedgerStatistics,
    Priority,
    Queued,
    RequestKey,
    SlotLedger,
)
from paddler_trio.wire.trio.paddler_translation import UnsupportedByPaddler
from paddler_trio.wire.trio.request_frame import EncodedWork, TooLong
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

log = structlog.get_logger("dispatch")

OURS = frozenset({SUBPROTOCOL})
"""What an agent of ours offers, and requests need that Paddler's agents do not understand."""
STOP_CONFIRMATION_S = 5.0
"""How long a slot stays taken after its request was stopped and the agent does not confirm."""


@attrs.frozen
class DispatchLimits:
    """Times in seconds."""

    max_buffered: int = 30
    buffered_timeout_s: float = 10.0
    item_timeout_s: float = 30.0
    continuation: ContinuationLimits = attrs.field(factory=ContinuationLimits)
    continuation_wait_s: float = 3.0
    """How long an answer that was begun waits for an agent that can continue it to connect."""
    stop_confirmation_s: float = STOP_CONFIRMATION_S


SHUTTING_DOWN = Failure(503, "balancer is shutting down")
OVERFLOW = Failure(503, "Buffered requests overflow")
DISPLACED = Failure(
    503, "Buffered requests overflow; it made room for a client that has fewer requests waiting"
)
BUFFERED_TOO_LONG = Failure(504, "Waiting for available slot timed out")
CUT_OFF = Failure(502, "Response channel closed before terminator")


@attrs.define(eq=False)
class Dispatcher:
    """See the module docstring.

    ``open`` must be given the nurseries of the tree before the first agent and the first request.
    """

    limits: DispatchLimits
    agents: dict[AgentKey, AgentConnection] = attrs.field(factory=dict, init=False)
    agents_changed: Changes = attrs.field(factory=Changes, init=False)
    buffer_changed: Changes = attrs.field(factory=Changes, init=False)
    health: HealthTracker = attrs.field(factory=HealthTracker, init=False)
    is_draining: bool = attrs.field(default=False, init=False)
    _ledger: SlotLedger = attrs.field(init=False)
    _requests: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    """All that have not ended."""
    _agents_nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _requests_nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _drained: set[str] = attrs.field(factory=set, init=False)
    _serving: set[AgentKey] = attrs.field(factory=set, init=False)
    """The agents that get work because they serve the desired state."""
    _stand_ins_work: bool = attrs.field(default=True, init=False)
    """There are none, so those that still serve the state before it get work."""
    _rate: ServiceRate = attrs.field(factory=ServiceRate, init=False)
    _stranded: set[RequestKey] = attrs.field(factory=set, init=False)
    _arrivals: int = attrs.field(default=0, init=False)
    _buffered: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._ledger = SlotLedger(max_buffered=self.limits.max_buffered)

    # ------------------------------------------------------------ requests

    def open(self, *, agents: trio.Nursery, requests: trio.Nursery) -> None:
        """The tasks of agents and of requests live in these nurseries from now on."""
        self._agents_nursery, self._requests_nursery = agents, requests

    def submit(
        self,
        request_id: str,
        work: EncodedWork,
        *,
        client: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Request:
        """Take a request in; the order of these calls is the order of arrival.

        The queue is fair between clients.

        The caller reads ``request.outbox`` until it ends and then looks at ``request.failure``;
        if it stops reading earlier it must call ``request.stop()``.
        """
        self._arrivals += 1
        request = Request(
            RequestKey(self._arrivals),
            request_id,
            work,
            client=client_digest(client),
            buffered_timeout_s=self.limits.buffered_timeout_s,
        )
        if self.is_draining or self._requests_nursery is None:
            request.end(SHUTTING_DOWN)
            return request
        if work.excess is not None:
            request.end(Failure(413, _too_long(work.excess)))
            return request
        needs = OURS if work.needs_ours is not None else frozenset()
        if work.needs_ours is not None and self._ledger.is_hopeless(needs):
            request.end(_hopeless(work.needs_ours))
            return request
        decision = self._ledger.ask(request.key, client=client, priority=priority, needs=needs)
        if isinstance(decision, BufferFull):
            request.end(OVERFLOW)
            return request
        self._requests[request.key] = request
        request.on_move = self._moved
        if isinstance(decision, Queued) and decision.displaced is not None:
            self._requests[decision.displaced].end(DISPLACED)
        self._apply([decision])
        self._requests_nursery.start_soon(self._run, request, name=f"request {request.id}")
        return request

    def drain(self) -> None:
        """Take nothing new. Requests in the queue end now, those in slots may finish."""
        self.is_draining = True
        for request in list(self._requests.values()):
            if isinstance(request.phase, Buffered):
                request.end(SHUTTING_DOWN)

    def retry_after_s(self) -> int:
        """When a request that was refused now should come again."""
        waiting = self._ledger.statistics().requests_buffered
        return self._rate.retry_after_s(waiting, trio.current_time())

    def position(self, request: Request) -> int | None:
        """How many stand before this request in the queue; None if it does not wait."""
        return self._ledger.position(request.key)

    def statistics(self) -> LedgerStatistics:
        """The ledger's counts; ``slots_total`` is what the agents reported, usable or not."""
        reported = sum(max(0, agent.status.slots_total) for agent in self.agents.values())
        return attrs.evolve(self._ledger.statistics(), slots_total=reported)

    def slots_processing(self, agent: AgentKey) -> int:
        return self._ledger.slots_processing(agent)

    # -------------------------------------------------------------- agents

    async def run_agent(self, run: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run the task of one agent's connection among the agents, until it ends; see
        :func:`~paddler_trio.nursery_tree.handover.run_in`."""
        assert self._agents_nursery is not None, "an agent dialled in before the tree was built"
        await run_in(self._agents_nursery, run, name=name)

    def join(self, agent: AgentConnection) -> None:
        self.agents[agent.key] = agent
        self.health.joined(agent.label, trio.current_time())
        agent.is_drained = agent.id in self._drained
        agent.may_stand_in = self._stand_ins_work
        agent.refresh_readiness()
        self._ledger.join(agent.key)
        self.update(agent)

    def drain_agent(self, agent: AgentConnection, *, drained: bool) -> None:
        """Give the agent nothing new while ``drained``; what it has, it finishes. Remembered across
        its reconnects, not across restarts of the balancer."""
        agent.is_drained = drained
        if drained:
            self._drained.add(agent.id)
        else:
            self._drained.discard(agent.id)
        agent.refresh_readiness()
        self.update(agent)

    def update(self, agent: AgentConnection) -> None:
        """The agent's slots or readiness may have changed."""
        self._note_serving(agent.key, serves=agent.is_accepting and agent.serves_desired)
        self._update_ledger(agent)
        self._note_stranded()
        self.agents_changed.notify()

    def _update_ledger(self, agent: AgentConnection) -> None:
        grants = self._ledger.update(
            agent.key,
            slots_total=agent.usable_slots,
            accepting=agent.is_accepting,
            kind=agent.model,
            offers=OURS if agent.speaks_trio else frozenset(),
        )
        self._apply(grants)

    def _note_serving(self, key: AgentKey, *, serves: bool) -> None:
        """The first agent that serves the desired state ends the time of those that stand in, and
        the last one that no longer does begins it: there is never a choice of two models."""
        if serves:
            self._serving.add(key)
        else:
            self._serving.discard(key)
        nobody_serves = not self._serving
        if nobody_serves == self._stand_ins_work:
            return
        self._stand_ins_work = nobody_serves
        for agent in self.agents.values():
            agent.may_stand_in = nobody_serves
            if agent.refresh_readiness():
                self._update_ledger(agent)

    def leave(self, agent: AgentConnection) -> None:
        """The agent is gone: its slots vanish at once, and every lease on it ends. Requests that
        may go on elsewhere are back in the queue before any other can ask, the earliest first."""
        if self.agents.pop(agent.key, None) is None:
            return
        self.health.left(agent.label, trio.current_time(), gracefully=agent.said_goodbye)
        suspects = {} if agent.said_goodbye else agent.suspects()
        for key in self._ledger.in_order(self._ledger.leave(agent.key)):
            request = self._requests[key]
            request.may_kill_agents |= key in suspects
            self._lose_slot(request, suspects.get(key, 0))
        self._note_serving(agent.key, serves=False)
        self._note_stranded()
        self.agents_changed.notify()

    def hand_back(self, lease: Lease, reason: str, *, suspects: int) -> None:
        """The agent cannot finish this request, another one may. Safe to repeat.

        ``suspects``: how many requests may have killed the engine, this one among them; 0 if this
        one did not, or if none died.
        """
        request = lease.request
        if request.lease is not lease:
            return
        log.warning(
            "handed back",
            request=request.id,
            agent=lease.agent.name,
            reason=reason,
            suspects=suspects,
        )
        self._apply(self._ledger.give_back(request.key))
        self._lose_slot(request, suspects)
        self._note_stranded()
        self.agents_changed.notify()

    def _lose_slot(self, request: Request, suspects: int) -> None:
        """The slot of this request is gone: it queues again, in this very step, or ends.

        ``suspects``: how many may be the cause, this one among them; 0 if this one is not.
        """
        if isinstance(request.phase, Stopping):
            request.end(request.phase.ending)
            return
        if suspects:
            request.suspicions += 1
        loss = Loss(
            has_output=request.num_results > 0 or bool(request.tokens),
            is_continuable=request.is_continuable,
            continuations=request.continuations,
            suspicions=request.suspicions,
            suspects=suspects,
        )
        refused = refusal(loss, self.limits.continuation)
        log.warning(
            "agent lost under a request",
            request=request.id,
            agent=request.agents[-1],
            tokens=len(request.tokens),
            suspects=suspects,
            given_up=refused,
        )
        if refused is not None:
            request.end(Failure(502, refused))
            return
        request.continuations += 1
        request.requeue()
        kind = request.model if request.tokens else None
        ours_are_here = any(agent.speaks_trio for agent in self.agents.values())
        needs = OURS if request.suspicions and ours_are_here else frozenset()
        self._apply([self._ledger.ask_again(request.key, kind=kind, needs=needs)])
        if self.is_draining and isinstance(request.phase, Buffered):
            request.end(SHUTTING_DOWN)

    def _note_stranded(self) -> None:
        """An answer is continued by the model that began it or not at all. While no agent here
        could, it waits only for one to connect, and not for its turn."""
        stranded = self._ledger.stranded()
        for key in stranded:
            request = self._requests[key]
            if key not in self._stranded and isinstance(request.phase, Buffered):
                request.phase.stranded_since_s = trio.current_time()
                request.timer.deadline = min(
                    request.timer.deadline, trio.current_time() + self.limits.continuation_wait_s
                )
        for key in self._stranded.difference(stranded):
            phase = self._requests[key].phase
            if isinstance(phase, Buffered):
                phase.stranded_since_s = None
                self._requests[key].timer.deadline = phase.deadline_s
        self._stranded = set(stranded)

    # ------------------------------------------------- the life of a request

    async def _run(self, request: Request) -> None:
        """The task of a request: it ends the phases that last too long."""
        explain_this_task(lambda: self._state_of(request))
        try:
            while not isinstance(request.phase, Ended):
                timer, moved = request.timer, request.moved
                with timer:
                    await moved.wait()
                if request.timer is timer:  # else it moved on in the tick of the deadline
                    self._deadline_passed(request)
        finally:
            cut_off = SHUTTING_DOWN if self.is_draining else CUT_OFF
            request.abort(cut_off)  # sends a stop to the agent that works on it
            request.end(cut_off)
            _log_end(request)  # here, where the context names the client's key

    def _deadline_passed(self, request: Request) -> None:
        match request.phase:
            case Buffered(stranded_since_s=None):
                request.end(BUFFERED_TOO_LONG)
            case Buffered(stranded_since_s=float(since_s)):
                request.end(Failure(502, self._why_stranded(request, since_s)))
            case Leased() | Streaming():
                timeout_ms = round(self.limits.item_timeout_s * 1000)
                words = (
                    f"Inference timed out after {timeout_ms}ms waiting for next token. Increase "
                    "--inference-item-timeout if the prompt requires longer processing."
                )
                request.abort(Failure(504, words, blames_agent=True))
            case Stopping(lease, ending):
                log.warning(
                    "agent did not confirm a stop", agent=lease.agent.name, request=request.id
                )
                self._count_failure(lease.agent)
                request.end(ending)

    def _moved(self, request: Request, left: Phase) -> None:
        """A request has entered a phase: what that means for its agent, its slot, its deadline."""
        now_s = trio.current_time()
        held = left.lease if isinstance(left, Leased | Streaming | Stopping) else None
        match request.phase:
            case Buffered(deadline_s=deadline_s):
                assert held is not None
                held.agent.forget(held)
                request.timer.deadline = deadline_s
            case Leased(lease):
                request.timer.deadline = now_s + self.limits.item_timeout_s
                lease.agent.start(lease)
            case Streaming():
                pass
            case Stopping(lease, ending):
                request.timer.deadline = now_s + self.limits.stop_confirmation_s
                lease.agent.stop(lease)
                if isinstance(ending, Failure) and ending.blames_agent:
                    self._count_failure(lease.agent)
            case Ended(ending):
                if held is not None:
                    held.agent.forget(held)
                if held is not None and isinstance(ending, Completed):
                    self.health.succeeded(held.agent.label)
                self._release(request)

    def _release(self, request: Request) -> None:
        """It holds nothing any more, and the next request gets its slot."""
        del self._requests[request.key]
        self._stranded.discard(request.key)
        if request.agents:
            self._rate.ended(trio.current_time())
        self._apply(self._ledger.end(request.key))
        self.agents_changed.notify()

    def _count_failure(self, agent: AgentConnection) -> None:
        ejection_s = self.health.failed(agent.label, trio.current_time())
        if ejection_s is not None:
            log.error("agent ejected: too many failures", agent=agent.label, for_s=ejection_s)
            if agent.key in self.agents and agent.refresh_readiness():
                self.update(agent)

    def _state_of(self, request: Request) -> str:
        """For the printed tree: why it waits, or where it runs."""
        match request.phase:
            case Buffered():
                ahead = self._ledger.position(request.key)
                again = f", continuing after {len(request.tokens)} tokens" if request.tokens else ""
                return f"waits for a slot behind {ahead}{again}"
            case Leased(lease) | Streaming(lease):
                return f"on {lease.agent.label}, {request.num_results} results so far"
            case Stopping(lease):
                return f"waits for {lease.agent.label} to confirm a stop"
            case Ended():
                return "ending"

    def _why_stranded(self, request: Request, since_s: float) -> str:
        waited_ms = round(1000 * (trio.current_time() - since_s))
        serving = [agent for agent in self.agents.values() if agent.is_accepting]
        words = (
            f"The agent was lost after {len(request.tokens)} tokens, and no agent that can "
            f"continue the answer connected within {waited_ms}ms"
        )
        if any(agent.speaks_trio for agent in serving):
            return f"{words}; the others serve a different model"
        if serving:
            return f"{words}; the others are Paddler 4.1 agents, which continue no answer"
        return words

    def _apply(self, decisions: Iterable[Granted | Queued]) -> None:
        for decision in decisions:
            if isinstance(decision, Granted):
                self._grant(self._requests[decision.request], self.agents[decision.agent])
        buffered = self._ledger.statistics().requests_buffered
        if buffered != self._buffered:
            self._buffered = buffered
            self.buffer_changed.notify()

    def _grant(self, request: Request, agent: AgentConnection) -> None:
        lease = Lease(
            request,
            agent,
            wire_id=f"{request.key}.{len(request.agents) + 1}",
            item_timeout_s=self.limits.item_timeout_s,
            isolated=_isolated(request) if agent.speaks_trio else None,
        )
        request.grant(lease)
        self.agents_changed.notify()


def _hopeless(reason: UnsupportedByPaddler | TooLong) -> Failure:
    """Why agents of Paddler's alone cannot take a request."""
    if isinstance(reason, TooLong):
        words = f"{_too_long(reason)} by the agents that are connected, which are Paddler's"
        return Failure(413, words)
    words = (
        f"{reason.field} is more than the agents that are connected can do: Paddler 4.1 "
        "has no such field; start an agent of this package, or leave the field out"
    )
    return Failure(501, words)


def _too_long(excess: TooLong) -> str:
    return (
        f"The request has {excess.size_bytes} bytes as it is sent to an agent, "
        f"at most {excess.most_bytes} are taken"
    )


def _isolated(request: Request) -> str | None:
    """What the request may have killed, as it is sent to an agent."""
    if request.may_kill_agents:
        return "agent"
    return "engine" if request.suspicions else None


def _log_end(request: Request) -> None:
    match request.ending:
        case Failure(code, description):
            ending = f"{code} {description}"
        case Stopped():
            ending = "stopped"
        case _:
            ending = "done"
    log.info(
        "request ended",
        request=request.id,
        agents=request.agents,
        results=request.num_results,
        waited_s=round(request.waited_s, 3),
        took_s=round(trio.current_time() - request.arrived_s, 3),
        ending=ending,
    )


def client_digest(client: str) -> str:
    """Tells clients apart on agents without naming them."""
    return hashlib.blake2s(client.encode(), digest_size=8).hexdigest()
