"""Protection against cross-site request forgery: which web pages may change anything.

CORS decides which pages may *read* responses. It does not stop requests: a page of any origin can
send a ``POST`` with a plain body, or open a WebSocket, to every service that its reader can reach,
the loopback included. A browser always marks such requests with ``Origin`` or ``Sec-Fetch-Site``,
and no page can change that. So a request that is more than a read is refused if it comes from an
origin that is neither this service itself nor allowed. Programs send neither header, and pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import structlog

from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.net.server.router import refuse_upgrade

log = structlog.get_logger("origins")

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
MAX_SHOWN_CHARS = 100

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origins:
    """Wraps applications so that only pages of ``allowed`` origins, or its own, change anything.

    Args:
      allowed: as ``Origin`` has them; ``*`` is every origin.
      flag: the option with which an operator allows one.
    """

    def __init__(self, allowed: Iterable[str], *, flag: str) -> None:
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._flag = flag

    def __call__(self, app: App, *, refuse: Refuse = refuse_in_plain_text) -> App:
        """Return ``app`` with the origins of sockets and of changes checked."""

        async def answer(exchange: Exchange) -> None:
            is_socket = exchange.is_websocket
            is_read = not is_socket and exchange.method in READS and exchange.upgrade is None
            if is_read or self._may(exchange):
                await app(exchange)
                return
            problem = self._problem(exchange)
            log.warning("refused: a page of a foreign origin", reason=problem.text)
            if is_socket:
                await refuse_upgrade(exchange.send, problem)
            else:
                await refuse(exchange, problem)

        return answer

    def _may(self, exchange: Exchange) -> bool:
        origin, site = exchange.header(b"origin"), exchange.header(b"sec-fetch-site")
        if b"*" in self._allowed or origin in self._allowed:
            return True
        if site == b"cross-site":
            return False
        if origin is None or site == b"same-origin":
            return True  # a browser knows it also where a proxy has renamed the Host
        host = exchange.header(b"host")
        return host is not None and is_same_host(origin, host)

    def _problem(self, exchange: Exchange) -> HttpProblem:
        origin = (exchange.header(b"origin") or b"another site").decode("latin-1")
        is_socket = exchange.is_websocket or exchange.upgrade is not None
        what = "open a WebSocket" if is_socket else exchange.method
        return HttpProblem(
            403,
            f"pages from {origin[:MAX_SHOWN_CHARS]!r} may not {what} here; the operator may allow "
            f"their origin with {self._flag}",
        )


def is_same_host(origin: bytes, host: bytes) -> bool:
    """Return whether a page of ``origin`` came from the same host and port as its request's
    ``Host``."""
    try:
        page = urlsplit(origin.decode("ascii"))
        asked = urlsplit(f"{page.scheme}://{host.decode('ascii')}")
        default = _DEFAULT_PORTS.get(page.scheme)
        if default is None or not page.hostname:
            return False
        return (page.hostname, page.port or default) == (asked.hostname, asked.port or default)
    except (UnicodeDecodeError, ValueError):
        return False
