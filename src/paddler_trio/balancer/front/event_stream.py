"""Server-sent events of a view: the first at once, then each that differs, latest wins.

A change that the view does not show, such as an agent's counters in Paddler's format, sends
nothing.

A comment goes out after every silence, more often than Paddler's ten seconds, because its Python
client gives up after five silent ones.
"""

from __future__ import annotations

from typing import Protocol

import trio

from paddler_trio.net.server import streaming
from paddler_trio.net.server.asgi import Send
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Handler
from paddler_trio.net.server.streaming import cancelled_on_disconnect

KEEP_ALIVE_S = 3.0
_KEEP_ALIVE = streaming.comment("keep-alive")
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    *streaming.UNBUFFERED,
]


class WatchedView(Protocol):
    """A view is what a stream shows, such as a ``SharedView``."""

    watchers: int

    def begin(self) -> bytes:
        """Return the first text."""
        ...

    async def next(self, last: bytes) -> bytes:
        """Return the next one; ``last`` is the one before it."""
        ...


def event_stream(view: WatchedView, *, goodbye: trio.Event) -> Handler:
    """Return a handler that streams a view until the client leaves or ``goodbye`` is set."""

    async def serve(exchange: Exchange, params: Params) -> None:
        async with cancelled_on_disconnect(exchange) as nursery:
            nursery.start_soon(_until, goodbye, nursery.cancel_scope, name="goodbye watch")
            await exchange.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            view.watchers += 1
            try:
                await _send_texts(exchange.send, view)
            finally:
                view.watchers -= 1
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    return serve


async def _send_texts(send: Send, view: WatchedView) -> None:
    """Send the view and keep-alives until cancelled."""
    sent = view.begin()
    await _send(send, streaming.data_event(sent) + _KEEP_ALIVE)
    while True:
        event = _KEEP_ALIVE
        with trio.move_on_after(KEEP_ALIVE_S):
            sent = await view.next(sent)
            event = streaming.data_event(sent)
        await _send(send, event)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="balancer is shutting down")
