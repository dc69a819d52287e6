"""What is told of an agent whose readiness changes."""

from __future__ import annotations

import trio
from dispatch_world import status_of

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import PADDLER, ReadyByGate
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey


async def test_a_drained_agent_of_paddlers_that_serves_again_is_news() -> None:
    """It gets no work either way, but whoever watches the fleet shows it as serving."""
    outgoing, frames = trio.open_memory_channel[bytes](1)
    with outgoing, frames:
        agent = AgentConnection(
            key=AgentKey(1),
            id="a",
            name="a",
            kind=PADDLER,
            status=status_of(2),
            scope=trio.CancelScope(),
            outgoing=outgoing,
            health=HealthTracker(),
        )
        assert isinstance(agent.readiness, ReadyByGate)
        agent.is_drained = agent.readiness.awaits_state = True
        agent.refresh_readiness()
        agent.readiness.awaits_state = False
        assert agent.refresh_readiness()
        assert not agent.refresh_readiness()
        assert agent.serves_desired
        assert not agent.is_accepting
