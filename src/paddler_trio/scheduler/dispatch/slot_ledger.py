"""Who holds which slot, who waits, and who is turned away.

The ledger is the only place where slots and the request buffer are counted. It is synchronous:
with no ``await`` between reading and changing there is no race, hence no lock. Every method that
can free capacity returns the grants this made possible, in arrival order; the shell wakes exactly
those requests and nobody else.

Invariants (``tests/unit/dispatch`` checks them after every step of a random walk):

* an agent never holds more requests than the slots it reported when the last one was granted;
* no slot of an accepting agent idles while a request that may have it waits;
* requests are granted in arrival order; a re-queued request keeps its place. Only one that must
  have an agent of a certain kind (a continuation) may be passed by, and only for other kinds;
* a request is unknown, waiting, or holding exactly one slot, never two of these.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NewType, TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.placement import AgentKey, AgentLoad, least_loaded

RequestKey = NewType("RequestKey", int)
"""A request's arrival number: smaller means earlier, and it is never used again."""


@attrs.frozen
class Granted:
    """The request holds a slot of ``agent`` until it is released."""

    request: RequestKey
    agent: AgentKey


@attrs.frozen
class Buffered:
    """No slot is free; the request waits behind ``ahead`` others."""

    request: RequestKey
    ahead: int


@attrs.frozen
class BufferFull:
    """No slot is free and ``limit`` requests wait already; the request is not remembered."""

    request: RequestKey
    limit: int


Decision: TypeAlias = Granted | Buffered | BufferFull


@attrs.define
class _Agent:
    slots_total: int
    accepting: bool
    kind: str | None
    holders: dict[RequestKey, None] = attrs.field(factory=dict)
    """In the order the slots were granted (a dict is an ordered set)."""
    last_chosen: int = 0


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
    _holding: dict[RequestKey, AgentKey] = attrs.field(factory=dict, init=False)
    _waiting: list[RequestKey] = attrs.field(factory=list, init=False)
    _needs: dict[RequestKey, str] = attrs.field(factory=dict, init=False)
    """Waiting requests that only an agent of this kind may have."""
    _grants: int = attrs.field(default=0, init=False)

    # ------------------------------------------------------------- requests

    def ask(self, request: RequestKey) -> Decision:
        """A new request wants a slot. Nobody overtakes: who waits and may have it comes first."""
        self._must_be_new(request)
        if (granted := self._grant(request)) is not None:
            return granted  # nobody who waits may have this slot, or it would not be free
        if len(self._waiting) >= self.max_buffered:
            return BufferFull(request, self.max_buffered)
        insort(self._waiting, request)
        return Buffered(request, bisect_left(self._waiting, request))

    def ask_again(self, request: RequestKey, *, kind: str | None = None) -> Granted | Buffered:
        """A request that lost its slot wants another; it waits at its arrival place, always.

        With ``kind``, only an agent of that kind may have it.
        """
        self._must_be_new(request)
        insort(self._waiting, request)
        if kind is not None:
            self._needs[request] = kind
        for grant in self._settle():
            assert grant.request == request, "a slot idled while somebody waited"
            return grant
        return Buffered(request, bisect_left(self._waiting, request))

    def end(self, request: RequestKey) -> list[Granted]:
        """The request neither waits nor holds a slot any more. Safe to say twice."""
        agent = self._holding.pop(request, None)
        if agent is not None:
            del self._agents[agent].holders[request]
        else:
            place = bisect_left(self._waiting, request)
            if place < len(self._waiting) and self._waiting[place] == request:
                del self._waiting[place]
                self._needs.pop(request, None)
        return self._settle()

    def position(self, request: RequestKey) -> int | None:
        """How many wait before this request; None if it does not wait."""
        place = bisect_left(self._waiting, request)
        if place < len(self._waiting) and self._waiting[place] == request:
            return place
        return None

    # --------------------------------------------------------------- agents

    def join(self, agent: AgentKey) -> None:
        """A registered agent, not accepting until :meth:`update` says so."""
        assert agent not in self._agents, f"agent {agent} joined twice"
        self._agents[agent] = _Agent(slots_total=0, accepting=False, kind=None)

    def update(
        self, agent: AgentKey, *, slots_total: int, accepting: bool, kind: str | None = None
    ) -> list[Granted]:
        """The agent's newest word on its slots; the total may shrink below what it holds."""
        record = self._agents[agent]
        record.kind = kind
        record.slots_total = max(0, slots_total)
        record.accepting = accepting
        return self._settle()

    def leave(self, agent: AgentKey) -> list[RequestKey]:
        """The agent is gone with all its slots, in one step.

        Returns:
          The requests that held its slots, in the order they were granted; they hold nothing now.
        """
        lost = list(self._agents.pop(agent).holders)
        for request in lost:
            del self._holding[request]
        return lost

    def slots_processing(self, agent: AgentKey) -> int:
        """How many requests hold a slot of this agent."""
        return len(self._agents[agent].holders)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            slots_processing=len(self._holding),
            slots_total=sum(agent.slots_total for agent in self._agents.values()),
            requests_buffered=len(self._waiting),
        )

    # -------------------------------------------------------------- private

    def _must_be_new(self, request: RequestKey) -> None:
        assert request not in self._holding, f"request {request} holds a slot already"
        assert self.position(request) is None, f"request {request} waits already"

    def _settle(self) -> list[Granted]:
        """Grant slots to waiting requests, first come first served, while any is free."""
        grants: list[Granted] = []
        passed_by = 0
        while passed_by < len(self._waiting):
            request = self._waiting[passed_by]
            granted = self._grant(request)
            if granted is not None:
                del self._waiting[passed_by]
                self._needs.pop(request, None)
                grants.append(granted)
            elif request in self._needs:
                passed_by += 1  # others may have what this one may not
            else:
                break
        return grants

    def stranded(self) -> list[RequestKey]:
        """Waiting continuations that no agent here can ever serve, while others do serve.

        With no agent serving at all they wait: theirs may come back.
        """
        kinds = {agent.kind for agent in self._agents.values()}
        if not any(agent.accepting and agent.slots_total > 0 for agent in self._agents.values()):
            return []
        return [request for request, kind in self._needs.items() if kind not in kinds]

    def _grant(self, request: RequestKey) -> Granted | None:
        kind = self._needs.get(request)
        chosen = least_loaded(
            AgentLoad(key, len(agent.holders), agent.slots_total, agent.last_chosen)
            for key, agent in self._agents.items()
            if agent.accepting and (kind is None or agent.kind == kind)
        )
        if chosen is None:
            return None
        self._grants += 1
        agent = self._agents[chosen]
        agent.last_chosen = self._grants
        agent.holders[request] = None
        self._holding[request] = chosen
        return Granted(request, chosen)
