"""``GET /api/v2/metrics/history`` on the management port: the last hour, in rows of ten seconds."""

from __future__ import annotations

import attrs
import trio

from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.wire.codec import dumps


@attrs.frozen(eq=False)
class MetricsRoutes:
    """The handler of this route."""

    history: MetricsHistory

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/metrics/history", self._show)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        view = self.history.view(trio.current_time())
        await send_json(exchange.send, 200, await trio.to_thread.run_sync(dumps, view))
