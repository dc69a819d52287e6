"""The one way in which routes are Quart's: ordinary ones, which answer once with a whole document.

A :class:`QuartRouter` is a router whose ordinary routes are those of a Quart application. Its
streams, probes and sockets are routes of our own table: they outlive what Quart expects of a
request. Handlers are the same on both sides. They read the body from the exchange, within its
limits, so Quart is given none; and it hears of no disconnect, on which quart-trio would cancel the
very send that ends a response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, cast

import attrs
import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from paddler_trio.net.server.asgi import Header, Message, Scope, Send, send_empty
from paddler_trio.net.server.exchange import AsgiApp, Exchange
from paddler_trio.net.server.router import Handler, Router, answer

_CALL: Final = "paddler_trio.call"
"""The member of a Quart application's scope with what it is to answer."""


class QuartRouter(Router):
    """A router whose ordinary routes are a Quart application's."""

    def __init__(self) -> None:
        super().__init__(otherwise=self._serve)
        self._ordinary: list[tuple[str, str]] = []
        self._quart = QuartTrio(__name__, static_folder=None)
        self._quart.config["RESPONSE_TIMEOUT"] = None
        self._quart.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
        self._quart.url_map.strict_slashes = True
        self._quart.url_map.merge_slashes = False
        self._quart.register_error_handler(HTTPException, _not_found)

    def http(self, method: str, pattern: str, handler: Handler) -> None:
        """Have Quart answer ``method`` on ``pattern`` with ``handler``."""
        rule = pattern.replace("{", "<").replace("}", ">")
        self._quart.add_url_rule(
            rule, endpoint=f"{method} {rule}", view_func=_view(handler), methods=[method]
        )
        self._ordinary.append((method, pattern))

    def routes(self) -> Iterator[tuple[str, str]]:
        """Yield every method and pattern, Quart's and ours."""
        yield from super().routes()
        yield from self._ordinary

    def answers_http(self, path: str) -> bool:
        """Return whether something is routed on ``path``, here or in Quart."""
        rules = self._quart.url_map.bind("any-host")
        return super().answers_http(path) or bool(rules.allowed_methods(path))

    async def _serve(self, exchange: Exchange) -> None:
        if exchange.method == "HEAD":  # Quart answers it on every GET route
            await send_empty(exchange.send, 404)
            return
        first: Message | None = {"type": "http.request", "body": b"", "more_body": False}

        async def receive() -> Message:
            nonlocal first
            if first is None:
                await trio.sleep_forever()  # Quart cancels its reader when the response is sent
            message, first = first, None
            return message

        call = _Call(exchange, exchange.send)
        exchange.scope[_CALL] = call
        try:
            await cast("AsgiApp", self._quart)(exchange.scope, receive, call.send)
        finally:
            del exchange.scope[_CALL]  # it knows the scope


@attrs.define(eq=False)
class _Call:
    """One request on its way through Quart, and the response of its handler."""

    exchange: Exchange
    to_client: Send
    has_left: bool = False
    """The handler has sent nothing, since its client has left."""
    status: int = 0
    headers: list[Header] = attrs.field(factory=list)
    body: bytes = b""

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        else:
            self.body += message.get("body", b"")

    async def send(self, message: Message) -> None:
        if not self.has_left:
            await self.to_client(message)


def _view(handler: Handler) -> Callable[..., Awaitable[Response]]:
    async def view(**params: str) -> Response:
        call: _Call = cast("Scope", request.scope)[_CALL]
        call.exchange.send = call.take
        await answer(handler, call.exchange, params)
        call.has_left = call.status == 0
        return _response(call.status or 500, call.headers, call.body)

    return view


async def _not_found(error: Exception) -> Response:
    return _response(404, [(b"content-length", b"0")], b"")


def _response(status: int, headers: list[Header], body: bytes) -> Response:
    response = Response(body, status)
    response.headers.clear()
    response.headers.extend(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    )
    return response
