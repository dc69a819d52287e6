"""Work that ends when its client leaves.

A response that takes time runs beside a task that waits for the client's disconnect. The server
reports the end of a request as a disconnect too, so the watch must end *before* the last piece of
the response is sent: it would cancel that very send.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from paddler_trio.http.asgi import ClientGoneError, Receive

T = TypeVar("T")


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
