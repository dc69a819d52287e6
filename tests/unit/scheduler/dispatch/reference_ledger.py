"""The slot ledger in few words: it looks at everything, at every step. The specification of
:class:`~paddler_trio.scheduler.dispatch.slot_ledger.SlotLedger`, which decides the same without
looking at everything; ``test_same_decisions.py`` compares them, ``benchmarks/dispatch.py`` times
them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from fractions import Fraction

import attrs

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import BufferFull, Decision, Granted, Queued
from paddler_trio.scheduler.dispatch.slot_ledger import LedgerStatistics
from paddler_trio.scheduler.dispatch.turn_costs import Charge, TurnCosts


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
    user: str
    place: Place
    """Where it stands; that of another request of its client, while its users take turns."""
    priority: Priority
    charge: Charge
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
    among_users: Place | None = None
    """Where it stands among the users of its client, while several of them wait."""

    @property
    def line(self) -> object:
        """Requests of a client that can stand for each other."""
        return (self.priority, self.needs, self.kind, self.revision, self.was_granted)


def _tag(entry: _Request) -> int:
    return entry.place[0] - entry.priority.value


def _user_tag(entry: _Request) -> int:
    assert entry.among_users is not None
    return entry.among_users[0] - entry.priority.value


@attrs.define
class ReferenceLedger:
    """Slots of all agents and the requests that want one.

    Args:
      max_buffered: how many requests may wait, >= 0. Re-queued ones are never turned away.
      costs: what requests cost their clients, a turn each if nothing else is known.
    """

    max_buffered: int
    costs: TurnCosts = attrs.field(factory=TurnCosts)
    _agents: dict[AgentKey, _Agent] = attrs.field(factory=dict, init=False)
    _requests: dict[RequestKey, _Request] = attrs.field(factory=dict, init=False)
    _waiting: list[Place] = attrs.field(factory=list, init=False)
    _at: dict[Place, RequestKey] = attrs.field(factory=dict, init=False)
    """Who waits there."""
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _users: dict[str, FairOrder] = attrs.field(factory=dict, init=False)
    """Of clients of which several users wait, or did since nothing of the client waited last."""
    _grants: int = attrs.field(default=0, init=False)

    # ------------------------------------------------------------- requests

    def ask(
        self,
        request: RequestKey,
        *,
        client: str = "",
        user: str = "",
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
            displaced = self._displaceable(client, user, priority)
            if displaced is None:
                return BufferFull(request, self.max_buffered)
            self._forget_waiting(displaced)
        is_free = self._free_agent(None, needs, revision) is not None
        charge = Charge() if is_free else self.costs.estimate(request, client)
        place = self._order.place(request, client=client, priority=priority, charge=charge.turns)
        self._requests[request] = entry = _Request(
            client, user, place, priority, charge, needs, revision=revision
        )
        granted = self._grant(request, entry)
        if granted is not None:
            return granted
        return Queued(request, self._wait(request, entry), displaced)

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
        assert not self._waits(entry), f"request {request} waits already"
        entry.kind, entry.revision = kind, revision
        granted = self._grant(request, entry)
        if granted is not None:
            return granted  # no earlier request may have this slot, or it would not be free
        return Queued(request, self._wait(request, entry))

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
        if entry.agent is None and self._waits(entry):
            self._forget_waiting(request)
            return self._grant_waiting()
        if entry.agent is not None:
            more = self.costs.ended(entry.charge, entry.client)
            if more:
                self._charge_more(entry, more)
            del self._agents[entry.agent].holders[request]
        del self._requests[request]
        return self._grant_waiting()

    def position(self, request: RequestKey) -> int | None:
        """How many stand before this request; None if it does not wait."""
        entry = self._requests.get(request)
        if entry is None or not self._waits(entry):
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
        waiting = list(self._in_queue())
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

    def _waits(self, entry: _Request) -> bool:
        return entry.agent is None and entry.place in self._at

    def _in_queue(self) -> Iterator[tuple[RequestKey, _Request]]:
        """All that wait, in order."""
        for place in self._waiting:
            key = self._at[place]
            yield key, self._requests[key]

    def _wait(self, request: RequestKey, entry: _Request) -> int:
        """It waits; how many stand before it."""
        others = [(key, e) for key, e in self._in_queue() if e.client == entry.client]
        insort(self._waiting, entry.place)
        self._at[entry.place] = request
        users = self._users.get(entry.client)
        if users is None and any(other.user != entry.user for _, other in others):
            users = self._users[entry.client] = FairOrder()
            both = [*others, (request, entry)]
            for key, each in sorted(both, key=lambda e: (_tag(e[1]), e[1].place[1])):
                each.among_users = self._among(users, key, each)
        elif users is not None:
            entry.among_users = self._among(users, request, entry)
        self._give_out_places(entry.client)
        return self._waiting.index(entry.place)

    def _among(self, users: FairOrder, request: RequestKey, entry: _Request) -> Place:
        if entry.was_granted:
            return users.due(request, entry.priority)
        return users.place(
            request, client=entry.user, priority=entry.priority, charge=entry.charge.turns
        )

    def _give_out_places(self, client: str) -> None:
        """In each line, the first place to the first in the order of the users."""
        if client not in self._users:
            return
        own = [(key, entry) for key, entry in self._in_queue() if entry.client == client]
        for line in {entry.line for _, entry in own}:
            entries = [(key, entry) for key, entry in own if entry.line == line]
            places = sorted(entry.place for _, entry in entries)
            entries.sort(key=lambda each: each[1].among_users or (0, RequestKey(0)))
            for (key, entry), place in zip(entries, places, strict=True):
                entry.place = place
                self._at[place] = key

    def _displaceable(self, client: str, user: str, priority: Priority) -> RequestKey | None:
        """The last in the queue of the client with the most waiting requests, if these are at least
        two more than ``client`` has, and its class is not above ``priority``. If there is none, the
        same between the users of ``client``."""
        waiting = [(key, entry) for key, entry in self._in_queue() if not entry.was_granted]
        of_clients = [(entry.client, key) for key, entry in waiting]
        found = self._last_of_most(of_clients, client, priority)
        if found is not None:
            return found
        own = [(key, entry) for key, entry in waiting if entry.client == client]
        own.sort(key=lambda each: each[1].among_users or each[1].place)
        return self._last_of_most([(entry.user, key) for key, entry in own], user, priority)

    def _last_of_most(
        self, waiting: list[tuple[str, RequestKey]], name: str, priority: Priority
    ) -> RequestKey | None:
        flows: dict[str, list[RequestKey]] = {}
        for each, key in waiting:
            flows.setdefault(each, []).append(key)
        own = len(flows.get(name, ()))
        for keys in sorted(flows.values(), key=len, reverse=True):
            if len(keys) < own + 2:
                return None
            if self._requests[keys[-1]].priority.value >= priority.value:
                return keys[-1]
        return None

    def _leave_queue(self, entry: _Request) -> None:
        self._waiting.remove(entry.place)
        del self._at[entry.place]
        if not any(other.client == entry.client for _, other in self._in_queue()):
            self._users.pop(entry.client, None)

    def _forget_waiting(self, request: RequestKey) -> None:
        entry = self._requests[request]
        self._leave_queue(entry)
        del self._requests[request]
        others, charge = self._others_of(entry.client), entry.charge.turns
        last = max(map(_tag, others), default=None)
        self._order.gave_up(entry.client, _tag(entry), last, charge=charge)
        if entry.client in self._users and entry.among_users is not None:
            turns = [_user_tag(other) for other in others if other.user == entry.user]
            self._users[entry.client].gave_up(
                entry.user, _user_tag(entry), max(turns, default=None), charge=charge
            )

    def _charge_more(self, entry: _Request, turns: float) -> None:
        others = self._others_of(entry.client)
        self._order.correct(entry.client, turns, max(map(_tag, others), default=None))
        if entry.client in self._users:
            own = [_user_tag(other) for other in others if other.user == entry.user]
            self._users[entry.client].correct(entry.user, turns, max(own, default=None))

    def _others_of(self, client: str) -> list[_Request]:
        return [other for _, other in self._in_queue() if other.client == client]

    def _grant_waiting(self) -> list[Granted]:
        """Grant slots in the order of the places, while any is free."""
        grants: list[Granted] = []
        hopeless: set[RequestKey] = set()
        while True:
            left = ((key, entry) for key, entry in self._in_queue() if key not in hopeless)
            first = next(left, None)
            if first is None:
                return grants
            request, entry = first
            granted = self._grant(request, entry)
            if granted is not None:
                self._leave_queue(entry)
                if entry.client in self._users and entry.among_users is not None:
                    self._users[entry.client].granted(entry.among_users, entry.priority)
                grants.append(granted)
            elif entry.kind is not None or entry.needs or entry.revision is not None:
                hopeless.add(request)  # others may have what this one may not
            else:
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
        entry.charge.since_s = self.costs.now_s()
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
