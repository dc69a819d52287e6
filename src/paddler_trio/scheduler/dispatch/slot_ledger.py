"""Decide which request holds which slot, which ones wait, and which are turned away.

The ledger is the only place where slots and the request buffer are counted. It is synchronous:
with no ``await`` between reading and changing there is no race, hence no lock. Every method that
can free capacity returns the grants this made possible, in order; the caller wakes exactly those
requests.

Invariants (``tests/unit/scheduler/dispatch`` checks them after every step of a random walk):

* an agent never holds more requests than the slots it reported when the last one was granted;
* no slot of an accepting agent idles while a request that may have it waits, but for one that lets
  it pass for a certain agent's, once and for a moment (``warm_placement.py``);
* requests are granted in the order of their places (``fair_order``), which for one client and one
  class is the order of arrival; a re-queued request keeps its place. Only one that not every agent
  may have (a continuation wants its kind, a part of a call its revision, others need what only some
  offer) may be passed by, and only for agents that may not have it; or one that lets slots pass;
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
from functools import partial

import attrs

from paddler_trio.scheduler.dispatch.agent_index import ANY, AgentClass, AgentIndex, Constraint
from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey, load_of
from paddler_trio.scheduler.dispatch.slot_decisions import (
    BufferFull,
    Choice,
    Decision,
    Granted,
    Pick,
    Queued,
)
from paddler_trio.scheduler.dispatch.slot_holds import SlotHolds
from paddler_trio.scheduler.dispatch.slot_records import AgentSlots, LedgerEntry, LedgerStatistics
from paddler_trio.scheduler.dispatch.turn_costs import Charge, TurnCosts
from paddler_trio.scheduler.dispatch.wait_queue import Waiting, WaitQueue
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement

__all__ = ["LedgerStatistics", "Priority", "RequestKey", "SlotLedger"]


@attrs.define
class SlotLedger:
    """Slots of all agents and the requests that want one.

    Args:
      max_buffered: how many requests may wait, >= 0. Re-queued ones are never turned away.
      placement: chooses among agents with free slots; without it the least loaded is chosen.
      costs: what requests cost their clients; without a placement a turn each.
    """

    max_buffered: int
    placement: WarmPlacement | None = None
    costs: TurnCosts = attrs.field()
    holds: SlotHolds = attrs.field(init=False)
    _agents: dict[AgentKey, AgentSlots] = attrs.field(factory=dict, init=False)
    _requests: dict[RequestKey, LedgerEntry] = attrs.field(factory=dict, init=False)
    _index: AgentIndex = attrs.field(factory=AgentIndex, init=False)
    _queue: WaitQueue = attrs.field(factory=WaitQueue, init=False)
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _next_revisions: Counter[str | None] = attrs.field(factory=Counter, init=False)
    """The revisions that agents are to serve, and how many of them."""
    _grants: int = attrs.field(default=0, init=False)
    _slots_processing: int = attrs.field(default=0, init=False)
    _slots_total: int = attrs.field(default=0, init=False)

    @costs.default
    def _measured(self) -> TurnCosts:
        known = self.placement
        return TurnCosts() if known is None else TurnCosts(known.now_s, known.prompt_s)

    def __attrs_post_init__(self) -> None:
        self.holds = SlotHolds(self._queue, self.placement)

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
        is_any = revision is None and not needs
        wanted = ANY if is_any else Constraint(revision=revision, needs=needs)
        chosen = self._index.least_loaded(wanted)
        displaced: RequestKey | None = None
        if chosen is None and len(self._queue) >= self.max_buffered:
            displaced = self._queue.displaceable(client, user, priority)
            if displaced is None:
                return BufferFull(request, self.max_buffered)
            self._forget_waiting(displaced)
        charge = Charge() if chosen is not None else self.costs.estimate(request, client)
        place = self._order.place(request, client=client, priority=priority, charge=charge.turns)
        self._requests[request] = entry = LedgerEntry(client, user, place, priority, wanted, charge)
        if chosen is not None:
            waiting = len(self._queue)
            may_wait = waiting < self.max_buffered
            pick = self._pick(request, entry, chosen, waiting if may_wait else None)
            if pick.until_s is None:
                return self._grant(request, entry, pick)
            ahead = self._wait(request, entry)
            self.holds.add(request, pick, pick.until_s, wanted)
            return Queued(request, ahead)
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
            return self._grant(request, entry, self._pick(request, entry, chosen, None))
        return Queued(request, self._wait(request, entry))

    def give_back(self, request: RequestKey) -> list[Granted]:
        """Take back the slot of a request, which and may :meth:`ask_again`."""
        self._release(request, self._requests[request])
        return self.grant_waiting()

    def end(self, request: RequestKey) -> list[Granted]:
        """Note that the request neither waits nor holds a slot any more. Safe to repeat."""
        entry = self._requests.get(request)
        if entry is None:
            return []
        if request in self._queue:
            self._forget_waiting(request)
        else:
            self._charge(entry)
            self._release(request, entry)
            del self._requests[request]
            if self.placement is not None:
                self.placement.ended(request)
        return self.grant_waiting()

    def release_hold(self, request: RequestKey) -> list[Granted]:
        """Let a request that held out for one agent have any slot again. Safe to repeat."""
        return self.grant_waiting() if self.holds.release(request) else []

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
        self._agents[agent] = record = AgentSlots()
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
        if not accepting:
            self.holds.release_all(agent)
        return self.grant_waiting()

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
        if self.placement is not None:
            self.placement.left(agent)
            self.holds.release_all(agent)
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
        return LedgerStatistics(self._slots_processing, self._slots_total, len(self._queue))

    def grant_waiting(self) -> list[Granted]:
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
                held = self.holds.forget(request)
                pick = held or self._pick(request, entry, chosen, len(self._queue) - 1)
                if held is None and pick.until_s is not None:
                    self.holds.add(request, pick, pick.until_s, entry.wanted)
                    continue
                entry.place = self._queue.remove(request, is_granted=True).place
                grants.append(self._grant(request, entry, pick))
            elif first.wanted == ANY:
                break  # nothing is free
            else:
                hopeless.add(first.wanted)
        return grants

    # -------------------------------------------------------------- private

    def _wait(self, request: RequestKey, entry: LedgerEntry) -> int:
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
                charge=entry.charge.turns,
            )
        )

    def _pick(
        self, request: RequestKey, entry: LedgerEntry, least: AgentKey, waiting: int | None
    ) -> Pick:
        if self.placement is None:
            return Pick(least)
        standing = partial(self._standing, entry.wanted)
        return self.placement.choose(request, least, standing, waiting=waiting)

    def _standing(self, wanted: Constraint, key: AgentKey) -> tuple[float, int, bool] | None:
        return self._agents[key].standing(wanted) if key in self._agents else None

    def _forget_waiting(self, request: RequestKey) -> None:
        self.holds.forget(request)
        if self.placement is not None:
            self.placement.ended(request)
        left = self._queue.remove(request, is_granted=False)
        del self._requests[request]
        last = self._queue.last_turn(left.client)
        self._order.gave_up(left.client, left.turn[0], last, charge=left.charge)

    def _grant(self, request: RequestKey, entry: LedgerEntry, pick: Pick) -> Granted:
        self._grants += 1
        agent = self._agents[pick.agent]
        choice = Choice(
            self._index.num_free(entry.wanted),
            len(agent.holders),
            agent.slots_total,
            entry.wanted,
            pick.prediction,
            held=pick.until_s is not None,
        )
        agent.last_chosen = self._grants
        agent.holders[request] = None
        self._slots_processing += 1
        self._place(pick.agent, agent)
        entry.agent = pick.agent
        entry.was_granted = True
        self._order.granted(entry.place, entry.priority)
        entry.charge.since_s = self.costs.now_s()
        if self.placement is not None:
            self.placement.granted(request, pick.agent)
        return Granted(request, pick.agent, choice)

    def _charge(self, entry: LedgerEntry) -> None:
        """Charge what a request that ends cost beyond the estimate, if it has a slot."""
        more = 0.0 if entry.agent is None else self.costs.ended(entry.charge, entry.client)
        if more:
            self._order.correct(entry.client, more, self._queue.last_turn(entry.client))
            self._queue.correct(entry.client, entry.user, more)

    def _release(self, request: RequestKey, entry: LedgerEntry) -> None:
        if entry.agent is None:
            return
        agent = self._agents[entry.agent]
        del agent.holders[request]
        self._slots_processing -= 1
        self._place(entry.agent, agent)
        if self.placement is not None:
            self.placement.released(request, entry.agent)
        entry.agent = None

    def _place(self, key: AgentKey, agent: AgentSlots) -> None:
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

    def _forget_revision(self, agent: AgentSlots) -> None:
        self._next_revisions[agent.next_revision] -= 1
        if not self._next_revisions[agent.next_revision]:
            del self._next_revisions[agent.next_revision]
