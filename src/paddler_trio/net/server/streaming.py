"""Responses that take time: written in pieces, and given up when the client leaves.

A task that waits for the client's disconnect runs beside such a response. The server reports the
end of a request as a disconnect too, so the watch must end *before* the last piece is sent: it
would cancel that very send.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar

import trio

from paddler_trio.net.server.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    read_body,
)

T = TypeVar("T")

BodyWriter: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Writes one piece of a body that goes on after it."""

DIRECT_BODY: Final = "paddler_trio.direct_body"
"""The ASGI extension in which `direct_body` finds its connection."""

CLIENT_WATCH: Final = "paddler_trio.client_watch"
"""The ASGI extension in which `client_watch` finds it."""


class WritesNow(Protocol):
    """A client's connection, as results are written to it past the task of their request."""

    def write_now(self, piece: bytes) -> bool:
        """Write without waiting; whether the kernel took all of it. The rest goes out before what
        is written next. ClientGoneError."""
        ...


class ClientWatch(Protocol):
    """What a client sends, and its end: it has left, or its response has ended."""

    on_end: Callable[[], None] | None
    """Called once, in the step in which the end comes."""

    @property
    def has_ended(self) -> bool:
        """It came already."""
        ...

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it is there in one piece, and was not received; else None,
        and it is to be received."""
        ...


class DirectBody(Protocol):
    """Puts HTTP/1.1 chunks on the wire, past hypercorn and h11: two to three times as many small
    pieces a second as ordinary messages (measured)."""

    async def write(self, piece: bytes) -> None:
        """One chunk, within the write deadline; ClientGoneError when the client has left or does
        not read before the deadline."""
        ...

    def write_now(self, piece: bytes) -> bool:
        """One chunk without waiting; whether the kernel took all of it. The rest goes out before
        what is written next: await a `write` soon, of nothing if need be. ClientGoneError."""
        ...


def body_writer(scope: Scope, send: Send) -> BodyWriter:
    """The fastest way to write pieces of the response that has begun on ``scope``.

    Call it after ``http.response.start`` was sent without a ``Content-Length``. End the response
    with the ordinary last ``http.response.body``.
    """

    async def write(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    direct = direct_body(scope)
    return write if direct is None else direct.write


def direct_body(scope: Scope) -> DirectBody | None:
    """The body of the response that has begun on ``scope``, if its pieces can go past hypercorn.

    None where that is impossible: HTTP/1.0, a response with a length, another server, a client that
    has left. Send ordinary messages then.
    """
    extension = scope.get("extensions", {}).get(DIRECT_BODY)
    if extension is None:
        return None
    body: DirectBody | None = extension["open"]()
    return body


async def whole_body(
    scope: Scope, receive: Receive, *, limit_bytes: int, deadline_s: float
) -> bytes | bytearray:
    """As `read_body`, without its deadline where all of the body is there, as it nearly always is.

    Errors: those of `read_body`.
    """
    watch: ClientWatch | None = scope.get("extensions", {}).get(CLIENT_WATCH)
    body = None if watch is None else watch.whole_body()
    if body is None:
        return await read_body(receive, limit_bytes=limit_bytes, deadline_s=deadline_s)
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
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """Run the block, and what it starts in the nursery, until the client leaves.

    The end of the block cancels what still runs in the nursery. After a disconnect the code behind
    the block goes on: send nothing there that assumes a client, or look at
    ``nursery.cancel_scope.cancelled_caught``.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            watch_disconnect, receive, nursery.cancel_scope.cancel, name="client watch"
        )
        yield nursery
        nursery.cancel_scope.cancel(reason="the response is complete")


def client_watch(scope: Scope) -> ClientWatch:
    """Of the client of this request."""
    watch: ClientWatch = scope["extensions"][CLIENT_WATCH]
    return watch


@contextmanager
def cut_on_disconnect(scope: Scope) -> Iterator[None]:
    """Cancel the block when the client leaves, as `cancelled_on_disconnect` does, without a task
    that watches; the request body must have been read."""
    watch = client_watch(scope)
    with trio.CancelScope() as cut:
        watch.on_end = cut.cancel
        try:
            if watch.has_ended:
                cut.cancel(reason="the client has left")
            yield
        finally:
            watch.on_end = None


@asynccontextmanager
async def while_client_stays(scope: Scope, receive: Receive) -> AsyncIterator[None]:
    """Run the block until the client leaves: `cut_on_disconnect` where the server tells, else
    `cancelled_on_disconnect`, whose task costs a small answer a tenth of its time."""
    if CLIENT_WATCH in scope.get("extensions", {}):
        with cut_on_disconnect(scope):
            yield
    else:
        async with cancelled_on_disconnect(receive):
            yield


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work``, which is cancelled when the client leaves; body already read.

    Errors:
      ClientGoneError: the client left first.
      Exception: whatever ``work`` raises, without the exception group of a nursery.
    """
    results: list[T] = []
    failures: list[Exception] = []
    async with cancelled_on_disconnect(receive):
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001  # raised below, without the nursery's group
            failures.append(error)
    if failures:
        raise failures[0]
    if not results:
        raise ClientGoneError("client left before its answer was computed")
    return results[0]
