"""Remember when agents came, left, and did what: for a timeline that shows swaps and dead
agents."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import attrs

from paddler_trio.balancer.activity.moments import ms
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.dispatch.placement import AgentKey

MAX_EVENTS: Final = 2000
MAX_DETAIL_CHARS: Final = 200


@attrs.frozen
class AgentEvent:
    """``event``: ``joined``, ``left`` or ``phase``. ``phase`` is None for agents that report none.

    ``number`` counts all events.
    """

    number: int
    agent: str
    agent_key: int
    at_s: float
    event: str
    phase: str | None
    detail: str | None

    def view(self) -> dict[str, object]:
        return {
            "agent": self.agent,
            "agent_key": self.agent_key,
            "at_ms": ms(self.at_s),
            "event": self.event,
            "phase": self.phase,
            "detail": self.detail,
        }


@attrs.define(eq=False, repr=False)
class AgentHistory:
    """The newest ``MAX_EVENTS`` events of all agents."""

    _events: deque[AgentEvent] = attrs.field(factory=lambda: deque(maxlen=MAX_EVENTS), init=False)
    _phases: dict[AgentKey, str | None] = attrs.field(factory=dict, init=False)
    """Of each agent that is here, as it was noted last."""
    _num_events: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<AgentHistory of {len(self._events)} events, {len(self._phases)} agents here>"

    def note(self, agent: AgentConnection, now_s: float, *, is_here: bool) -> None:
        """The agent joined, left, or may have another phase."""
        phase = None if agent.report is None else agent.report.phase
        if not is_here:
            if self._phases.pop(agent.key, _UNKNOWN) is not _UNKNOWN:
                self._add(agent, now_s, "left", phase)
        elif agent.key not in self._phases:
            self._phases[agent.key] = phase
            self._add(agent, now_s, "joined", phase)
        elif self._phases[agent.key] != phase:
            self._phases[agent.key] = phase
            self._add(agent, now_s, "phase", phase)

    def since(self, moment_s: float) -> Iterator[AgentEvent]:
        """Return events from this moment on, oldest first."""
        return (event for event in self._events if event.at_s >= moment_s)

    def _add(self, agent: AgentConnection, now_s: float, event: str, phase: str | None) -> None:
        self._num_events += 1
        detail = None if agent.report is None else agent.report.detail
        self._events.append(
            AgentEvent(
                self._num_events,
                agent.label[:MAX_DETAIL_CHARS],
                agent.key,
                now_s,
                event,
                phase,
                None if detail is None else detail[:MAX_DETAIL_CHARS],
            )
        )


_UNKNOWN: Final = object()
