"""The agents that are connected, which of them an operator has drained, and who follows them."""

from __future__ import annotations

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.synchronization import ChangedItems


class Agents(dict[AgentKey, AgentConnection]):
    """See the module docstring; by the keys of their connections."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[str] = set()
        self._drained: set[str] = set()
        self._followers: list[ChangedItems[AgentConnection]] = []

    def add(self, agent: AgentConnection) -> None:
        """An agent has registered."""
        self[agent.key] = agent
        self._ids.add(agent.id)
        agent.is_drained = self._is_drained(agent)

    def remove(self, agent: AgentConnection) -> bool:
        """Forget a connection; False if it was not here."""
        if self.pop(agent.key, None) is None:
            return False
        self._ids.discard(agent.id)
        return True

    def is_here(self, agent_id: str) -> bool:
        """Return whether an agent with this id has joined and not left."""
        return agent_id in self._ids

    def set_drained(self, agent: AgentConnection, *, drained: bool) -> list[AgentConnection]:
        """Remember, across its reconnects, whether an agent is drained; the first link of a host
        stands for all instances on it. Returns those that this concerns."""
        if drained:
            self._drained.add(agent.id)
        else:
            self._drained.discard(agent.id)
        concerned = [each for each in self.values() if agent.id in (each.id, each.host)]
        for each in concerned:
            each.is_drained = self._is_drained(each)
        return concerned

    def _is_drained(self, agent: AgentConnection) -> bool:
        return agent.id in self._drained or agent.host in self._drained

    @property
    def all_slots_are_drained(self) -> bool:
        """Agents have slots, and an operator has drained every one of these agents."""
        having = [agent for agent in self.values() if agent.status.slots_total > 0]
        return bool(having) and all(agent.is_drained for agent in having)

    def with_models(self) -> list[AgentConnection]:
        """Return those that load what is desired, and do not stand in front of a server."""
        return [agent for agent in self.values() if not agent.kind.forwards]

    def changed(self) -> ChangedItems[AgentConnection]:
        """Return the agents that change from now on, to be taken by one reader, which lives as long
        as the dispatcher. Those that are here have changed at first."""
        changed: ChangedItems[AgentConnection] = ChangedItems()
        for agent in self.values():
            changed.note(agent)
        self._followers.append(changed)
        return changed

    def note_changed(self, agent: AgentConnection) -> None:
        """An agent came or left, or reports something else."""
        for each in self._followers:
            each.note(agent)
