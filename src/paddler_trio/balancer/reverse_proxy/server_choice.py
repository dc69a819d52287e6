"""Choose which server a request must go to, or had better go to, if it may not go to any.

A client may name an agent; a request that names a slot of llama-server goes to the same server
whenever the same client names it, as long as the same servers are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from paddler_trio.balancer.reverse_proxy.prefix_affinity import MAX_LEAD
from paddler_trio.nursery_tree.agent_connection import AgentConnection


def named(agents: Iterable[AgentConnection], name: str) -> AgentConnection | None:
    """Return the agent of this name or id."""
    for agent in agents:
        if name in (agent.label, agent.id):
            return agent
    return None


def home_of_slot(
    agents: Iterable[AgentConnection], client: str, slot: int
) -> AgentConnection | None:
    """Return the agent that this client means by the slot of this number: by rendezvous hashing, so
    that one that comes or leaves moves few of them. None if there is none."""

    def weight(agent: AgentConnection) -> bytes:
        text = f"{agent.label}\0{client}\0{slot}".encode()
        return hashlib.blake2s(text, digest_size=8).digest()

    return max(agents, key=weight, default=None)


def preferred(agents: Iterable[AgentConnection], agent_id: str | None) -> AgentConnection | None:
    """Return the agent of this id, if it has a free slot and is not much busier than the others."""
    ready = [each for each in agents if each.is_accepting and each.usable_slots]
    home = next((each for each in ready if each.id == agent_id), None)
    if home is None or home.slots_processing >= home.usable_slots:
        return None
    return home if _load(home) - min(map(_load, ready)) <= MAX_LEAD else None


def _load(agent: AgentConnection) -> float:
    return agent.slots_processing / max(1, agent.usable_slots)


def least_busy(agents: Iterable[AgentConnection]) -> AgentConnection | None:
    """Return the least busy of those that get work, for a request that takes no slot; None if none
    does."""
    ready = [agent for agent in agents if agent.is_accepting]
    return min(ready, key=_load, default=None)
