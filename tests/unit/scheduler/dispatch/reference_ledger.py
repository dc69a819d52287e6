"""The slot ledger in few words: it looks at everything, at every step. The specification of
:class:`~paddler_trio.scheduler.dispatch.slot_ledger.SlotLedger`, which decides the same without
looking at everything; ``test_same_decisions.py`` compares them, ``benchmarks/dispatch.py`` times
them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from fractions import Fraction

import attrs

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_ledger import (
    BufferFull,
    Decision,
    Granted,
    LedgerStatistics,
    Queued,
)


@attrs.frozen
class AgentLoad:
    """What placement may know of one agent."""

    agent: AgentKey
    slots_busy: int
    slots_total: int
    last_chosen: int
    """Ordinal of the latest grant to this agent; 0 if it never had one."""

    @property
    def has_capacity(self) -> bool:
        return self.slots_busy < self.slots_total


def least_loaded(agents: Iterable[AgentLoad]) -> AgentKey | None:
    """The agent that should take one more request, or None when none has a free slot."""
    best = min(
        (load for load in agents if load.has_capacity),
        key=lambda load: (
            Fraction(load.slots_busy, load.slots_total),
            load.last_chosen,
            load.agent,
        ),
        default=None,
    )
    return None if best is None else best.agent


@attrs.define
class _Agent:
    slots_total: int
    accepting: bool
    kind: str | None
    offers: frozenset[str] = frozenset()
    revision: str | None = None
    next_revision: str | None = None
    holders: dict[RequestKey, None] = attrs.field(factory=dict)
    """In the order the slots were granted (a dict is an ordered set)."""
    last_chosen: int = 0


@attrs.define
class _Request:
    client: str
    place: Place
    priority: Priority
    needs: frozenset[str] = frozenset()
    """Only agents that offer all of these may have it."""
    kind: str | None = None
    """The only kind of agent that may have it; None for any."""
    revision: str | None = None
    """Only agents that serve this revision may have it; None for any."""
    agent: AgentKey | None = None
    """Whose slot it holds; None while it waits."""
    was_granted: bool = False
    """It had a slot before: it is never turned away any more."""


@attrs.define
class ReferenceLedger:
    """Slots of all agents and the requests that want one.

    Args:
      max_buffered: how many requests may wait, >= 0. Re-queued ones are never turned away.
    """

    max_buffered: int
    _agents: dict[AgentKey, _Agent] = attrs.field(factory=dict, init=False)
    _requests: dict[RequestKey, _Request] = attrs.field(factory=dict, init=False)
    _waiting: list[Place] = attrs.field(factory=list, init=False)
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _grants: int = attrs.field(default=0, init=False)

    # ------------------------------------------------------------- requests

    def ask(
        self,
        request: RequestKey,
        *,
        client: str = "",
        priority: Priority = Priority.NORMAL,
        needs: frozenset[str] = frozenset(),
        revision: str | None = None,
    ) -> Decision:
        """A new request wants a slot of an agent that offers what it ``needs``, and serves
        ``revision`` if that is given. If one is free, no request that waits may have it."""
        assert request not in self._requests, f"request {request} asks twice"
        displaced: RequestKey | None = None
        if (
            self._free_agent(None, needs, revision) is None
            and len(self._waiting) >= self.max_buffered
        ):
            displaced = self._displaceable(client, priority)
            if displaced is None:
                return BufferFull(request, self.max_buffered)
            self._forget_waiting(displaced)
        place = self._order.place(request, client=client, priority=priority)
        self._requests[request] = entry = _Request(
            client, place, priority, needs, revision=revision
        )
        granted = self._grant(request, entry)
        if granted is not None:
            return granted
        insort(self._waiting, place)
        return Queued(request, self._waiting.index(place), displaced)

    def ask_again(
        self,
        request: RequestKey,
        *,
        kind: str | None = None,
        needs: frozenset[str] = frozenset(),
        revision: str | None = None,
    ) -> Granted | Queued:
        """A request whose agent left wants another slot; it has its old place again.

        With ``kind`` or ``revision``, only an agent of that kind or revision may have it; ``needs``
        join those it had.
        """
        entry = self._requests[request]
        entry.needs |= needs
        assert entry.agent is None, f"request {request} holds a slot"
        assert entry.place not in self._waiting, f"request {request} waits already"
        entry.kind, entry.revision = kind, revision
        granted = self._grant(request, entry)
        if granted is not None:
            return granted  # no earlier request may have this slot, or it would not be free
        insort(self._waiting, entry.place)
        return Queued(request, self._waiting.index(entry.place))

    def give_back(self, request: RequestKey) -> list[Granted]:
        """The request returns its slot and may :meth:`ask_again`."""
        entry = self._requests[request]
        if entry.agent is not None:
            del self._agents[entry.agent].holders[request]
            entry.agent = None
        return self._grant_waiting()

    def end(self, request: RequestKey) -> list[Granted]:
        """The request neither waits nor holds a slot any more. Safe to repeat."""
        entry = self._requests.get(request)
        if entry is None:
            return []
        if entry.agent is None and entry.place in self._waiting:
            self._forget_waiting(request)
            return self._grant_waiting()
        if entry.agent is not None:
            del self._agents[entry.agent].holders[request]
        del self._requests[request]
        return self._grant_waiting()

    def position(self, request: RequestKey) -> int | None:
        """How many stand before this request; None if it does not wait."""
        entry = self._requests.get(request)
        if entry is None or entry.place not in self._waiting:
            return None
        return self._waiting.index(entry.place)

    def is_hopeless(self, needs: frozenset[str]) -> bool:
        """There are agents, and none of them offers all of this, however long one waits."""
        return bool(self._agents) and not any(
            needs <= agent.offers for agent in self._agents.values()
        )

    def stranded(self) -> list[RequestKey]:
        """Waiting requests that no agent here can serve, now or later: continuations of another
        kind, and those of a revision that is neither served nor about to be. An agent that only
        loads keeps its kind; of one that offers what continuations need and has served nothing yet
        the kind is not known."""
        waiting = [(key, self._requests[key]) for _, key in self._waiting]
        agents = self._agents.values()
        kinds = {agent.kind for agent in agents if agent.offers or agent.kind}
        if None in kinds and all(entry.revision is None for _, entry in waiting):
            return []
        revisions = {agent.revision for agent in agents} | {agent.next_revision for agent in agents}
        return [
            key
            for key, entry in waiting
            if (entry.kind is not None and None not in kinds and entry.kind not in kinds)
            or (entry.revision is not None and entry.revision not in revisions)
        ]

    # --------------------------------------------------------------- agents

    def join(self, agent: AgentKey) -> None:
        """A registered agent, not accepting until :meth:`update`."""
        assert agent not in self._agents, f"agent {agent} joined twice"
        self._agents[agent] = _Agent(slots_total=0, accepting=False, kind=None)

    def update(
        self,
        agent: AgentKey,
        *,
        slots_total: int,
        accepting: bool,
        kind: str | None = None,
        offers: frozenset[str] = frozenset(),
        revision: str | None = None,
        next_revision: str | None = None,
    ) -> list[Granted]:
        """The agent's newest report of its slots; the total may shrink below what it holds.

        ``revision`` is what it serves, ``next_revision`` what it is to serve.
        """
        record = self._agents[agent]
        record.kind = kind
        record.offers = offers
        record.revision, record.next_revision = revision, next_revision
        record.slots_total = max(0, slots_total)
        record.accepting = accepting
        return self._grant_waiting()

    def leave(self, agent: AgentKey) -> list[RequestKey]:
        """The agent is gone with all its slots, in one step.

        Returns:
          The requests that held its slots, in the order they were granted; they hold nothing now
          and either ask again or end.
        """
        lost = list(self._agents.pop(agent).holders)
        for request in lost:
            self._requests[request].agent = None
        return lost

    def in_order(self, requests: Iterable[RequestKey]) -> list[RequestKey]:
        """These requests, sorted by their places."""
        return sorted(requests, key=lambda request: self._requests[request].place)

    def slots_processing(self, agent: AgentKey) -> int:
        """How many requests hold a slot of this agent."""
        return len(self._agents[agent].holders)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            slots_processing=sum(len(agent.holders) for agent in self._agents.values()),
            slots_total=sum(agent.slots_total for agent in self._agents.values()),
            requests_buffered=len(self._waiting),
        )

    # -------------------------------------------------------------- private

    def _displaceable(self, client: str, priority: Priority) -> RequestKey | None:
        """The last in the queue of the client with the most waiting requests, if these are at least
        two more than ``client`` has, and its class is not above ``priority``."""
        waiting: dict[str, list[RequestKey]] = {}
        for _, key in self._waiting:
            entry = self._requests[key]
            if not entry.was_granted:
                waiting.setdefault(entry.client, []).append(key)
        own = len(waiting.get(client, ()))
        for keys in sorted(waiting.values(), key=len, reverse=True):
            if len(keys) < own + 2:
                return None
            if self._requests[keys[-1]].priority.value >= priority.value:
                return keys[-1]
        return None

    def _forget_waiting(self, request: RequestKey) -> None:
        entry = self._requests.pop(request)
        self._waiting.remove(entry.place)
        others = (self._requests[key] for _, key in self._waiting)
        tags = [o.place[0] - o.priority.value for o in others if o.client == entry.client]
        self._order.gave_up(entry.client, max(tags, default=None))

    def _grant_waiting(self) -> list[Granted]:
        """Grant slots in the order of the places, while any is free."""
        grants: list[Granted] = []
        passed_by = 0
        while passed_by < len(self._waiting):
            (_, request) = self._waiting[passed_by]
            entry = self._requests[request]
            granted = self._grant(request, entry)
            if granted is not None:
                del self._waiting[passed_by]
                grants.append(granted)
            elif entry.kind is not None or entry.needs or entry.revision is not None:
                passed_by += 1  # others may have what this one may not
            else:
                break
        return grants

    def _grant(self, request: RequestKey, entry: _Request) -> Granted | None:
        chosen = self._free_agent(entry.kind, entry.needs, entry.revision)
        if chosen is None:
            return None
        self._grants += 1
        agent = self._agents[chosen]
        agent.last_chosen = self._grants
        agent.holders[request] = None
        entry.agent = chosen
        entry.was_granted = True
        self._order.granted(entry.place, entry.priority)
        return Granted(request, chosen)

    def _free_agent(
        self, kind: str | None, needs: frozenset[str], revision: str | None
    ) -> AgentKey | None:
        return least_loaded(
            AgentLoad(key, len(agent.holders), agent.slots_total, agent.last_chosen)
            for key, agent in self._agents.items()
            if agent.accepting
            and (kind is None or agent.kind == kind)
            and (revision is None or agent.revision == revision)
            and needs <= agent.offers
        )
