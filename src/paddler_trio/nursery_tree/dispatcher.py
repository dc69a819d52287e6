"""All requests, all agents, a pool for each deployment; a request is a task, a slot a lease.

The ledger of a pool decides which request gets which slot, requests change their phases, and the
dispatcher does what each change means: it sends work and stops to agents, returns slots, and sets
deadlines. All of that is synchronous, in the step in which the change happens, so no cancellation
can fall in between. The task of a request only waits for the deadline of its phase, and makes sure
that the request ends when the task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import TRIO_OFFERS
from paddler_trio.nursery_tree.connected_agents import Agents
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.pool import Hold, Pool, PoolSettings
from paddler_trio.nursery_tree.pools import Pools
from paddler_trio.nursery_tree.request import (
    Buffered,
    Ended,
    Lease,
    Leased,
    Phase,
    Request,
    RevisionPin,
    SlotOwner,
    Stopping,
    Streaming,
    client_digest,
)
from paddler_trio.nursery_tree.request_endings import (
    BUFFERED_TOO_LONG,
    CUT_OFF,
    DISPLACED,
    OVERFLOW,
    SHUTTING_DOWN,
    Completed,
    Failure,
    hopeless,
    no_such_deployment,
    other_kind,
    revision_gone,
    silent_server,
    stranded,
    token_timeout,
    too_long,
    too_old_for,
)
from paddler_trio.nursery_tree.request_log import log_end, shown
from paddler_trio.scheduler.dispatch.continuation import Loss, refusal
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import BufferFull, Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import (
    LedgerStatistics,
    Priority,
    RequestKey,
    SlotLedger,
)
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.system.synchronization import Changes, run_in
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.request_frame import EncodedWork
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

log = structlog.get_logger("dispatch")

REST_S: Final = 1.0
"""For an agent that gives a request back twice in a row, and by its reports is ready for it."""


@attrs.define(eq=False)
class Dispatcher:
    """See the module docstring.

    ``open`` must be given the nurseries of the tree before the first agent and the first request.
    """

    limits: DispatchLimits
    observers: Observers = attrs.field(factory=Observers)
    """They see every request."""
    placement: WarmPlacement | None = None
    agents: Agents = attrs.field(factory=Agents, init=False)
    agents_changed: Changes = attrs.field(factory=Changes, init=False)
    fleet_changed: Changes = attrs.field(factory=Changes, init=False)
    """An agent came or left, or reports something else; not every request that begins or ends."""
    buffer_changed: Changes = attrs.field(factory=Changes, init=False)
    pools_changed: Changes = attrs.field(factory=Changes, init=False)
    """A queue is empty, or not empty any more."""
    health: HealthTracker = attrs.field(factory=HealthTracker, init=False)
    is_draining: bool = attrs.field(default=False, init=False)
    pools: Pools = attrs.field(init=False)
    _requests: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    """All that have not ended."""
    _agents_nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _requests_nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _arrivals: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        new_ledger = partial(SlotLedger, self.limits.max_buffered, self.placement)
        self.pools = Pools(new_ledger, self.pools_changed)

    # ------------------------------------------------------------ requests

    def open(self, *, agents: trio.Nursery, requests: trio.Nursery) -> None:
        """The tasks of agents and of requests live in these nurseries from now on."""
        self._agents_nursery, self._requests_nursery = agents, requests

    def submit(
        self,
        request_id: str,
        work: EncodedWork | ForwardedWork,
        *,
        client: str = "",
        priority: Priority = Priority.NORMAL,
        deployment: str = DEFAULT_DEPLOYMENT,
        preset: str = "",
        pin: RevisionPin | None = None,
        route: str | None = None,
        trace: TraceContext | None = None,
        user: str = "",
        account: str = "",
        is_repeatable: bool = False,
    ) -> Request:
        """Take a request in; the order of these calls is the order of arrival. The queue of a
        deployment is fair between clients, and between the users of each. Requests with one ``pin``
        are answered by one revision. The caller reads ``request.outbox`` until it ends and then
        looks at ``request.failure``; if it stops earlier it must call ``request.stop()``."""
        self._arrivals += 1
        request = Request(
            RequestKey(self._arrivals),
            request_id,
            work,
            deployment=deployment,
            preset=preset,
            client=client_digest(client),
            client_name=client,
            route=route,
            trace=trace,
            account=account,
            user=user,
            pin=pin,
            is_repeatable=is_repeatable,
            buffered_timeout_s=self.limits.buffered_timeout_s,
        )
        request.observer = self.observers
        self.observers.arrived(request)
        pool = self.pools.find(deployment)
        refusal = self._refusal_at_once(request, pool)
        if refusal is not None or pool is None or self._requests_nursery is None:
            return self._refused(request, refusal or SHUTTING_DOWN)
        decision = pool.ledger.ask(
            request.key,
            client=client,
            user=user,
            priority=priority,
            needs=work.needs,
            revision=request.pinned_to,
        )
        if not isinstance(decision, Granted):
            pool.rate.waits(trio.current_time())
        if isinstance(decision, BufferFull):
            return self._refused(request, OVERFLOW)
        self._take(pool, request, decision)
        self._requests_nursery.start_soon(self._run, request, name=f"request {request.id}")
        return request

    def _take(self, pool: Pool, request: Request, decision: Granted | Queued) -> None:
        """Let a request into its pool, where it has a slot or waits."""
        self._requests[request.key] = pool.requests[request.key] = request
        pool.entered(request)
        request.on_move = self._moved
        if isinstance(decision, Queued) and decision.displaced is not None:
            self._requests[decision.displaced].end(DISPLACED)
        self._apply(pool, [decision])

    def _refusal_at_once(self, request: Request, pool: Pool | None) -> Failure | None:
        """Return why a request need not wait; None if it may."""
        work, deployment = request.work, request.deployment
        if self.is_draining:
            return SHUTTING_DOWN
        if work.excess is not None:
            return too_long(work.excess)
        if pool is None:
            return no_such_deployment(deployment)
        if pool.is_upstream != isinstance(work, ForwardedWork):
            return other_kind(deployment, is_upstream=pool.is_upstream)
        if work.needs_ours is not None and pool.ledger.is_hopeless(TRIO_OFFERS):
            return hopeless(work.needs_ours)
        for feature in work.features:
            if pool.ledger.is_hopeless(TRIO_OFFERS | {feature}):
                return too_old_for(feature)
        return None

    def _refused(self, request: Request, failure: Failure) -> Request:
        """End a request that never was in a queue."""
        left = request.phase
        request.end(failure)
        self.observers.moved(request, left)
        return request

    def drain(self) -> None:
        """Take nothing new. Requests in the queue end now, those in slots may finish."""
        self.is_draining = True
        for request in list(self._requests.values()):
            if isinstance(request.phase, Buffered):
                request.end(SHUTTING_DOWN)
        self.agents_changed.notify()  # who waits for an agent outside of a queue gets none, either

    @property
    def requests(self) -> Collection[RequestKey]:
        """Return all that have not ended; it follows what happens."""
        return self._requests.keys()

    def statistics(self) -> LedgerStatistics:
        """Return the counts of all pools; ``slots_total`` is what the agents reported, usable or
        not."""
        reported = sum(max(0, agent.status.slots_total) for agent in self.agents.values())
        return attrs.evolve(self.pools.statistics(), slots_total=reported)

    def suspend(self, owner: SlotOwner) -> None:
        """The server behind this agent did not answer: no work until the agent's next report, which
        says how it is."""
        owner.is_suspended = True
        self._look_again(owner)

    def slots_processing(self, agent: AgentKey) -> int:
        return self.pools.of(self.agents[agent]).ledger.slots_processing(agent)

    # --------------------------------------------------------- deployments

    def set_deployments(self, deployments: Sequence[PoolSettings]) -> None:
        """These are the deployments now, and ``default``, which there always is. Requests of one
        that was removed go on as long as it has agents."""
        for pool, settings in self.pools.replace(deployments):
            self._readmit(pool, settings)

    def add_deployment(self, settings: PoolSettings) -> None:
        """There is one more, or one with other settings, beside those that there are."""
        self._readmit(self.pools.open(settings.name), settings)

    def _readmit(self, pool: Pool, settings: PoolSettings) -> None:
        for agent in pool.readmit(settings):
            self._apply(pool, pool.record(agent))
        self._note_stranded(pool)
        self.agents_changed.notify()

    def hold(self, deployment: str, hold: Hold | None) -> None:
        """While a pool is held, its requests do not time out before the end of the hold and then
        their own time, and clients are shown the reason."""
        pool = self.pools.find(deployment)
        if pool is not None and pool.held != hold:
            pool.hold(hold, trio.current_time())

    # -------------------------------------------------------------- agents

    async def run_agent(self, run: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run the task of one agent's connection among the agents, until it ends; see
        :func:`~paddler_trio.system.synchronization.run_in`."""
        assert self._agents_nursery is not None, "an agent dialled in before the tree was built"
        await run_in(self._agents_nursery, run, name=name)

    def join(self, agent: AgentConnection) -> None:
        """An agent of a deployment that there is not stays, and gets no work."""
        self.agents.add(agent)
        agent.joined_s = trio.current_time()
        self.health.joined(agent.label, agent.joined_s)
        self.pools.joined_by(agent).join(agent)
        self.update(agent)

    def drain_agent(self, agent: AgentConnection, *, drained: bool) -> None:
        """Give the agent nothing new while ``drained``; what it has, it finishes. See
        :meth:`Agents.set_drained`; a balancer that is started anew does not remember it."""
        for each in self.agents.set_drained(agent, drained=drained):
            each.refresh_readiness()
            self.update(each)

    def update(self, agent: AgentConnection) -> None:
        """The agent's slots or readiness may have changed."""
        self.observers.agent_changed(agent, is_here=True)
        pool = self.pools.of(agent)
        self._note_serving(pool, agent.key, serves=agent.gets_work_by_right)
        self._apply(pool, pool.record(agent))
        self._note_stranded(pool)
        self._note_changed(agent)

    def _note_serving(self, pool: Pool, key: AgentKey, *, serves: bool) -> None:
        for agent in pool.note_serving(key, serves=serves):
            self._apply(pool, pool.record(agent))

    def leave(self, agent: AgentConnection) -> None:
        """The agent is gone: its slots vanish at once, and every lease on it ends. Requests that
        may go on elsewhere are back in the queue before any other can ask, the earliest first."""
        if not self.agents.remove(agent):
            return
        self.observers.agent_changed(agent, is_here=False)
        self.health.left(agent.label, trio.current_time(), gracefully=agent.said_goodbye)
        suspects = {} if agent.said_goodbye else agent.suspects()
        how = "lost: the agent left" if agent.said_goodbye else "lost: the agent's connection broke"
        pool = self.pools.of(agent)
        del pool.agents[agent.key]
        for key in pool.ledger.in_order(pool.ledger.leave(agent.key)):
            request = self._requests[key]
            request.may_kill_agents |= key in suspects
            self._lose_slot(request, suspects.get(key, 0), how)
        self._apply(pool, pool.ledger.grant_waiting())
        self._note_serving(pool, agent.key, serves=False)
        self._note_stranded(pool)
        self.pools.end_if_left(pool)
        self._note_changed(agent)

    def _note_changed(self, agent: AgentConnection) -> None:
        self.agents.note_changed(agent)
        self.agents_changed.notify()
        self.fleet_changed.notify()

    def hand_back(self, lease: Lease, reason: str, *, suspects: int) -> None:
        """The agent cannot finish this request, another one may. Safe to repeat. ``suspects``: how
        many requests may have killed the engine, this one among them; 0 if it did not."""
        request = lease.request
        if request.lease is not lease:
            return
        log.warning(
            "handed back",
            **request.log_fields,
            agent=lease.agent.name,
            reason=reason,
            suspects=suspects,
        )
        if not suspects and request.agents[-2:] == [lease.agent.label] * 2:
            # it cannot do what it says: it lacks memory or descriptors, and has the most free slots
            lease.agent.rests_until_s = trio.current_time() + REST_S
            self._look_again(lease.agent)
        pool = self.pools.of(request)
        self._apply(pool, pool.ledger.give_back(request.key))
        self._lose_slot(request, suspects, f"handed back: {reason}")
        self._note_stranded(pool)
        self.agents_changed.notify()

    def move_requests(self, agent: AgentConnection, reason: str) -> int:
        """Let other agents with the same model go on with what this one answers, as far as they
        have free slots and the answers can be continued; how many were moved. The others finish
        here, as does what ends with the revision that it began with."""
        pool = self.pools.of(agent)
        free = sum(
            max(0, other.usable_slots - other.slots_processing)
            for other in pool.agents.values()
            if other is not agent and other.is_accepting and other.model == agent.model
        )
        movable = [
            lease
            for lease in agent.leases()
            if not lease.request.is_over
            and lease.request.pinned_to is None
            and self._refusal(lease.request, suspects=0) is None
        ]
        moved = movable[: free if agent.model is not None else 0]
        for lease in moved:
            agent.stop(lease)
            self.hand_back(lease, reason, suspects=0)
        return len(moved)

    def _refusal(self, request: Request, suspects: int) -> str | None:
        """Return why another agent may not go on with a request; None if one may."""
        has_output = request.num_results > 0 or bool(request.tokens)
        loss = Loss(
            has_output=has_output and not request.is_repeatable,
            is_continuable=request.is_continuable,
            continuations=request.continuations,
            suspicions=request.suspicions,
            suspects=suspects,
        )
        return refusal(loss, self.limits.continuation)

    def _lose_slot(self, request: Request, suspects: int, how: str) -> None:
        """The slot of this request is gone: it queues again, in this very step, or ends; see
        :meth:`hand_back`."""
        self.observers.lost(request, how)
        if isinstance(request.phase, Stopping):
            request.end(request.phase.ending)
            return
        if suspects:
            request.suspicions += 1
        refused = self._refusal(request, suspects)
        log.warning(
            "agent lost under a request",
            **request.log_fields,
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
        pool = self.pools.of(request)
        kind = request.model if request.tokens else None
        ours_are_here = any(agent.offers >= TRIO_OFFERS for agent in pool.agents.values())
        needs = TRIO_OFFERS if request.suspicions and ours_are_here else frozenset()
        placed = pool.ledger.ask_again(
            request.key, kind=kind, needs=needs, revision=request.pinned_to
        )
        self._apply(pool, [placed])
        if self.is_draining and isinstance(request.phase, Buffered):
            request.end(SHUTTING_DOWN)

    def _note_stranded(self, pool: Pool) -> None:
        pool.note_stranded(trio.current_time(), self.limits)

    # ------------------------------------------------- the life of a request

    async def _run(self, request: Request) -> None:
        """The task of a request: it ends the phases that last too long."""
        explain_this_task(lambda: shown(request, self.pools.position(request)))
        structlog.contextvars.bind_contextvars(**request.log_fields)
        try:
            while not isinstance(request.phase, Ended):
                timer = request.timer
                with timer:
                    await request.moved.park()
                if request.timer is timer:  # else it moved on in the tick of the deadline
                    self._deadline_passed(request)
        finally:
            cut_off = SHUTTING_DOWN if self.is_draining else CUT_OFF
            request.abort(cut_off)  # sends a stop to the agent that works on it
            request.end(cut_off)
            log_end(request)  # here, where the context names the client's key

    def _deadline_passed(self, request: Request) -> None:
        pool = self.pools.of(request)
        match request.phase:
            case Buffered(deadline_s=end_s, stranded_since_s=None) if trio.current_time() < end_s:
                request.wait_until(end_s)
                self._apply(pool, pool.ledger.release_hold(request.key))
            case Buffered(stranded_since_s=None):
                request.end(BUFFERED_TOO_LONG)
            case Buffered(stranded_since_s=float(since_s)):
                waited_s = trio.current_time() - since_s
                if request.pin is not None and not request.tokens:
                    request.pin.is_lost = True
                    request.end(revision_gone(request.pin.revision or "", waited_s))
                    return
                ready = [agent.kind for agent in pool.agents.values() if agent.is_accepting]
                request.end(stranded(len(request.tokens), waited_s, ready))
            case Leased(lease) | Streaming(lease) if lease.silent_from_s > trio.current_time():
                request.wait_until(lease.silent_from_s)
            case Leased(lease) | Streaming(lease) if isinstance(request.work, ForwardedWork):
                request.abort(silent_server(lease.item_timeout_s))
            case Leased() | Streaming():
                request.abort(token_timeout(self.limits.item_timeout_s))
            case Stopping(lease, ending):
                log.warning("agent did not confirm a stop", agent=lease.agent.name)
                self._count_failure(lease.agent)
                request.end(ending)

    def _moved(self, request: Request, left: Phase) -> None:
        """A request has entered a phase: what that means for its agent, its slot, its deadline."""
        self.observers.moved(request, left)
        now_s = trio.current_time()
        held = left.lease if isinstance(left, Leased | Streaming | Stopping) else None
        match request.phase:
            case Buffered(deadline_s=deadline_s):
                assert held is not None
                held.agent.forget(held)
                request.timer.deadline = deadline_s
                self.pools.of(request).entered(request)
            case Leased(lease):
                request.timer.deadline = now_s + lease.item_timeout_s
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
        pool = self.pools.of(request)
        pool.forget(request)
        self._apply(pool, pool.ledger.end(request.key))
        if request.agents:
            pool.rate.ended(trio.current_time(), waiting=pool.ledger.num_waiting)
        self.pools.forget_if_unused(pool)
        self.agents_changed.notify()

    def _item_timeout_s(self, request: Request) -> float:
        """Return how long its agent may be silent about a request."""
        if isinstance(request.work, ForwardedWork):
            return request.work.response_timeout_s
        return self.limits.item_timeout_s

    def _count_failure(self, owner: SlotOwner) -> None:
        ejection_s = self.health.failed(owner.label, trio.current_time())
        if ejection_s is not None:
            log.error("agent ejected: too many failures", agent=owner.label, for_s=ejection_s)
            self._look_again(owner)

    def _look_again(self, owner: SlotOwner) -> None:
        """Something beside its reports has changed whether it gets work."""
        agent = self.agents.get(owner.key)
        if agent is not None and agent.refresh_readiness():
            self.update(agent)

    def _apply(self, pool: Pool, decisions: Iterable[Granted | Queued]) -> None:
        for decision in decisions:
            if isinstance(decision, Granted):
                self._grant(decision)
        for key, until_s in pool.ledger.holds.take_new():
            timer = self._requests[key].timer
            timer.deadline = min((trio.current_time() + timer.deadline) / 2, until_s)
        if self.pools.note_buffered(pool):
            self.buffer_changed.notify()

    def _grant(self, granted: Granted) -> None:
        request, agent = self._requests[granted.request], self.agents[granted.agent]
        lease = Lease(
            request,
            agent,
            wire_id=f"{request.key}.{len(request.agents) + 1}",
            item_timeout_s=self._item_timeout_s(request),
            isolated=request.isolation if agent.kind.isolates else None,
            choice=granted.choice,
        )
        request.revision = agent.revision
        if request.pin is not None and request.pin.revision is None:
            request.pin.revision = agent.revision
        request.grant(lease)
        self.agents_changed.notify()
