"""Cross-origin answers: which web pages may read what the balancer says.

A page from an origin that is not listed gets the ordinary response without the allow header, so
its browser hides it; nothing is blocked here, and WebSocket upgrades pass untouched. Only a
preflight is answered without asking the application.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddler_trio.http.asgi import (
    App,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    header,
    send_empty,
    send_text,
)

ALLOWED_METHODS = (b"DELETE", b"GET", b"POST", b"PUT", b"OPTIONS")
ALLOWED_HEADERS = (b"accept", b"authorization", b"content-type")
MAX_AGE_S = 3600
VARY: Header = (
    b"vary",
    b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
)


class Cors:
    """Wraps applications so that pages from ``allowed_origins`` may read their responses.

    Args:
      allowed_origins: compared exactly and case-sensitively with the ``Origin`` header, such as
        ``http://127.0.0.1:8085``; there is no wildcard.
    """

    def __init__(self, allowed_origins: Iterable[str]) -> None:
        self._allowed_origins = frozenset(origin.encode() for origin in allowed_origins)

    def __call__(self, app: App) -> App:
        """Return ``app`` with cross-origin answers added."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            origin = header(scope, b"origin")
            extra = [VARY]
            if origin is not None and origin in self._allowed_origins:
                extra.append((b"access-control-allow-origin", origin))

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), *extra]}
                await send(message)

            wanted_method = header(scope, b"access-control-request-method")
            if scope["method"] == "OPTIONS" and wanted_method is not None:
                await self._answer_preflight(scope, send_with_headers, origin, wanted_method)
            else:
                await app(scope, receive, send_with_headers)

        return answer

    async def _answer_preflight(
        self, scope: Scope, send: Send, origin: bytes | None, wanted_method: bytes
    ) -> None:
        wanted_headers = header(scope, b"access-control-request-headers") or b""
        names = [name.strip().lower() for name in wanted_headers.split(b",") if name.strip()]
        if origin is None:
            await send_text(send, 400, "Preflight without an Origin header")
        elif origin not in self._allowed_origins:
            await send_text(send, 400, "Preflight from an origin that is not allowed")
        elif wanted_method not in ALLOWED_METHODS:
            await send_text(send, 400, "Preflight for a method that is not allowed")
        elif any(name not in ALLOWED_HEADERS for name in names):
            await send_text(send, 400, "Preflight for a header that is not allowed")
        else:
            allowed = [
                (b"access-control-allow-methods", b", ".join(ALLOWED_METHODS)),
                (b"access-control-allow-headers", b", ".join(ALLOWED_HEADERS)),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ]
            await send_empty(send, 200, headers=allowed)
