"""An HTTP server on a real loopback socket, clients of it, and applications to serve.

With `over_tls` the same tests run over TLS: the server has it, and so have all clients.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from certificates import Authority
from paddler_trio.net.server.asgi import read_body, send_text
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.json_body import Inflating
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.server.streaming import watch_disconnect
from paddler_trio.net.tls.server_context import TlsFiles
from paddler_trio.net.tls.server_tls import ServerTls

PATIENCE_S = 60
"""How long a test waits for what must happen; none is expected to come near it."""

LARGE = b"x" * 65_536


@attrs.frozen
class Served:
    server: HttpServer
    address: str
    port: int
    listeners: trio.Nursery
    connections: trio.Nursery
    clients: list[Client] = attrs.field(factory=list)

    async def connect(self, *, handshake: bool = True, source: str | None = None) -> Client:
        """A client's connection, from the address ``source``."""
        stream: trio.SocketStream | EncryptedStream
        stream = await trio.open_tcp_stream("127.0.0.1", self.port, local_address=source)
        if _tls is not None and handshake:
            stream = await _tls.over(stream)
        self.clients.append(Client(stream))
        return self.clients[-1]

    @asynccontextmanager
    async def websocket(self, path: str) -> AsyncIterator[WebSocketConnection]:
        client = await self.connect()
        async with trio.open_nursery() as nursery:
            sock = await wrap_client_stream(nursery, client.stream, self.address, path)
            yield sock
            await sock.aclose()


@attrs.frozen
class WorldTls:
    """``server`` is what servers show, ``trusting`` what clients trust it with."""

    server: ServerTls
    trusting: ssl.SSLContext

    async def over(self, stream: trio.SocketStream) -> EncryptedStream:
        """A client's connection once both sides have finished its handshake."""
        finished = self.server.handshakes
        encrypted = await EncryptedStream.over(stream, self.trusting)
        await until(lambda: self.server.handshakes > finished)
        return encrypted


_tls: WorldTls | None = None


@contextmanager
def over_tls(folder: Path) -> Iterator[WorldTls]:
    """All of the world that is made in the block has TLS; the certificates lie in ``folder``."""
    global _tls
    authority = Authority.make(folder)
    pair = authority.sign()
    server = ServerTls.read(TlsFiles(pair.cert, pair.key))
    _tls = WorldTls(server, authority.client_context())
    try:
        yield _tls
    finally:
        _tls = None


@attrs.frozen
class EncryptedStream(trio.abc.HalfCloseableStream):
    """A client's TLS; its ends are those of the socket below."""

    below: trio.SocketStream
    records: trio.SSLStream[trio.SocketStream]

    @classmethod
    async def over(cls, below: trio.SocketStream, context: ssl.SSLContext) -> EncryptedStream:
        records = trio.SSLStream(below, context, server_hostname="localhost", https_compatible=True)
        try:
            await records.do_handshake()
        except BaseException:
            below.socket.close()
            raise
        return cls(below, records)

    @property
    def socket(self) -> trio.socket.SocketType:
        return self.below.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.records.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.records.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.records.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self.below.send_eof()

    async def aclose(self) -> None:
        await self.below.aclose()


@attrs.define
class Client:
    """A client that writes bytes and reads what it expects."""

    stream: trio.SocketStream | EncryptedStream
    received: bytearray = attrs.field(factory=bytearray)

    async def get(self, path: str, *headers: str, version: str = "1.1") -> None:
        lines = [f"GET {path} HTTP/{version}", "Host: x", *headers, "", ""]
        await self.stream.send_all("\r\n".join(lines).encode())

    async def read_until(self, end: bytes) -> bytes:
        """Return what came up to and including ``end``; keep the rest."""
        while (at := self.received.find(end)) < 0:
            data = await self.stream.receive_some(65_536)
            assert data, f"connection ended before {end!r}: {bytes(self.received)!r}"
            self.received += data
        at += len(end)
        found = bytes(self.received[:at])
        del self.received[:at]
        return found

    async def response(self) -> tuple[int, bytes, bytes]:
        """Return status, header and body of a response with a Content-Length."""
        head = await self.read_until(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        size_bytes = int(length[1])
        while len(self.received) < size_bytes:
            data = await self.stream.receive_some(65_536)
            assert data, "connection ended inside a body"
            self.received += data
        body = bytes(self.received[:size_bytes])
        del self.received[:size_bytes]
        return int(head.split()[1]), head, body

    async def send_until_refused(self) -> None:
        while True:
            await self.stream.send_all(LARGE)

    async def read_to_end(self) -> bytes:
        while data := await self.stream.receive_some(65_536):
            self.received += data
        return bytes(self.received)


@asynccontextmanager
async def serving(
    app: App,
    *,
    passes: Callable[[str], bool] = lambda path: False,
    forwards: bool = False,
    tls: ServerTls | None = None,
    **limits: Any,
) -> AsyncIterator[Served]:
    server = HttpServer(
        app,
        name="test",
        limits=HttpLimits(**limits),
        passes=passes,
        forwards=forwards,
        tls=tls or (None if _tls is None else _tls.server),
    )
    sockets = listen("127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
            start = partial(server.serve, sockets, connections=connections)
            (address,) = await listeners.start(start)
            port = int(address.rpartition(":")[2])
            served = Served(server, address, port, listeners, connections)
            try:
                yield served
            finally:
                for client in served.clients:
                    client.stream.socket.close()
                listeners.cancel_scope.cancel()
                connections.cancel_scope.cancel()
                server.cut_all()


def inflated(body: bytes, encoding: bytes, *, limit_bytes: int) -> bytearray:
    """A compressed body, inflated at once; HttpProblem if it cannot be."""
    inflating = Inflating.of(body, encoding, limit_bytes=limit_bytes)
    assert inflating is not None
    text = inflating.start()
    return text if inflating.is_complete else inflating.finish()


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until ``condition`` holds; the serving test's patience bounds it."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def hello(exchange: Exchange) -> None:
    await read_body(exchange.receive, limit_bytes=1_000_000, deadline_s=PATIENCE_S)
    await send_text(exchange.send, 200, f"hello {exchange.path}")


class Waiter:
    """Answers each request when told to, unless its client leaves first."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.answer = trio.Event()
        self.gone = trio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await read_body(exchange.receive, limit_bytes=1000, deadline_s=PATIENCE_S)
        self.entered.set()
        async with trio.open_nursery() as nursery:

            def on_gone() -> None:
                self.gone.set()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch_disconnect, exchange.receive, on_gone)
            await self.answer.wait()
            nursery.cancel_scope.cancel()
        if not self.gone.is_set():
            await send_text(exchange.send, 200, "waited")
