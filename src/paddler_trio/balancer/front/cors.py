"""Cross-origin resource sharing: which web pages may read the responses.

A page from an origin that is not listed gets the ordinary response without the allow header, so
its browser hides it; nothing is blocked here (`origins` blocks changes), and
WebSocket upgrades pass untouched. Only a preflight is answered without asking the application.

Header names are spelled as llama-server spells them: some clients compare them case by case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from paddler_trio.net.server.asgi import (
    Header,
    Message,
    Send,
    send_empty,
    send_text,
)
from paddler_trio.net.server.exchange import App, Exchange

MAX_AGE_S: Final = 3600
ALLOW_ORIGIN: Final = b"Access-Control-Allow-Origin"
VARY: Final[Header] = (
    b"vary",
    b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
)


@attrs.frozen(kw_only=True)
class CorsRules:
    """Say what a page from an allowed origin may do.

    Attributes:
      methods: which it may use.
      headers: which it may send, lower case; None for whatever its preflight asks for. (``*`` in
        the answer would not do: browsers do not count ``Authorization`` among what it covers.)
      exposed: response headers that it may read, beyond those that every page may.
      has_wildcard: ``*`` among the origins is every origin.
      has_credentials: a page of an origin that is listed itself may send cookies.
      refuses_preflights: one that asks for more is answered 400 with the reason, as Paddler does,
        and not 200 without permissions, as llama-server does.
    """

    methods: tuple[bytes, ...]
    headers: tuple[bytes, ...] | None
    exposed: tuple[bytes, ...] = ()
    has_wildcard: bool = False
    has_credentials: bool = False
    refuses_preflights: bool = False


NATIVE: Final = CorsRules(
    methods=(b"DELETE", b"GET", b"POST", b"PUT", b"OPTIONS"),
    headers=(b"accept", b"authorization", b"content-type"),
    refuses_preflights=True,
)
"""Paddler's rules, for its routes and ours beside them."""


class Cors:
    """Wraps applications so that pages from ``allowed_origins`` may read their responses.

    Args:
      allowed_origins: compared exactly and case-sensitively with the ``Origin`` header, such as
        ``http://127.0.0.1:8085``.
    """

    def __init__(self, allowed_origins: Iterable[str], rules: CorsRules = NATIVE) -> None:
        self._allowed_origins = frozenset(origin.encode() for origin in allowed_origins)
        self._rules = rules

    def __call__(self, app: App) -> App:
        """Return ``app`` with cross-origin answers added."""

        async def answer(exchange: Exchange) -> None:
            if not exchange.is_http:
                await app(exchange)
                return
            origin = exchange.header(b"origin")
            extra = [VARY, *self._permissions(origin)]
            send = exchange.send

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), *extra]}
                await send(message)

            method = exchange.header(b"access-control-request-method")
            if exchange.method == "OPTIONS" and method is not None:
                names = exchange.header(b"access-control-request-headers") or b""
                await self._answer_preflight(send_with_headers, origin, method, names)
            else:
                exchange.send = send_with_headers
                await app(exchange)

        return answer

    def _allows(self, origin: bytes) -> bool:
        is_any = self._rules.has_wildcard and b"*" in self._allowed_origins
        return is_any or origin in self._allowed_origins

    def _permissions(self, origin: bytes | None) -> list[Header]:
        """Return what every response to a page carries."""
        if origin is None or not self._allows(origin):
            return []
        permissions = [(ALLOW_ORIGIN, origin)]
        if self._rules.exposed:
            permissions.append((b"Access-Control-Expose-Headers", b", ".join(self._rules.exposed)))
        if self._rules.has_credentials and origin in self._allowed_origins:
            permissions.append((b"Access-Control-Allow-Credentials", b"true"))
        return permissions

    async def _answer_preflight(
        self, send: Send, origin: bytes | None, method: bytes, names: bytes
    ) -> None:
        problem = self._problem(origin, method, names)
        if problem is None:
            headers = self._rules.headers
            allowed = (names or b"*") if headers is None else b", ".join(headers)
            permissions = [
                (b"Access-Control-Allow-Methods", b", ".join(self._rules.methods)),
                (b"Access-Control-Allow-Headers", allowed),
                (b"Access-Control-Max-Age", b"%d" % MAX_AGE_S),
            ]
            await send_empty(send, 200, headers=permissions)
        elif self._rules.refuses_preflights:
            await send_text(send, 400, problem)
        else:
            await send_empty(send, 200)

    def _problem(self, origin: bytes | None, method: bytes, names: bytes) -> str | None:
        """Why a preflight is not granted; None if it is."""
        if origin is None:
            return "Preflight without an Origin header"
        if not self._allows(origin):
            return "Preflight from an origin that is not allowed"
        if method not in self._rules.methods:
            return "Preflight for a method that is not allowed"
        asked = [name.strip().lower() for name in names.split(b",") if name.strip()]
        headers = self._rules.headers
        if headers is not None and any(name not in headers for name in asked):
            return "Preflight for a header that is not allowed"
        return None
