"""A port without TLS in front of one that has it: for peers that have none."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio


@asynccontextmanager
async def forwarder(target: str, context: ssl.SSLContext) -> AsyncIterator[str]:
    """The address of such a port on the loopback."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, partial(_forward, target, context), 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def _forward(target: str, context: ssl.SSLContext, plain: trio.SocketStream) -> None:
    host, _, port = target.rpartition(":")
    below = await trio.open_tcp_stream(host, int(port))
    encrypted = trio.SSLStream(below, context, server_hostname=host, https_compatible=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_carry, plain, encrypted, nursery.cancel_scope)
            nursery.start_soon(_carry, encrypted, plain, nursery.cancel_scope)
    finally:
        below.socket.close()


async def _carry(source: trio.abc.Stream, sink: trio.abc.Stream, both: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(65_536):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # either end may leave at any time
    both.cancel()
