"""The shell around the slot ledger: every request is a task here, every slot a lease.

The ledger decides, this obeys: it wakes who was granted a slot, carries requests to agents, and
makes sure that whatever happens a request ends once and its slot comes back. Everything that
touches the accounting is synchronous, so it cannot be torn by a cancellation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import assert_never

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.lease import (
    AgentLost,
    BrokenFrame,
    Finished,
    Lease,
    NoToken,
    Outcome,
    SlowReader,
)
from paddler_trio.nursery_tree.printed_tree import explain_this_task
from paddler_trio.nursery_tree.request import Failure, Request, ShuttingDown, Stopped
from paddler_trio.nursery_tree.synchronization import Changes, Verdict
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits, Loss, refusal
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.scheduler.dispatch.slot_ledger import (
    Buffered,
    BufferFull,
    Granted,
    LedgerStatistics,
    Priority,
    RequestKey,
    SlotLedger,
)
from paddler_trio.wire.trio.paddler_work import Inexpressible
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL
from paddler_trio.wire.trio.written_work import TooLong, WrittenWork, write_work

log = structlog.get_logger("dispatch")

OURS = frozenset({SUBPROTOCOL})
"""What an agent of ours offers, and requests need that Paddler's agents do not understand."""
STOP_CONFIRMATION_S = 5.0
"""How long a slot stays taken after its request was stopped and the agent says nothing."""


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


@attrs.define(eq=False)
class Dispatcher:
    """All requests, all agents, one ledger.

    ``open`` must be given the nursery that owns the request tasks before the first request.
    """

    limits: DispatchLimits
    agents: dict[AgentKey, AgentConnection] = attrs.field(factory=dict, init=False)
    agents_changed: Changes = attrs.field(factory=Changes, init=False)
    buffer_changed: Changes = attrs.field(factory=Changes, init=False)
    health: HealthTracker = attrs.field(factory=HealthTracker, init=False)
    is_draining: bool = attrs.field(default=False, init=False)
    _ledger: SlotLedger = attrs.field(init=False)
    _requests: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    _leases: dict[RequestKey, Lease] = attrs.field(factory=dict, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _drained: set[str] = attrs.field(factory=set, init=False)
    _rate: ServiceRate = attrs.field(factory=ServiceRate, init=False)
    _stranded: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    _arrivals: int = attrs.field(default=0, init=False)
    _buffered: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._ledger = SlotLedger(max_buffered=self.limits.max_buffered)

    # ------------------------------------------------------------ requests

    def open(self, requests: trio.Nursery) -> None:
        """Request tasks live in this nursery from now on."""
        self._nursery = requests

    def submit(
        self,
        request_id: str,
        work: Mapping[str, object] | WrittenWork,
        *,
        client: str = "",
        priority: Priority = Priority.NORMAL,
    ) -> Request:
        """Take a request in; the order of these calls is the order of arrival.

        ``client`` is whom the queue is fair to. What is not written yet is written now, while
        everybody waits: write what may be large in a worker thread.

        The caller reads ``request.outbox`` until it ends and then looks at ``request.failure``;
        if it stops reading earlier it must call ``request.stop()``.

        Errors:
          WireError: the work is none.
        """
        written = work if isinstance(work, WrittenWork) else write_work(work)
        self._arrivals += 1
        request = Request(
            RequestKey(self._arrivals), request_id, written, client=client_digest(client)
        )
        if self.is_draining or self._nursery is None:
            request.fail(503, "balancer is shutting down")
            return request
        if written.excess is not None:
            request.fail(413, _too_long(written.excess))
            return request
        needs = OURS if written.needs_ours is not None else frozenset()
        if written.needs_ours is not None and self._ledger.is_hopeless(needs):
            request.fail(*_hopeless(written.needs_ours))
            return request
        decision = self._ledger.ask(request.key, client=client, priority=priority, needs=needs)
        if isinstance(decision, BufferFull):
            request.fail(503, "Buffered requests overflow")
            return request
        self._requests[request.key] = request
        self._apply([decision])
        self._nursery.start_soon(self._serve, request, name=f"request {request.id}")
        return request

    def drain(self) -> None:
        """Take nothing new; who waits is told so, who runs may finish."""
        self.is_draining = True
        for request in self._requests.values():
            request.seat.give(ShuttingDown())

    def retry_after_s(self) -> int:
        """When a request that was refused now should come again."""
        waiting = self._ledger.statistics().requests_buffered
        return self._rate.retry_after_s(waiting, trio.current_time())

    def position(self, request: Request) -> int | None:
        """How many stand before this request in the queue; None if it does not wait."""
        return self._ledger.position(request.key)

    def statistics(self) -> LedgerStatistics:
        """The books; ``slots_total`` is what the agents reported, usable or not."""
        reported = sum(max(0, agent.status.slots_total) for agent in self.agents.values())
        return attrs.evolve(self._ledger.statistics(), slots_total=reported)

    def slots_processing(self, agent: AgentKey) -> int:
        return self._ledger.slots_processing(agent)

    # -------------------------------------------------------------- agents

    def join(self, agent: AgentConnection) -> None:
        self.agents[agent.key] = agent
        self.health.joined(agent.label, trio.current_time())
        agent.is_drained = agent.id in self._drained
        agent.refresh_readiness()
        self._ledger.join(agent.key)
        self.update(agent)

    def drain_agent(self, agent: AgentConnection, *, drained: bool) -> None:
        """Give the agent nothing new until told otherwise; what it has, it finishes. Remembered
        across its reconnects, not across its restarts."""
        agent.is_drained = drained
        if drained:
            self._drained.add(agent.id)
        else:
            self._drained.discard(agent.id)
        agent.refresh_readiness()
        self.update(agent)

    def update(self, agent: AgentConnection) -> None:
        """The agent's slots or readiness may have changed."""
        grants = self._ledger.update(
            agent.key,
            slots_total=agent.usable_slots,
            accepting=agent.is_accepting,
            kind=agent.model,
            offers=OURS if agent.speaks_trio else frozenset(),
        )
        self._apply(grants)
        self._note_stranded()
        self.agents_changed.notify()

    def leave(self, agent: AgentConnection) -> None:
        """The agent is gone: its slots vanish at once, and every lease on it ends. Who may go on
        elsewhere is back in the queue before anybody else can ask, the earliest first."""
        if self.agents.pop(agent.key, None) is None:
            return
        self.health.left(agent.label, trio.current_time(), gracefully=agent.said_goodbye)
        suspects = {} if agent.said_goodbye else agent.suspects()
        for key in self._ledger.in_order(self._ledger.leave(agent.key)):
            self._requests[key].may_kill_agents |= key in suspects
            self._end_lease(key, suspects.get(key, 0))
        self._note_stranded()
        self.agents_changed.notify()

    def hand_back(self, lease: Lease, reason: str, *, suspects: int) -> None:
        """The agent cannot finish this request, another one may. Safe to say twice.

        ``suspects``: how many requests may have killed the engine, this one among them; 0 if this
        one did not, or if none died.
        """
        if self._leases.get(lease.request.key) is not lease:
            return
        log.warning(
            "handed back",
            request=lease.request.id,
            agent=lease.agent.name,
            reason=reason,
            suspects=suspects,
        )
        self._apply(self._ledger.give_back(lease.request.key))
        self._end_lease(lease.request.key, suspects)
        self._note_stranded()
        self.agents_changed.notify()

    def _end_lease(self, key: RequestKey, suspects: int) -> None:
        """The agent of this request is lost: queue it again, in this very step, or give it up.

        ``suspects``: how many may be the cause, this one among them; 0 if this one is not.
        """
        lease = self._leases.pop(key)
        request = self._requests[key]
        if request.is_over or request.is_stopped or lease.verdict.answer is not None:
            lease.lost("it is over already")
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
        if refused is None:
            request.continuations += 1
            request.seat = Verdict()
            kind = request.model if request.tokens else None
            ours_are_here = any(agent.speaks_trio for agent in self.agents.values())
            needs = OURS if request.suspicions and ours_are_here else frozenset()
            self._apply([self._ledger.ask_again(key, kind=kind, needs=needs)])
            if self.is_draining:
                request.seat.give(ShuttingDown())
        log.warning(
            "agent lost under a request",
            request=request.id,
            agent=lease.agent.label,
            tokens=len(request.tokens),
            suspects=suspects,
            given_up=refused,
        )
        lease.lost(refused)

    def _note_stranded(self) -> None:
        """An answer is continued by the model that began it or not at all. While no agent here
        could, it waits only for one to connect, and not for its turn."""
        stranded = {key: self._requests[key] for key in self._ledger.stranded()}
        for key, request in stranded.items():
            if key not in self._stranded:
                request.stranded_s = trio.current_time()
                request.patience.deadline = min(
                    request.patience.deadline,
                    request.stranded_s + self.limits.continuation_wait_s,
                )
        for key, request in self._stranded.items():
            if key not in stranded and request.stranded_s is not None:
                request.stranded_s = None
                request.patience.deadline = request.patience_ends_s
        self._stranded = stranded

    # ------------------------------------------------- the life of a request

    async def _serve(self, request: Request) -> None:
        """Buffered -> leased -> streaming -> ended; this task is the request."""
        explain_this_task(lambda: self._state_of(request))
        try:
            while (lease := await self._wait_for_slot(request)) is not None:
                outcome = await self._run(request, lease)
                if not (isinstance(outcome, AgentLost) and outcome.refusal is None):
                    return
        finally:
            self._end(request)

    def _state_of(self, request: Request) -> str:
        """For the printed tree: why it waits, or where it runs."""
        ahead = self._ledger.position(request.key)
        lease = self._leases.get(request.key)
        if ahead is not None:
            again = f", continuing after {len(request.tokens)} tokens" if request.tokens else ""
            return f"waits for a slot behind {ahead}{again}"
        if lease is None:
            return "ending"
        if lease.verdict.answer is not None:
            return f"waits for {lease.agent.label} to confirm a stop"
        return f"on {lease.agent.label}, {request.num_results} results so far"

    async def _wait_for_slot(self, request: Request) -> Lease | None:
        began_s = trio.current_time()
        seat = request.seat
        request.patience_ends_s = deadline_s = began_s + self.limits.buffered_timeout_s
        if request.stranded_s is not None:
            deadline_s = min(deadline_s, request.stranded_s + self.limits.continuation_wait_s)
        request.patience = trio.CancelScope(deadline=deadline_s)  # anew after every loss
        with request.patience:
            await seat.wait()
        request.left_queue.set()
        request.waited_s += trio.current_time() - began_s
        match seat.answer:  # looked at again: a slot may have come in the tick of the deadline
            case None if request.stranded_s is not None:
                request.fail(502, self._why_stranded(request))
            case None:
                request.fail(504, "Waiting for available slot timed out")
            case ShuttingDown():
                request.fail(503, "balancer is shutting down")
            case Stopped():
                pass
            case Lease() as lease:
                return lease
        return None

    def _why_stranded(self, request: Request) -> str:
        assert request.stranded_s is not None
        waited_ms = round(1000 * (trio.current_time() - request.stranded_s))
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

    async def _run(self, request: Request, lease: Lease) -> Outcome:
        """Hold the slot until the agent is done with the request, or does not say so in time."""
        request.interrupts(lease.verdict)
        try:
            outcome = await lease.outcome()
            self._tell_client(request, outcome)
            self._judge(lease.agent, outcome)
            if not lease.agent_done.is_set():
                lease.agent.stop(lease)
                with trio.move_on_after(self.limits.stop_confirmation_s) as patience:
                    await lease.agent_done.wait()
                if patience.cancelled_caught:
                    self._failed(lease.agent)
                    log.warning(
                        "agent did not confirm a stop", agent=lease.agent.name, request=request.id
                    )
            return outcome
        finally:
            lease.agent.forget(lease)

    def _judge(self, agent: AgentConnection, outcome: Outcome) -> None:
        """What this outcome says about the agent's health."""
        match outcome:
            case Finished():
                self.health.succeeded(agent.label)
            case NoToken() | BrokenFrame():
                self._failed(agent)
            case AgentLost() | SlowReader() | Stopped():
                pass

    def _failed(self, agent: AgentConnection) -> None:
        ejection_s = self.health.failed(agent.label, trio.current_time())
        if ejection_s is not None:
            log.error("agent ejected: too many failures", agent=agent.label, for_s=ejection_s)
            if agent.key in self.agents and agent.refresh_readiness():
                self.update(agent)

    def _tell_client(self, request: Request, outcome: Outcome) -> None:
        match outcome:
            case Finished() | Stopped():
                pass
            case AgentLost(refused):
                if refused is not None:
                    request.fail(502, refused)
            case BrokenFrame(detail):
                request.fail(502, f"The agent sent a malformed frame: {detail}")
            case SlowReader():
                request.fail(
                    503, "The client reads too slowly; the request was stopped to protect others"
                )
            case NoToken():
                timeout_ms = round(self.limits.item_timeout_s * 1000)
                request.fail(
                    504,
                    f"Inference timed out after {timeout_ms}ms waiting for next token. Increase "
                    "--inference-item-timeout if the prompt requires longer processing.",
                )
            case _:
                assert_never(outcome)

    def _end(self, request: Request) -> None:
        """Nobody waits for it, nothing is held, and the client was told; always the last step."""
        del self._requests[request.key]
        if request.placements:
            self._rate.ended(trio.current_time())
        lease = self._leases.pop(request.key, None)
        if lease is not None:
            lease.agent.forget(lease)  # if it was cancelled before it could take its slot
        self._apply(self._ledger.end(request.key))
        self._stranded.pop(request.key, None)
        if self.is_draining:
            request.fail(503, "balancer is shutting down")
        request.fail(502, "Response channel closed before terminator")
        log.info(
            "request ended",
            request=request.id,
            agents=request.agents,
            results=request.num_results,
            waited_s=round(request.waited_s, 3),
            took_s=round(trio.current_time() - request.arrived_s, 3),
            ending="stopped" if request.is_stopped else _ending(request.failure),
        )
        self.agents_changed.notify()

    # -------------------------------------------------------------- private

    def _apply(self, decisions: Iterable[Granted | Buffered]) -> None:
        for decision in decisions:
            match decision:
                case Granted(key, agent_key):
                    self._grant(self._requests[key], self.agents[agent_key])
                case Buffered():
                    pass
        buffered = self._ledger.statistics().requests_buffered
        if buffered != self._buffered:
            self._buffered = buffered
            self.buffer_changed.notify()

    def _grant(self, request: Request, agent: AgentConnection) -> None:
        request.placements += 1
        request.agents.append(agent.label)
        lease = Lease(
            request,
            agent,
            wire_id=f"{request.key}.{request.placements}",
            item_timeout_s=self.limits.item_timeout_s,
            isolated=_isolated(request) if agent.speaks_trio else None,
        )
        self._leases[request.key] = lease
        if request.seat.give(lease):
            agent.start(lease)  # in this very step: a new state must not come in between
        self.agents_changed.notify()


def _hopeless(reason: Inexpressible | TooLong) -> tuple[int, str]:
    """Why agents of Paddler's alone cannot take a request: status and words."""
    if isinstance(reason, TooLong):
        return 413, f"{_too_long(reason)} by the agents that are connected, which are Paddler's"
    return 501, (
        f"{reason.field} is more than the agents that are connected can do: Paddler 4.1 "
        "has no such field; start an agent of this package, or leave the field out"
    )


def _too_long(excess: TooLong) -> str:
    return (
        f"The request has {excess.size_bytes} bytes as it is sent to an agent, "
        f"at most {excess.most_bytes} are taken"
    )


def _isolated(request: Request) -> str | None:
    """What an agent is told that the request may have killed."""
    if request.may_kill_agents:
        return "agent"
    return "engine" if request.suspicions else None


def _ending(failure: Failure | None) -> str:
    """For the log."""
    return "done" if failure is None else f"{failure.code} {failure.description}"


def client_digest(client: str) -> str:
    """Tells clients apart on agents without naming them."""
    return hashlib.blake2s(client.encode(), digest_size=8).hexdigest()
