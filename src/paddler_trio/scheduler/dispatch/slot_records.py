"""The records that the ledger of slots keeps of agents and of requests."""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.dispatch.agent_index import ANY, AgentClass, Constraint
from paddler_trio.scheduler.dispatch.fair_order import Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.turn_costs import Charge


@attrs.define
class AgentSlots:
    """An agent that has joined."""

    serves: AgentClass = attrs.field(factory=AgentClass)
    next_revision: str | None = None
    slots_total: int = 0
    is_accepting: bool = False
    holders: dict[RequestKey, None] = attrs.field(factory=dict)
    """The requests in the order the slots were granted (a dict is an ordered set)."""
    last_chosen: int = 0

    def standing(self, wanted: Constraint) -> tuple[float, int, bool] | None:
        """Return how it stands for a request, see ``warm_placement.Standing``."""
        if not self.is_accepting or self.slots_total <= 0:
            return None
        if wanted is not ANY and not wanted.admits(self.serves):
            return None
        busy = len(self.holders)
        return busy / self.slots_total, self.last_chosen, busy < self.slots_total


@attrs.define
class LedgerEntry:
    """A request that waits or holds a slot."""

    client: str
    user: str
    place: Place
    priority: Priority
    wanted: Constraint
    charge: Charge
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
