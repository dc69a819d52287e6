"""A server that sends exactly the bytes it was told to: for what stands between it and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import h11
import trio

from upstream_double import read_request

Script = Callable[["Exchange"], Awaitable[None]]


@attrs.define(eq=False)
class Exchange:
    """One request that has come, and the connection that it came on."""

    request: h11.Request
    body: bytes
    stream: trio.SocketStream

    @property
    def target(self) -> bytes:
        return bytes(self.request.target)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return {bytes(name): bytes(value) for name, value in self.request.headers}

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def client_gone(self) -> None:
        """Wait until the connection is closed on the other side."""
        try:
            while await self.stream.receive_some(65_536):
                pass
        except trio.BrokenResourceError:
            return


@attrs.define(eq=False)
class ScriptedServer:
    """Answers ``/health`` and ``/v1/models`` as a server without slots does, and everything else
    by its ``script``.

    Args:
      reads_bodies: of requests, before they are answered. Otherwise one is the last of its
        connection.
    """

    port: int
    script: Script
    reads_bodies: bool = True
    asked: list[Exchange] = attrs.field(factory=list, init=False)
    busy: int = attrs.field(default=0, init=False)
    most_busy: int = attrs.field(default=0, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, stream: trio.SocketStream) -> None:
        try:
            while asked := await read_request(stream, reads_body=self.reads_bodies):
                exchange = Exchange(*asked, stream)
                if exchange.target == b"/health":
                    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                elif exchange.target == b"/v1/models":
                    body = b'{"data":[{"id":"scripted"}]}'
                    await exchange.send(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                    )
                elif exchange.target in (b"/props", b"/slots", b"/metrics", b"/models"):
                    await exchange.send(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
                else:
                    await self._answer(exchange)
                    if not self.reads_bodies:
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return

    async def _answer(self, exchange: Exchange) -> None:
        self.asked.append(exchange)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await self.script(exchange)
        finally:
            self.busy -= 1


@asynccontextmanager
async def scripted_server(
    script: Script, *, reads_bodies: bool = True
) -> AsyncIterator[ScriptedServer]:
    """A server on a free port of the loopback address."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        server = ScriptedServer(port, script, reads_bodies)
        nursery.start_soon(trio.serve_listeners, server.handle, listeners)
        yield server
        nursery.cancel_scope.cancel()
