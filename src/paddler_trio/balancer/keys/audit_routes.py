"""``GET /api/v2/audit`` on the management port: who changed what.

GET /api/v2/audit?after=SEQ     {"entries": [...], "file": {"path", "dropped", "problem"}}

Oldest first, all that are kept without ``after``; ``file`` is null without ``--audit-log``.
"""

from __future__ import annotations

import attrs

from paddler_trio.balancer.activity.log_routes import after_of
from paddler_trio.balancer.keys.audit_log import AuditLog
from paddler_trio.net.server.asgi import Receive, Scope, Send, send_json
from paddler_trio.net.server.router import Params, Router
from paddler_trio.wire.codec import dumps


@attrs.frozen(eq=False)
class AuditRoutes:
    """The handler of this route."""

    audit: AuditLog

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/audit", self._show)

    async def _show(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        texts = self.audit.after(after_of(scope))
        file = self.audit.file
        about = (
            None
            if file is None
            else {"path": str(file.path), "dropped": file.dropped, "problem": file.problem}
        )
        answer = b'{"entries":[%b],"file":%b}' % (b",".join(texts), dumps(about))
        await send_json(send, 200, answer)
