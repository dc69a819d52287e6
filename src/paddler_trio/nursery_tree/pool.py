"""The slots and the queue of one deployment: which of its agents get work, and which requests wait.

A request waits in one pool and gets a slot of that pool's agents, never of another's; pools do not
wait for each other. A pool decides and counts; the dispatcher carries out what it decides. All of
it is synchronous.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.request import Buffered, Request
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.scheduler.dispatch.slot_decisions import Granted
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey, SlotLedger


@attrs.frozen(kw_only=True)
class PoolSettings:
    """One deployment as the dispatcher is given it.

    Args:
      aliases: other names under which requests may ask for it.
      admissible: the digests that its agents may serve to get work; None: each agent the one that
        was sent to it last.
      coming: of those, the one that more and more agents are about to serve; None if none is.
      empty: it has no model.
    """

    name: str
    aliases: tuple[str, ...] = ()
    admissible: frozenset[str] | None = None
    coming: str | None = None
    empty: bool = False


@attrs.frozen
class Hold:
    """Why a pool is expected to give no slot, and until when in seconds of Trio's clock."""

    reason: str
    until_s: float


@attrs.frozen
class Demand:
    """All that clients want of a deployment now: requests and questions that wait, for how many
    seconds the first of them, and requests in slots."""

    waiting: int
    oldest_wait_s: float
    running: int


@attrs.define(eq=False, repr=False)
class Pool:
    """See the module docstring.

    Args:
      ledger: counts its slots and who waits for them.
      is_known: it is a deployment now; others only keep agents and requests that are left.
      is_upstream: its agents stand in front of servers, and its requests are forwarded.
    """

    settings: PoolSettings
    ledger: SlotLedger
    is_known: bool = True
    is_upstream: bool = False
    agents: dict[AgentKey, AgentConnection] = attrs.field(factory=dict, init=False)
    requests: dict[RequestKey, Request] = attrs.field(factory=dict, init=False)
    """All that have not ended."""
    held: Hold | None = attrs.field(default=None, init=False)
    has_moved: bool = attrs.field(default=False, init=False)
    """Its agents are another process's: nothing that waits here will get one."""
    rate: ServiceRate = attrs.field(factory=ServiceRate, init=False)
    asking_since_s: list[float] = attrs.field(factory=list, init=False)
    """Of each question that waits for an agent, when it began to."""
    num_buffered: int = attrs.field(default=0, init=False)
    _serving: set[AgentKey] = attrs.field(factory=set, init=False)
    """The agents that get work because they serve what is admissible."""
    _stand_ins_work: bool = attrs.field(default=True, init=False)
    """There are none, so those that still serve the state before it get work."""
    _stranded: set[RequestKey] = attrs.field(factory=set, init=False)
    _coming_model: str | None = attrs.field(default=None, init=False)
    """The fingerprint under which an agent has served what is coming."""
    _entered: deque[tuple[RequestKey, Buffered]] = attrs.field(factory=deque, init=False)
    """Requests in the order in which they entered the queue, with the stay; also stays that are
    over, until they come to the front. By their keys: a body is not kept for that."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def has_waiting(self) -> bool:
        """A request or a question waits."""
        return bool(self.num_buffered or self.asking_since_s)

    @property
    def is_unused(self) -> bool:
        """It is no deployment any more, and nothing of it is left."""
        return not (self.is_known or self.agents or self.requests or self.asking_since_s)

    @property
    def serves(self) -> bool:
        """An agent serves what is admissible, or stands in, and has slots."""
        return any(agent.is_accepting and agent.usable_slots for agent in self.agents.values())

    def __repr__(self) -> str:
        held = "" if self.held is None else f", held: {self.held.reason}"
        return (
            f"<Pool {self.name!r} of {len(self.agents)} agents, {len(self._serving)} serving, "
            f"{self.num_buffered} of {len(self.requests)} requests wait{held}>"
        )

    # --------------------------------------------------------------- agents

    def join(self, agent: AgentConnection) -> None:
        """A registered agent; it gets nothing until :meth:`record`."""
        self.agents[agent.key] = agent
        agent.idle_since_s = trio.current_time()
        agent.readiness.admissible = self.settings.admissible
        agent.readiness.may_stand_in = self._stand_ins_work
        agent.refresh_readiness()
        self.ledger.join(agent.key)

    def record(self, agent: AgentConnection) -> list[Granted]:
        """Note that its slots or readiness may have changed; return the grants that this made
        possible."""
        if agent.revision is not None and agent.revision == self.settings.coming:
            self._coming_model = agent.model
        return self.ledger.update(
            agent.key,
            slots_total=agent.usable_slots,
            accepting=agent.is_accepting,
            kind=agent.model,
            offers=agent.offers,
            revision=self._hoped_for(agent, agent.revision),
            next_revision=self._hoped_for(agent, agent.sent_revision),
        )

    def _hoped_for(self, agent: AgentConnection, revision: str | None) -> str | None:
        """``revision`` if the agent gets work while it serves it, now or later."""
        admissible = self.settings.admissible
        if agent.is_accepting and revision == agent.revision:
            return revision
        is_admitted = (
            revision == agent.sent_revision if admissible is None else revision in admissible
        )
        return revision if is_admitted and not agent.is_drained else None

    def note_serving(self, key: AgentKey, *, serves: bool) -> list[AgentConnection]:
        """The first agent that serves what is admissible ends the time of those that stand in, and
        the last one that no longer does begins it: there is never a choice of two models.

        Returns:
          The agents that are ready, or not ready any more, because of this, to be recorded; those
          that are not come first.
        """
        if serves:
            self._serving.add(key)
        else:
            self._serving.discard(key)
        changed: dict[AgentKey, AgentConnection] = {}
        while self._stand_ins_work == bool(self._serving):
            self._stand_ins_work = not self._serving
            for agent in self.agents.values():
                agent.readiness.may_stand_in = self._stand_ins_work
                if agent.refresh_readiness():
                    changed[agent.key] = agent
            # one that was looked at now, since its ejection has ended, may serve by right
            self._serving |= {each.key for each in changed.values() if each.gets_work_by_right}
        return sorted(changed.values(), key=lambda agent: agent.is_accepting)

    def readmit(self, settings: PoolSettings) -> list[AgentConnection]:
        """The deployment has these settings now, which are others; the agents to be recorded: those
        that lose their readiness come first, so that nothing is granted to one of them."""
        before, self.settings = self.settings, settings
        if settings.coming != before.coming:
            self._coming_model = next(
                (a.model for a in self.agents.values() if a.revision == settings.coming), None
            )
        if settings.admissible == before.admissible:
            return []
        for agent in self.agents.values():
            agent.readiness.admissible = settings.admissible
            agent.refresh_readiness()
        self._serving = {key for key, agent in self.agents.items() if agent.gets_work_by_right}
        self._stand_ins_work = not self._serving
        for agent in self.agents.values():
            agent.readiness.may_stand_in = self._stand_ins_work
            agent.refresh_readiness()
        return sorted(self.agents.values(), key=lambda agent: agent.is_accepting)

    # ------------------------------------------------------------- the queue

    def note_stranded(self, now_s: float, limits: DispatchLimits) -> None:
        """An answer is continued by the model that began it or not at all, and a call that was
        begun with one revision ends with it. While no agent here could, such a request waits only
        ``continuation_wait_s`` for one to connect, and not for its turn. If a rollout is about to
        put that revision on more agents, it waits ``rollout_wait_s`` for the next one."""
        stranded = self.ledger.stranded()
        for key in stranded:
            request = self.requests[key]
            phase = request.phase
            if not isinstance(phase, Buffered):
                continue
            is_new, was_awaited = phase.stranded_since_s is None, phase.is_awaited
            phase.is_awaited = self._is_coming(request)
            if not is_new and phase.is_awaited == was_awaited:
                continue
            phase.stranded_since_s = now_s
            if phase.is_awaited:
                request.timer.deadline = now_s + limits.rollout_wait_s
            else:
                until_s = now_s + limits.continuation_wait_s
                request.timer.deadline = until_s if was_awaited else min(phase.deadline_s, until_s)
        for key in self._stranded.difference(stranded):
            request = self.requests[key]
            phase = request.phase
            if isinstance(phase, Buffered):
                if phase.is_awaited:  # its own patience begins now
                    phase.deadline_s = max(phase.deadline_s, now_s + request.buffered_timeout_s)
                phase.stranded_since_s, phase.is_awaited = None, False
                request.timer.deadline = phase.deadline_s
        self._stranded = set(stranded)

    def _is_coming(self, request: Request) -> bool:
        """More agents are about to serve what must answer it."""
        if request.pinned_to is not None:
            return request.pinned_to == self.settings.coming
        return request.model is not None and request.model == self._coming_model

    def forget(self, request: Request) -> None:
        """The request has ended."""
        del self.requests[request.key]
        self._stranded.discard(request.key)

    def hold(self, hold: Hold | None, now_s: float) -> None:
        """Expect no slot before the end of ``hold``, or expect one again; the deadlines of those
        that wait follow."""
        before, self.held = self.held, hold
        for request in self.requests.values():
            phase = request.phase
            if not isinstance(phase, Buffered):
                continue
            if hold is not None:
                self._wait_until(request, phase, hold.until_s + request.buffered_timeout_s)
            elif before is not None:
                ended_s = max(min(now_s, before.until_s), phase.since_s)
                self._wait_until(request, phase, ended_s + request.buffered_timeout_s)

    def entered(self, request: Request) -> None:
        """One of ``requests`` is in the queue now: while the pool is held, its own patience begins
        afterwards."""
        phase = request.phase
        assert isinstance(phase, Buffered), f"{request} is not in the queue"
        self._entered.append((request.key, phase))
        if len(self._entered) > 2 * len(self.requests) + _STALE_STAYS:
            self._entered = deque(stay for stay in self._entered if self._still_waits(*stay))
        if self.held is not None:
            until_s = self.held.until_s + request.buffered_timeout_s
            if until_s > phase.deadline_s:
                self._wait_until(request, phase, until_s)

    def _still_waits(self, key: RequestKey, stay: Buffered) -> bool:
        request = self.requests.get(key)
        return request is not None and request.phase is stay

    def _wait_until(self, request: Request, phase: Buffered, deadline_s: float) -> None:
        phase.deadline_s = max(deadline_s, phase.since_s + request.buffered_timeout_s)
        if phase.stranded_since_s is None:
            request.timer.deadline = phase.deadline_s

    def retry_after_s(self, now_s: float) -> int:
        """Return when a request that was refused now should come again, in whole seconds."""
        seconds = self.rate.retry_after_s(self.ledger.statistics().requests_buffered, now_s)
        if self.held is None or self.serves:
            return seconds
        left_s = min(LONGEST_ADVICE_S, max(0.0, self.held.until_s - now_s))
        return max(seconds, int(-(-left_s // 1)))

    def demand(self, now_s: float) -> Demand:
        """See :class:`Demand`."""
        while self._entered and not self._still_waits(*self._entered[0]):
            self._entered.popleft()
        since_s = [phase.since_s for _, phase in islice(self._entered, 1)] + self.asking_since_s
        counts = self.ledger.statistics()
        return Demand(
            counts.requests_buffered + len(self.asking_since_s),
            now_s - min(since_s, default=now_s),
            counts.slots_processing,
        )


LONGEST_ADVICE_S: Final = 3600.0
"""An expectation further away is no advice to a client."""
_STALE_STAYS: Final = 64
