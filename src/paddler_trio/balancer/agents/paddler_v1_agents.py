"""The agents in the fields of Paddler 1.2, where each of them stood beside a llama-server.

What there was no word for then has the nearest one: a server that this balancer leaves alone for a
while is quarantined. An agent that runs models itself has no server, and so no address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.codec import dumps

LEAST_S: Final = 0.5
"""Between two texts, unless somebody asks anew: Paddler's dashboards asked twice a second."""
LONGEST_S: Final = 5.0
"""Between two texts of a stream: what is shown has the time of each agent's last word."""
WELL: Final = frozenset({"ready", "sleeping"})
UNAUTHORISED: Final = "unauthorised"
UNREACHABLE: Final = "unreachable"


def shown_agent(
    agent: AgentConnection, slots_processing: int, wall_time: Callable[[float], float]
) -> Mapping[str, object]:
    """Return one agent as plain JSON.

    Args:
      slots_processing: requests of this balancer in its slots.
      wall_time: seconds since 1970 of a moment on Trio's clock.
    """
    server = agent.upstream
    busy_elsewhere = 0 if server is None else server.busy_elsewhere
    until_s = agent.health.ejected_until_s(agent.label, trio.current_time())
    idle = max(0, agent.usable_slots - slots_processing) if agent.is_accepting else 0
    return {
        "agent_id": agent.id,
        "agent_name": agent.name,
        "error": _error(agent),
        "external_llamacpp_addr": None if server is None else server.address,
        "is_authorized": _is_authorized(agent),
        "is_slots_endpoint_enabled": True if server is None else server.slots_endpoint,
        "last_update": _system_time(wall_time(agent.reported_s)),
        "quarantined_until": None if until_s is None else _system_time(wall_time(until_s)),
        "slots_idle": idle,
        "slots_processing": slots_processing + busy_elsewhere,
    }


def _error(agent: AgentConnection) -> str | None:
    """Why it gets no requests or may soon get none, in words or in Paddler's names of issues."""
    if agent.upstream is not None:
        if agent.upstream.phase in WELL:
            return agent.upstream.detail
        return agent.upstream.detail or f"the server is {agent.upstream.phase}"
    if agent.report is not None and agent.report.phase == "failed":
        return agent.report.detail or "failed"
    return ", ".join(sorted({type(issue).__name__ for issue in agent.status.issues})) or None


def _is_authorized(agent: AgentConnection) -> bool | None:
    """Return None while nobody knows: the server cannot be reached."""
    if agent.upstream is None:
        return True
    if agent.upstream.phase == UNREACHABLE:
        return None
    return agent.upstream.phase != UNAUTHORISED


def _system_time(seconds: float) -> Mapping[str, int]:
    """Return a time as Rust's serde writes one."""
    nanos = max(0, round(seconds * 1e9))
    return {"secs_since_epoch": nanos // 10**9, "nanos_since_epoch": nanos % 10**9}


@attrs.define(eq=False)
class PaddlerV1Agents:
    """All agents as JSON text: for readers the text as it is now, for watchers one at each change,
    at most two a second and at least one in five seconds."""

    dispatcher: Dispatcher
    watchers: int = attrs.field(default=0, init=False)
    _text: bytes = attrs.field(default=b"", init=False)
    _text_s: float = attrs.field(default=float("-inf"), init=False)
    _seen: int = attrs.field(default=-1, init=False)
    """The number of changes that the text shows."""

    def current(self) -> bytes:
        """Return the text as it is now; one that is younger than half a second if nothing
        changed."""
        now_s, changes = trio.current_time(), self.dispatcher.agents_changed.ordinal
        if changes != self._seen or now_s >= self._text_s + LEAST_S:
            self._text, self._text_s, self._seen = self._rendered(now_s), now_s, changes
        return self._text

    def begin(self) -> bytes:
        """Return the first text for a new watcher."""
        return self.current()

    async def next(self, last: bytes) -> bytes:
        """Return the text after ``last``. A waiter that stops and asks again loses no time."""
        if self._text == last:  # nobody else has had it made anew since
            with trio.move_on_at(self._text_s + LONGEST_S):
                await self.dispatcher.agents_changed.wait_beyond(self._seen)
        await trio.sleep_until(self._text_s + LEAST_S)
        return self.current()

    def _rendered(self, now_s: float) -> bytes:
        ahead_s = time.time() - now_s

        def wall_time(at_s: float) -> float:
            return at_s + ahead_s

        agents = [
            shown_agent(agent, self.dispatcher.slots_processing(key), wall_time)
            for key, agent in self.dispatcher.agents.items()
        ]
        return dumps({"agents": agents})
