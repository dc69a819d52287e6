"""Decide which request holds which slot, which ones wait, and which are turned away.

The ledger is the only place where slots and the request buffer are counted. It is synchronous:
with no ``await`` between reading and changing there is no race, hence no lock. Every method that
can free capacity returns the grants this made possible, in order; the caller wakes exactly those
requests.

Invariants (``tests/unit/scheduler/dispatch`` checks them after every step of a random walk):

* an agent never holds more requests than the slots it reported when the last one was granted;
* no slot of an accepting agent idles while a request that may have it waits;
* requests are granted in the order of their places (``fair_order``), which for one client and one
  class is the order of arrival; a re-queued request keeps its place. Only one that not every agent
  may have (a continuation wants its kind, a part of a call its revision, others need what only some
  offer) may be passed by, and only for agents that may not have it;
* the users of one client share its turns in the same way, and no client gets more by naming many;
* no client keeps others out of a full buffer: while another has fewer requests waiting, its last
  one makes room; so it is between the users of one client. A re-queued request never does;
* a request is unknown, waiting, or holding exactly one slot, never two of these.

No event looks at all agents or at all that wait, so it costs the same with 5,000 agents and 100,000
waiting as with one (``benchmarks/dispatch.py``). ``reference_ledger.py`` beside the tests is the
same in few words: it looks at everything, and decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import attrs

from paddler_trio.scheduler.dispatch.agent_index import ANY, AgentClass, AgentIndex, Constraint
from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey, load_of
from paddler_trio.scheduler.dispatch.slot_decisions import (
    BufferFull,
    Choice,
    Decision,
    Granted,
    Queued,
)
from paddler_trio.scheduler.dispatch.wait_queue import Waiting, WaitQueue

__all__ = ["LedgerStatistics", "Priority", "RequestKey", "SlotLedger"]


@attrs.define
class _Agent:
    serves: AgentClass = attrs.field(factory=AgentClass)
    next_revision: str | None = None
    slots_total: int = 0
    is_accepting: bool = False
    holders: dict[RequestKey, None] = attrs.field(factory=dict)
    """The requests in the order the slots were granted (a dict is an ordered set)."""
    last_chosen: int = 0


@attrs.define
class _Request:
    client: str
    user: str
    place: Place
    priority: Priority
    wanted: Constraint
    agent: AgentKey | None = None
    """The agent whose slot it holds; None while it waits."""
    was_granted: bool = False
    """It had a slot before: it is never turned away any more."""


@attrs.frozen
class LedgerStatistics:
    """A consistent count of everything at one moment."""

    slots_processing: int
    slots_total: int
    requests_buffered: int


@attrs.define
class SlotLedger:
    """Slots of all agents and the requests that want one.

    Args:
      max_buffered: how many requests may wait, >= 0. Re-queued ones are never turned away.
    """

    max_buffered: int
    _agents: dict[AgentKey, _Agent] = attrs.field(factory=dict, init=False)
    _requests: dict[RequestKey, _Request] = attrs.field(factory=dict, init=False)
    _index: AgentIndex = attrs.field(factory=AgentIndex, init=False)
    _queue: WaitQueue = attrs.field(factory=WaitQueue, init=False)
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _next_revisions: Counter[str | None] = attrs.field(factory=Counter, init=False)
    """The revisions that agents are to serve, and how many of them."""
    _grants: int = attrs.field(default=0, init=False)
    _slots_processing: int = attrs.field(default=0, init=False)
    _slots_total: int = attrs.field(default=0, init=False)

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
        """Answer a new request that wants a slot of an agent that offers what it ``needs``, and
        serves ``revision`` if that is given. If one is free, no request that waits may have it."""
        assert request not in self._requests, f"request {request} asks twice"
        wanted = Constraint(revision=revision, needs=needs)
        chosen = self._index.least_loaded(wanted)
        displaced: RequestKey | None = None
        if chosen is None and len(self._queue) >= self.max_buffered:
            displaced = self._queue.displaceable(client, user, priority)
            if displaced is None:
                return BufferFull(request, self.max_buffered)
            self._forget_waiting(displaced)
        place = self._order.place(request, client=client, priority=priority)
        self._requests[request] = entry = _Request(client, user, place, priority, wanted)
        if chosen is not None:
            return self._grant(request, entry, chosen)
        return Queued(request, self._wait(request, entry), displaced)

    def ask_again(
        self,
        request: RequestKey,
        *,
        kind: str | None = None,
        needs: frozenset[str] = frozenset(),
        revision: str | None = None,
    ) -> Granted | Queued:
        """Answer a request whose agent left and that wants another slot; it has its old place
        again.

        With ``kind`` or ``revision``, only an agent of that kind or revision may have it; ``needs``
        join those it had.
        """
        entry = self._requests[request]
        assert entry.agent is None, f"request {request} holds a slot"
        assert request not in self._queue, f"request {request} waits already"
        entry.wanted = Constraint(kind, revision, entry.wanted.needs | needs)
        chosen = self._index.least_loaded(entry.wanted)
        if chosen is not None:  # no earlier request may have this slot, or it would not be free
            return self._grant(request, entry, chosen)
        return Queued(request, self._wait(request, entry))

    def give_back(self, request: RequestKey) -> list[Granted]:
        """Take back the slot of a request, which and may :meth:`ask_again`."""
        self._release(request, self._requests[request])
        return self._grant_waiting()

    def end(self, request: RequestKey) -> list[Granted]:
        """Note that the request neither waits nor holds a slot any more. Safe to repeat."""
        entry = self._requests.get(request)
        if entry is None:
            return []
        if request in self._queue:
            self._forget_waiting(request)
        else:
            self._release(request, entry)
            del self._requests[request]
        return self._grant_waiting()

    def position(self, request: RequestKey) -> int | None:
        """Return how many stand before this request; None if it does not wait."""
        return self._queue.position(request)

    def is_hopeless(self, needs: frozenset[str]) -> bool:
        """Return whether there are agents, and none of them offers all of this, however long one
        waits."""
        return bool(self._agents) and not any(
            needs <= agents.offers for agents in self._index.classes()
        )

    def stranded(self) -> list[RequestKey]:
        """Return waiting requests that no agent here can serve, now or later: continuations of
        another kind, and those of a revision that is neither served nor about to be. An agent that
        only loads keeps its kind; of one that offers what continuations need and has served nothing
        yet the kind is not known."""
        wanted = [each for each in self._queue.wanted() if not each.admits_any_model]
        if not wanted:
            return []
        classes = list(self._index.classes())
        kinds = {agents.kind for agents in classes if agents.offers or agents.kind}
        revisions = {agents.revision for agents in classes} | self._next_revisions.keys()
        return self.in_order(
            key
            for each in wanted
            if (each.kind is not None and None not in kinds and each.kind not in kinds)
            or (each.revision is not None and each.revision not in revisions)
            for key in self._queue.that_want(each)
        )

    # --------------------------------------------------------------- agents

    def join(self, agent: AgentKey) -> None:
        """Add a registered agent, which does not accept until :meth:`update`."""
        assert agent not in self._agents, f"agent {agent} joined twice"
        self._agents[agent] = record = _Agent()
        self._index.join(record.serves)
        self._next_revisions[None] += 1

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
        """Apply the agent's newest report of its slots; the total may shrink below what it holds.

        ``revision`` is what it serves, ``next_revision`` what it is to serve.
        """
        record = self._agents[agent]
        serves = AgentClass(kind, revision, offers)
        if serves != record.serves:
            self._index.leave(record.serves, agent)
            self._index.join(serves)
            record.serves = serves
        if next_revision != record.next_revision:
            self._forget_revision(record)
            self._next_revisions[next_revision] += 1
            record.next_revision = next_revision
        self._slots_total += max(0, slots_total) - record.slots_total
        record.slots_total = max(0, slots_total)
        record.is_accepting = accepting
        self._place(agent, record)
        return self._grant_waiting()

    def leave(self, agent: AgentKey) -> list[RequestKey]:
        """Remove an agent that is gone with all its slots, in one step.

        Returns:
          The requests that held its slots, in the order they were granted; they hold nothing now
          and either ask again or end.
        """
        record = self._agents.pop(agent)
        self._index.leave(record.serves, agent)
        self._forget_revision(record)
        self._slots_total -= record.slots_total
        self._slots_processing -= len(record.holders)
        for request in record.holders:
            self._requests[request].agent = None
        return list(record.holders)

    def in_order(self, requests: Iterable[RequestKey]) -> list[RequestKey]:
        """Return these requests, sorted by their places."""
        return sorted(requests, key=lambda key: self._queue.place(key) or self._requests[key].place)

    def slots_processing(self, agent: AgentKey) -> int:
        """Return how many requests hold a slot of this agent."""
        return len(self._agents[agent].holders)

    @property
    def num_waiting(self) -> int:
        """Requests that want a slot and have none."""
        return len(self._queue)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            slots_processing=self._slots_processing,
            slots_total=self._slots_total,
            requests_buffered=len(self._queue),
        )

    # -------------------------------------------------------------- private

    def _wait(self, request: RequestKey, entry: _Request) -> int:
        """Let the request wait; return how many stand before it."""
        return self._queue.add(
            Waiting(
                request,
                entry.client,
                entry.user,
                entry.place,
                entry.priority,
                entry.wanted,
                can_be_displaced=not entry.was_granted,
            )
        )

    def _forget_waiting(self, request: RequestKey) -> None:
        client = self._queue.remove(request, is_granted=False).client
        del self._requests[request]
        self._order.gave_up(client, self._queue.last_turn(client))

    def _grant_waiting(self) -> list[Granted]:
        """Grant slots in the order of the places, while any is free.

        What cannot be granted to the first of those that ask for the same cannot be granted to the
        others, and no grant frees a slot: such a group is out for good.
        """
        grants: list[Granted] = []
        hopeless: set[Constraint] = set()
        while (first := self._queue.first(hopeless)) is not None:
            chosen = self._index.least_loaded(first.wanted)
            if chosen is not None:
                request = first.key
                entry = self._requests[request]
                entry.place = self._queue.remove(request, is_granted=True).place
                grants.append(self._grant(request, entry, chosen))
            elif first.wanted == ANY:
                break  # nothing is free
            else:
                hopeless.add(first.wanted)
        return grants

    def _grant(self, request: RequestKey, entry: _Request, chosen: AgentKey) -> Granted:
        self._grants += 1
        agent = self._agents[chosen]
        choice = Choice(
            self._index.num_free(entry.wanted), len(agent.holders), agent.slots_total, entry.wanted
        )
        agent.last_chosen = self._grants
        agent.holders[request] = None
        self._slots_processing += 1
        self._place(chosen, agent)
        entry.agent = chosen
        entry.was_granted = True
        self._order.granted(entry.place, entry.priority)
        return Granted(request, chosen, choice)

    def _release(self, request: RequestKey, entry: _Request) -> None:
        if entry.agent is None:
            return
        agent = self._agents[entry.agent]
        del agent.holders[request]
        self._slots_processing -= 1
        self._place(entry.agent, agent)
        entry.agent = None

    def _place(self, key: AgentKey, agent: _Agent) -> None:
        """Place an agent anew: its slots, its load or its readiness has changed."""
        load = load_of(
            key,
            slots_busy=len(agent.holders),
            slots_total=agent.slots_total,
            last_chosen=agent.last_chosen,
        )
        if agent.is_accepting and load is not None:
            self._index.put(agent.serves, load)
        else:
            self._index.take_out(agent.serves, key)

    def _forget_revision(self, agent: _Agent) -> None:
        self._next_revisions[agent.next_revision] -= 1
        if not self._next_revisions[agent.next_revision]:
            del self._next_revisions[agent.next_revision]
