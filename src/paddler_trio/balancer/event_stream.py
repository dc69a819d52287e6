"""Server-sent events of a view: the first at once, then each that differs, latest wins.

A change that this view does not show, such as an agent's counters in Paddler's shape, is none.

A comment goes out whenever nothing else did for a while, more often than Paddler's ten seconds,
because its Python client gives up after five silent ones.
"""

from __future__ import annotations

import trio

from paddler_trio.balancer.shared_view import SharedView
from paddler_trio.http.asgi import Receive, Scope, Send, watch_disconnect
from paddler_trio.http.router import Handler, Params

KEEP_ALIVE_S = 3.0
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"content-encoding", b"identity"),
    (b"x-accel-buffering", b"no"),
]


def event_stream(view: SharedView, *, goodbye: trio.Event) -> Handler:
    """A route that streams a view until the client leaves or we do."""

    async def serve(scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                watch_disconnect, receive, nursery.cancel_scope.cancel, name="client watch"
            )
            nursery.start_soon(_until, goodbye, nursery.cancel_scope, name="goodbye watch")
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            view.watchers += 1
            try:
                await _tell(send, view)
            finally:
                view.watchers -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return serve


async def _tell(send: Send, view: SharedView) -> None:
    """The view and keep-alives until cancelled."""
    told = view.begin()
    await _send(send, b"data: " + told + b"\n\n: keep-alive\n\n")
    while True:
        text = b": keep-alive"
        with trio.move_on_after(KEEP_ALIVE_S):
            told = await view.next(told)
            text = b"data: " + told
        await _send(send, text + b"\n\n")


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="balancer is shutting down")
