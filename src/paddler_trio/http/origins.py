"""Which web pages may open a WebSocket.

CORS does not cover WebSockets: a page of any origin may open one to a balancer its reader can
reach, the loopback included, and speak for him. A browser always says in ``Origin`` whose page it
is, and no page can change that; so an origin that is neither this service itself nor allowed is
refused before the socket is accepted. Programs say none, and pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from paddler_trio.http.asgi import App, HttpProblem, Receive, Scope, Send, header
from paddler_trio.http.router import refuse_upgrade

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origins:
    """Wraps applications so that only pages of ``allowed`` origins, or its own, open sockets.

    ``*`` among the allowed is every origin.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(origin.encode() for origin in allowed)

    def __call__(self, app: App) -> App:
        """Return ``app`` with the origins of sockets checked."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                origin = header(scope, b"origin")
                if origin is not None and not self._may(origin, header(scope, b"host")):
                    text = (
                        f"pages from {origin.decode('latin-1')[:200]!r} may not open a WebSocket "
                        "here; allow the origin with the service's --...-cors-allowed-host option"
                    )
                    await refuse_upgrade(send, HttpProblem(403, text))
                    return
            await app(scope, receive, send)

        return answer

    def _may(self, origin: bytes, host: bytes | None) -> bool:
        if origin in self._allowed or b"*" in self._allowed:
            return True
        return host is not None and is_same_host(origin, host)


def is_same_host(origin: bytes, host: bytes) -> bool:
    """Whether a page of ``origin`` came from the very ``Host`` it asks; ports count."""
    try:
        page = urlsplit(origin.decode("ascii"))
        asked = urlsplit(f"{page.scheme}://{host.decode('ascii')}")
        default = _DEFAULT_PORTS.get(page.scheme)
        if default is None or not page.hostname:
            return False
        return (page.hostname, page.port or default) == (asked.hostname, asked.port or default)
    except (UnicodeDecodeError, ValueError):
        return False
