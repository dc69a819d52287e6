"""``GET /api/v2/audit`` on the management port: who changed what.

GET /api/v2/audit?after=SEQ     {"entries": [...], "file": {"path", "dropped", "problem"}}

Oldest first, all that are kept without ``after``; ``file`` is null without ``--audit-log``.
"""

from __future__ import annotations

import attrs

from paddler_trio.balancer.activity.log_routes import after_of
from paddler_trio.balancer.keys.audit_log import AuditLog
from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.wire.codec import dumps


@attrs.frozen(eq=False)
class AuditRoutes:
    """The handler of this route."""

    audit: AuditLog

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/audit", self._show)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        texts = self.audit.after(after_of(exchange))
        file = self.audit.file
        about = (
            None
            if file is None
            else {"path": str(file.path), "dropped": file.dropped, "problem": file.problem}
        )
        answer = b'{"entries":[%b],"file":%b}' % (b",".join(texts), dumps(about))
        await send_json(exchange.send, 200, answer)
