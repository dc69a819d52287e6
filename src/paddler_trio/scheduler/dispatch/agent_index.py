"""Agents by what requests can ask for, the least loaded of each class first.

A grant looks at classes, not at agents: all agents that serve one revision of one model are one
class, so a pool has one of them, or two while a rollout is under way. In each class the agents with
a free slot are a heap. What changes is pushed again and the old entry is dropped when it comes up,
so an event costs the same with one agent as with thousands.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.placement import AgentKey, Load

_STALE_ENTRIES: Final = 64
"""A heap with this many more entries than twice its agents is made anew."""


@attrs.frozen(cache_hash=True)
class AgentClass:
    """The facts that requests can ask of an agent.

    Args:
      kind: fingerprint of the model that it serves; None if it reports none.
      revision: digest of the state that it serves.
      offers: what it can do that not all agents can.
    """

    kind: str | None = None
    revision: str | None = None
    offers: frozenset[str] = frozenset()


@attrs.frozen(cache_hash=True)
class Constraint:
    """The wishes of a request; the default is any agent.

    Args:
      kind, revision: the only ones that may have it; None for any.
      needs: only agents that offer all of these may have it.
      agent: the only one that it waits for, for a moment; None for any.
    """

    kind: str | None = None
    revision: str | None = None
    needs: frozenset[str] = frozenset()
    agent: AgentKey | None = None

    def admits(self, agents: AgentClass) -> bool:
        return (
            (self.kind is None or agents.kind == self.kind)
            and (self.revision is None or agents.revision == self.revision)
            and self.needs <= agents.offers
        )

    @property
    def admits_any_model(self) -> bool:
        return self.kind is None and self.revision is None


ANY: Final = Constraint()


@attrs.define
class _Members:
    """The agents of a class."""

    count: int = 0
    free: dict[AgentKey, Load] = attrs.field(factory=dict)
    """Those with a free slot."""
    heap: list[Load] = attrs.field(factory=list)
    """The loads of ``free``, and entries that are not true any more."""

    def put(self, load: Load) -> None:
        if self.free.get(load[2]) == load:
            return
        self.free[load[2]] = load
        heappush(self.heap, load)
        if len(self.heap) > 2 * len(self.free) + _STALE_ENTRIES:
            self.heap = list(self.free.values())
            heapify(self.heap)

    def least(self) -> Load | None:
        heap, free = self.heap, self.free
        while heap:
            load = heap[0]
            if free.get(load[2]) is load:
                return load
            heappop(heap)
        return None


@attrs.define
class AgentIndex:
    """See the module docstring. It keeps the agents' classes and loads, not their requests."""

    _members: dict[AgentClass, _Members] = attrs.field(factory=dict, init=False)

    def join(self, agents: AgentClass) -> None:
        """Count one agent more of this class."""
        self._members.setdefault(agents, _Members()).count += 1

    def leave(self, agents: AgentClass, agent: AgentKey) -> None:
        """Count this agent no more in this class."""
        members = self._members[agents]
        members.count -= 1
        members.free.pop(agent, None)
        if not members.count:
            del self._members[agents]

    def put(self, agents: AgentClass, load: Load) -> None:
        """Note that the agent has a free slot, and this load."""
        self._members[agents].put(load)

    def take_out(self, agents: AgentClass, agent: AgentKey) -> None:
        """Note that the agent has no free slot, or takes no work."""
        self._members[agents].free.pop(agent, None)

    def least_loaded(self, wanted: Constraint) -> AgentKey | None:
        """Return the agent that should take one more such request; None when none has a free
        slot."""
        if wanted.agent is not None:
            return wanted.agent if self.load(wanted, wanted.agent) is not None else None
        loads = [
            load
            for agents, members in self._members.items()
            if members.free and wanted.admits(agents) and (load := members.least()) is not None
        ]
        return min(loads)[2] if loads else None

    def load(self, wanted: Constraint, agent: AgentKey) -> Load | None:
        """Return the load of an agent that has a free slot for such a request; None for others."""
        for agents, members in self._members.items():
            if agent in members.free and wanted.admits(agents):
                return members.free[agent]
        return None

    def num_free(self, wanted: Constraint) -> int:
        """Return how many agents have a free slot for such a request."""
        return sum(
            len(members.free) for agents, members in self._members.items() if wanted.admits(agents)
        )

    def classes(self) -> Iterator[AgentClass]:
        """Yield the classes of the agents that there are, with free slots or without."""
        return iter(self._members)
