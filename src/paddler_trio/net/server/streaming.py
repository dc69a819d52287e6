"""Responses that take time: written in pieces, and given up when the client leaves.

A task that waits for the client's disconnect runs beside such a response. The server reports the
end of a request as a disconnect too, so the watch must end *before* the last piece is sent: it
would cancel that very send.

Server-sent events, exactly framed: ``data:`` lines, optional ``event:`` names, comments.

An event is one block that a blank line ends. JSON as we write it holds no line break, so an event
is always a single ``data:`` line and no proxy or client has to join any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar

import trio

from paddler_trio.net.server.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    Header,
    Receive,
    read_body,
)
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.wire.codec import dumps

T = TypeVar("T")

BodyWriter: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Writes one piece of a body that goes on after it."""


class WritesNow(Protocol):
    """A client's connection, as results are written to it past the task of their request."""

    def write_now(self, piece: bytes) -> bool:
        """Write without waiting; return whether the kernel took all of it.

        The rest goes out before what is written next. ClientGoneError.
        """
        ...


def body_writer(exchange: Exchange) -> BodyWriter:
    """Return the fastest way to write pieces of the response that has begun.

    Call it after ``http.response.start`` was sent without a ``Content-Length``. End the response
    with the ordinary last ``http.response.body``. Pieces go past hypercorn unless the response is
    one of HTTP/1.0, or the client has left.
    """

    async def write(piece: bytes) -> None:
        await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})

    direct = exchange.open_body()
    return write if direct is None else direct.write


async def whole_body(
    exchange: Exchange, *, limit_bytes: int, deadline_s: float
) -> bytes | bytearray:
    """Read a body as `read_body` does, without its deadline where all of it is there already.

    Errors: those of `read_body`.
    """
    body = None if exchange.watch is None else exchange.watch.whole_body()
    if body is None:
        return await read_body(exchange.receive, limit_bytes=limit_bytes, deadline_s=deadline_s)
    if len(body) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    return body


async def watch_disconnect(receive: Receive, on_gone: Callable[[], None]) -> None:
    """Call ``on_gone`` once, when the client leaves; the request body must have been read."""
    while True:
        message = await receive()
        if message["type"] in {"http.disconnect", "websocket.disconnect"}:
            on_gone()
            return


@asynccontextmanager
async def cancelled_on_disconnect(exchange: Exchange) -> AsyncIterator[trio.Nursery]:
    """Run the block, and what it starts in the nursery, until the client leaves.

    The end of the block cancels what still runs in the nursery. After a disconnect the code behind
    the block goes on: send nothing there that assumes a client, or look at
    ``nursery.cancel_scope.cancelled_caught``.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            watch_disconnect, exchange.receive, nursery.cancel_scope.cancel, name="client watch"
        )
        yield nursery
        nursery.cancel_scope.cancel(reason="the response is complete")


@contextmanager
def cut_on_disconnect(exchange: Exchange) -> Iterator[None]:
    """Cancel the block when the client leaves, as `cancelled_on_disconnect` does, without a task
    that watches; the request body must have been read."""
    watch = exchange.client_watch
    with trio.CancelScope() as cut:
        watch.on_end = cut.cancel
        try:
            if watch.has_ended:
                cut.cancel(reason="the client has left")
            yield
        finally:
            watch.on_end = None


@asynccontextmanager
async def while_client_stays(exchange: Exchange) -> AsyncIterator[None]:
    """Run the block until the client leaves, without a task where the client is watched: it would
    cost a small answer a tenth of its time."""
    if exchange.watch is not None:
        with cut_on_disconnect(exchange):
            yield
    else:
        async with cancelled_on_disconnect(exchange):
            yield


async def while_connected(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work``, which is cancelled when the client leaves; body already read.

    Errors:
      ClientGoneError: the client left first.
      Exception: whatever ``work`` raises, without the exception group of a nursery.
    """
    results: list[T] = []
    failures: list[Exception] = []
    async with cancelled_on_disconnect(exchange):
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001  # raised below, without the nursery's group
            failures.append(error)
    if failures:
        raise failures[0]
    if not results:
        raise ClientGoneError("client left before its answer was computed")
    return results[0]


UNBUFFERED: Final[list[Header]] = [
    (b"content-encoding", b"identity"),
    (b"x-accel-buffering", b"no"),
]
"""Keeps compression and proxy buffers from between an event and its reader."""

HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    *UNBUFFERED,
]

DONE: Final = b"data: [DONE]\n\n"


def event(value: object, *, name: str | None = None) -> bytes:
    """One event with ``value`` as JSON; ``name`` becomes its ``event:`` line."""
    data = data_event(dumps(value))
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def data_event(data: bytes) -> bytes:
    """One event with ``data``, which holds no line break."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip; it keeps proxies and idle timeouts quiet. No line breaks in it."""
    assert "\n" not in text, text
    return b": " + text.encode() + b"\n\n"
