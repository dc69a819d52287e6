"""``GET /api/v2/logs`` on the management port: the newest warnings and errors of this balancer.

GET /api/v2/logs?after=SEQ      {"entries": [...]}, oldest first; all that are kept without it

Entries that say the same are one, with the number of the newest, ``count``, the time of the
``first``, and a ``group`` that stays the same.
"""

from __future__ import annotations

from urllib.parse import parse_qs

import attrs

from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.system.logs.log_ring import LogRing

_MAX_DIGITS = 15


@attrs.frozen(eq=False)
class LogRoutes:
    """The handler of this route."""

    ring: LogRing

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/api/v2/logs", self._show)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        texts = self.ring.after(after_of(exchange))
        await send_json(exchange.send, 200, b'{"entries":[%b]}' % b",".join(texts))


def after_of(exchange: Exchange) -> int:
    """Return the number of an entry in the query, 0 without it; HttpProblem 400 for anything
    else."""
    query = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True)
    given = query.pop("after", ["0"])
    if query:
        raise HttpProblem(400, f"unknown parameter {min(query)[:80]!r}: after is taken")
    if len(given) > 1:
        raise HttpProblem(400, "after is given twice")
    text = given[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise HttpProblem(400, f"after is {text[:80]!r}, must be the number of an entry")
    return int(text)
