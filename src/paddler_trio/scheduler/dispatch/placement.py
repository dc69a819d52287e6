"""Which agent gets the next request: the one with the least relative load.

Relative (busy / total), not absolute as in Paddler 4.1: a 16-slot agent with four requests is
less loaded than a 4-slot agent with three. Ties go to the agent that was chosen longest ago, so
a burst over idle agents visits every one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NewType

import attrs

AgentKey = NewType("AgentKey", int)
"""One *connection* of an agent. A reconnect gets a new key, so nothing stale can be confused."""


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
