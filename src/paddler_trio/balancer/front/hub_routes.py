"""Tell which models a repository of the hub has: ``GET /api/v2/hub/models`` on the management port.

``?repo=org/repo&revision=main``. The hub is the one that the balancer is configured for; a client
names a repository, never an address.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol
from urllib.parse import parse_qs

import attrs

from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import while_connected

DEFAULT_REVISION = "main"
PARAMETERS = ("repo", "revision")


class HubModels(Protocol):
    async def models(self, repo_id: str, revision: str) -> bytes:
        """Return the JSON of the answer; HttpProblem."""
        ...


@attrs.frozen(eq=False)
class HubRoutes:
    """See the module docstring."""

    hub: HubModels

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/hub/models", self._models)

    async def _models(self, exchange: Exchange, params: Params) -> None:
        text = exchange.query.decode("latin-1")
        try:
            query = parse_qs(text, keep_blank_values=True, max_num_fields=8)
        except ValueError as error:
            raise HttpProblem(400, "more than 8 parameters: only repo and revision are") from error
        for name in query:
            if name not in PARAMETERS:
                raise HttpProblem(400, f"{name[:80]!r} is no parameter: repo and revision are")
        repo_id = query.get("repo", [""])[-1]
        if not repo_id:
            raise HttpProblem(400, "repo is missing: write ?repo=org/repo")
        revision = query.get("revision", [DEFAULT_REVISION])[-1] or DEFAULT_REVISION
        answer = await while_connected(exchange, partial(self.hub.models, repo_id, revision))
        await send_json(exchange.send, 200, answer)
