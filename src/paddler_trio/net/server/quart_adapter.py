"""The adapter that serves a Quart application like every other application.

Quart serves the ordinary routes of the management port; every other route is one of
`router`. `adapted` gives such an application the body limits of the others and
closes two differences: Quart answers ``HEAD`` on every ``GET`` route, and quart-trio cancels a
request on the disconnect that reports its own end.
"""

from __future__ import annotations

from typing import Final

import trio

from paddler_trio.net.server.asgi import (
    BODY_DEADLINE_S,
    ClientGoneError,
    HttpProblem,
    Message,
    Receive,
    Scope,
    Send,
    read_body,
    send_empty,
    send_text,
)
from paddler_trio.net.server.exchange import App, AsgiApp, Exchange

_EXCHANGE: Final = "paddler_trio.exchange"
"""The member of a Quart application's scope with its exchange."""


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of a request that Quart answers, from ``quart.request.scope``."""
    exchange: Exchange = scope[_EXCHANGE]
    return exchange


def adapted(app: AsgiApp, *, max_body_bytes: int) -> App:
    """Return a Quart application for requests, with whole bodies, without ``HEAD``, and with its
    disconnects fixed."""
    fixed = fix_disconnects(app)

    async def answer(exchange: Exchange) -> None:
        receive, send = exchange.receive, exchange.send
        if exchange.method == "HEAD":
            await send_empty(send, 404)
            return
        try:
            body = await read_body(receive, limit_bytes=max_body_bytes, deadline_s=BODY_DEADLINE_S)
        except HttpProblem as problem:
            await send_text(send, problem.status, problem.text, headers=problem.headers)
            return
        except ClientGoneError:
            return
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def receive_whole() -> Message:
            nonlocal first
            if first is None:
                return await receive()
            message, first = first, None
            return message

        scope = exchange.scope
        scope[_EXCHANGE] = exchange
        try:
            await fixed(scope, receive_whole, send)
        finally:
            del scope[_EXCHANGE]  # it knows the scope

    return answer


def fix_disconnects(app: AsgiApp) -> AsgiApp:
    """Wrap a Quart application so that its connections are closed or kept alive properly.

    The server reports the end of a request to the application as ``http.disconnect``, also while
    the application is still inside the send of its last piece. quart-trio cancels the request on
    it and with it that very send, which then neither closes nor recycles the connection. So the
    disconnect that only follows our own last piece is withheld. (Our connections finish that send
    without a checkpoint after the report; an application must not come to depend on it.)
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        finished = False

        async def noting_send(message: Message) -> None:
            nonlocal finished
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            finished = finished or ends
            await send(message)

        async def withholding_receive() -> Message:
            message = await receive()
            if finished and message["type"] == "http.disconnect":
                await trio.sleep_forever()  # Quart cancels its reader when the send has returned
            return message

        await app(scope, withholding_receive, noting_send)

    return wrapped
