"""``/api/v2/problems`` and ``/api/v2/known_agents`` on the management port.

GET     /api/v2/problems               {"problems": [...]}, the worst first, each with what to do
GET     /api/v2/known_agents           {"agents": [...]}: those that were here and are gone
DELETE  /api/v2/known_agents/{name}    forgets one: 204; 409 while it is connected
"""

from __future__ import annotations

import attrs

from paddler_trio.balancer.status.known_agents import AgentIsHereError, KnownAgents
from paddler_trio.balancer.status.problem_list import ProblemList
from paddler_trio.net.server.asgi import HttpProblem, send_empty, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router


@attrs.frozen(eq=False)
class StatusRoutes:
    """The handlers of these routes."""

    problems: ProblemList
    known: KnownAgents

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/problems", self._problems)
        routes.http("GET", "/api/v2/known_agents", self._known)
        routes.http("DELETE", "/api/v2/known_agents/{name}", self._forget)

    async def _problems(self, exchange: Exchange, params: Params) -> None:
        found = [each.view() for each in self.problems.now()]
        await send_json(exchange.send, 200, {"problems": found})

    async def _known(self, exchange: Exchange, params: Params) -> None:
        await send_json(
            exchange.send, 200, {"agents": [attrs.asdict(each) for each in self.known.shown()]}
        )

    async def _forget(self, exchange: Exchange, params: Params) -> None:
        name = params["name"]
        try:
            found = self.known.forget(name)
        except AgentIsHereError as error:
            raise HttpProblem(409, str(error)) from error
        if found is None:
            raise HttpProblem(404, f"no agent {name[:80]!r} is known that is gone")
        exchange.audit.record(exchange, "agent forgotten", name)
        await send_empty(exchange.send, 204)
