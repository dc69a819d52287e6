"""Exchanges without a server: for tests that call an application with a scope of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from paddler_trio.net.server.asgi import Message, Receive, Scope, Send
from paddler_trio.net.server.exchange import App, Exchange

AsgiCall = Callable[[Scope, Receive, Send], Awaitable[Any]]


async def _no_message() -> Message:
    raise AssertionError("nobody receives here")


async def _no_send(message: Message) -> None:
    raise AssertionError(f"nobody sends here: {message}")


def exchange_for(
    scope: Scope, receive: Receive = _no_message, send: Send = _no_send, **more: Any
) -> Exchange:
    """Return the exchange of a scope; a member that is missing in it is that of ``GET /``.

    ``more``: attributes of the exchange, such as ``identity``.
    """
    usual: Scope = {"type": "http", "path": "/", "headers": [], "query_string": b""}
    if scope.get("type") != "websocket":
        usual["method"] = "GET"
    made = Exchange({**usual, **scope}, receive, send)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def called(app: App) -> AsgiCall:
    """Return ``app`` as an ASGI application, for clients that speak it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app(exchange_for(scope, receive, send))

    return answer
