"""Compare agents by their relative load: the one with the least gets the next request.

Relative (busy / total), not absolute as in Paddler 4.1: a 16-slot agent with four requests is
less loaded than a 4-slot agent with three. Ties go to the agent that was chosen longest ago, so
a burst over idle agents visits every one of them.
"""

from __future__ import annotations

from typing import NewType, TypeAlias

AgentKey = NewType("AgentKey", int)
"""One *connection* of an agent. A reconnect gets a new key, so nothing stale can be confused."""

Load: TypeAlias = "tuple[float, int, AgentKey]"
"""Relative load, ordinal of the latest grant, agent: the least comes first."""


def load_of(agent: AgentKey, *, slots_busy: int, slots_total: int, last_chosen: int) -> Load | None:
    """Return the load of an agent; None if it has no free slot.

    Args:
      last_chosen: ordinal of the latest grant to this agent; 0 if it never had one.

    Two fractions of at most 4,096 slots are the same float only where they are equal.
    """
    if slots_busy >= slots_total:
        return None
    return slots_busy / slots_total, last_chosen, agent
