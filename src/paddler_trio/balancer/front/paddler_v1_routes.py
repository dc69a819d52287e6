"""``/compat/v1``: what Paddler 1.x answered under ``/api/v1``, which is Paddler 4.1's here.

GET /compat/v1/agents           all agents
GET /compat/v1/agents/stream    the same as server-sent events
"""

from __future__ import annotations

from typing import Final

import attrs
import trio

from paddler_trio.balancer.agents.paddler_v1_agents import PaddlerV1Agents
from paddler_trio.balancer.front.event_stream import event_stream
from paddler_trio.net.server.asgi import send_bytes
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router

AGENTS_PATH: Final = "/compat/v1/agents"


@attrs.frozen(eq=False)
class PaddlerV1Routes:
    """Routes of the management port."""

    agents: PaddlerV1Agents
    goodbye: trio.Event

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", AGENTS_PATH, self._agents)
        stream = event_stream(self.agents, goodbye=self.goodbye)
        routes.stream("GET", f"{AGENTS_PATH}/stream", stream)

    async def _agents(self, exchange: Exchange, params: Params) -> None:
        await send_bytes(
            exchange.send, 200, self.agents.current(), content_type=b"application/json"
        )
