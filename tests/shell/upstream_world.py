"""A client of an upstream server whose connections are memory streams with a script behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from paddler_trio.net.client.upstream_address import UpstreamAddress, UpstreamTimeouts
from paddler_trio.net.client.upstream_client import UpstreamClient
from upstream_double import read_request

TIMEOUTS = UpstreamTimeouts(connect_s=3, first_byte_s=60, idle_s=30, kept_s=3)
ADDRESS = UpstreamAddress("127.0.0.1", 8080)

Handler = Callable[[trio.abc.Stream], Awaitable[None]]


@attrs.define(eq=False)
class Upstream:
    """What the other ends of the connections have seen."""

    client: UpstreamClient
    num_dialled: int = 0
    num_ended: int = 0
    """Connections whose script is over, or whose client has gone."""


@asynccontextmanager
async def upstream(
    *handlers: Handler, timeouts: UpstreamTimeouts = TIMEOUTS, bearer: bytes | None = None
) -> AsyncIterator[Upstream]:
    """Each connection gets the next handler, the last one again and again. The client runs."""

    async def serve(handle: Handler, stream: trio.abc.Stream) -> None:
        try:
            await handle(stream)
        except trio.BrokenResourceError:
            pass  # the client has gone
        finally:
            world.num_ended += 1
            await trio.aclose_forcefully(stream)

    async def dial() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.lockstep_stream_pair()
        handle = handlers[min(world.num_dialled, len(handlers) - 1)]
        world.num_dialled += 1
        nursery.start_soon(serve, handle, theirs)
        return ours

    world = Upstream(UpstreamClient(address=ADDRESS, timeouts=timeouts, dial=dial, bearer=bearer))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.client.run)
        yield world
        nursery.cancel_scope.cancel()


def answering(*answers: bytes, piece_bytes: int = 1 << 20, closes: bool = True) -> Handler:
    """One answer for each request, in pieces; after the last one the connection is closed, or is
    silent."""

    async def handle(stream: trio.abc.Stream) -> None:
        for answer in answers:
            if await read_request(stream) is None:
                return
            for start in range(0, len(answer), piece_bytes):
                await stream.send_all(answer[start : start + piece_bytes])
        if not closes:
            await stream.receive_some(1)

    return handle


async def body_of(client: UpstreamClient, target: bytes = b"/") -> bytes:
    """The body of a GET."""
    async with client.request(b"GET", target, []) as response:
        return b"".join([part.data async for part in response.body()])
