"""Hostile clients against the HTTP server, with an honest one streaming beside them.

Each request here ended a stock hypercorn process, left something behind in it, or is one that
servers have been known to disagree about. After each the honest client's stream, begun before the
first of them, still delivers, and nothing is left open.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import h2.config
import h2.connection
import pytest
import trio

from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.server.streaming import cancelled_on_disconnect

PATIENCE_S = 60

WEBSOCKET = [
    b"GET /socket HTTP/1.1",
    b"Host: x",
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
]
GET = [b"GET /health HTTP/1.1", b"Host: x"]
POST = [b"POST /json HTTP/1.1", b"Host: x", b"Content-Type: application/json"]


def lines(*parts: bytes | list[bytes], body: bytes = b"") -> bytes:
    flat = [line for part in parts for line in (part if isinstance(part, list) else [part])]
    return b"\r\n".join([*flat, b"", b""]) + body


def replaced(request: list[bytes], line: bytes) -> list[bytes]:
    name = line.partition(b":")[0]
    return [*(old for old in request if old.partition(b":")[0] != name), line]


def http2(*headers: tuple[bytes, bytes]) -> bytes:
    """The preface and one request of a client that assumes HTTP/2."""
    config = h2.config.H2Configuration(
        validate_outbound_headers=False, normalize_outbound_headers=False
    )
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    connection.send_headers(1, list(headers), end_stream=False)
    connection.send_data(1, b"late", end_stream=True)
    return connection.data_to_send()


H2_GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/")]

REFUSED = {
    "a subprotocol that is not ASCII": (lines(WEBSOCKET, b"Sec-WebSocket-Protocol: \xff"), 400),
    "extensions that are not ASCII": (lines(WEBSOCKET, b"Sec-WebSocket-Extensions: \xff"), 400),
    "a connection header that is not ASCII": (lines(GET, b"Connection: Upgrade, \xff"), 400),
    "an upgrade header that is not ASCII": (lines(GET, b"Upgrade: \xff"), 400),
    "a host that is not ASCII": (lines(GET[0], b"Host: \xff"), 400),
    "a websocket key missing": (lines(WEBSOCKET[:-1]), 400),
    "a websocket version unknown": (lines(replaced(WEBSOCKET, b"Sec-WebSocket-Version: 7")), 400),
    "a websocket on no route": (lines(b"GET /x HTTP/1.1", WEBSOCKET[1:]), 403),
    "a websocket over HTTP/1.0": (lines(b"GET /socket HTTP/1.0", WEBSOCKET[1:]), 400),
    "a websocket asked for with POST": (lines(b"POST /socket HTTP/1.1", WEBSOCKET[1:]), 404),
    "frames before the handshake ended": (lines(WEBSOCKET, body=b"\x81\x80\0\0\0\0"), None),
    "HTTP/2 by prior knowledge": (http2(*H2_GET), 505),
    "HTTP/2 with a path not ASCII": (http2(*H2_GET[:3], (b":path", b"/\xff")), 505),
    "HTTP/2 with a method not ASCII": (http2((b":method", b"\xff"), *H2_GET[1:]), 505),
    "HTTP/2 CONNECT without a path": (http2((b":method", b"CONNECT"), H2_GET[2]), 505),
    "HTTP/2 by upgrade": (
        lines(GET, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"),
        200,
    ),
    "HTTP/2.0 on a request line": (lines(b"GET / HTTP/2.0", b"Host: x"), 505),
    "two different lengths": (lines(POST, b"Content-Length: 2", b"Content-Length: 3"), 400),
    "a length and chunks": (
        lines(POST, b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        400,
    ),
    "a length that is no number": (lines(POST, b"Content-Length: -1"), 400),
    "an unknown transfer encoding": (lines(POST, b"Transfer-Encoding: gzip"), 501),
    "a chunk size that is no number": (
        lines(POST, b"Transfer-Encoding: chunked", body=b"zz\r\n{}\r\n"),
        400,
    ),
    "a chunk longer than its size": (
        lines(POST, b"Transfer-Encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n"),
        400,
    ),
    "no host": (lines(GET[0]), 400),
    "two hosts": (lines(GET, b"Host: y"), 400),
    "a space before the colon": (lines(GET, b"X : y"), 400),
    "a NUL in the target": (lines(b"GET /\0 HTTP/1.1", b"Host: x"), 400),
    "a target that is not ASCII": (lines(b"GET /\xff HTTP/1.1", b"Host: x"), 400),
    "a percent sequence that is not UTF-8": (lines(b"GET /%ff HTTP/1.1", b"Host: x"), 404),
    "a path that climbs": (lines(b"GET /health/../../etc HTTP/1.1", b"Host: x"), 404),
    "CONNECT": (lines(b"CONNECT x:1 HTTP/1.1", b"Host: x"), 404),
    "OPTIONS for the whole server": (lines(b"OPTIONS * HTTP/1.1", b"Host: x"), 404),
    "HEAD of what is no probe": (lines(b"HEAD /api/v1/agents HTTP/1.1", b"Host: x"), 404),
    "headers too many": (lines(GET, [b"X: y"] * 101), 431),
    "a header too long in one packet": (lines(GET, b"X: " + b"y" * 40_000), 431),
    "a header of blanks that is refused in the end": (
        lines(GET, b"X:" + b" " * 60_000 + b"y\0"),
        400,
    ),
    "a trailer of blanks that is refused in the end": (
        lines(
            POST, b"Transfer-Encoding: chunked", body=b"0\r\nX:" + b" " * 60_000 + b"y\0\r\n\r\n"
        ),
        400,
    ),
    "a chunk header of blanks that is refused in the end": (
        lines(POST, b"Transfer-Encoding: chunked", body=b"1;" + b" " * 60_000 + b"\n\r\n"),
        400,
    ),
    "a target too long": (lines(b"GET /" + b"a/" * 4096 + b" HTTP/1.1", b"Host: x"), 414),
    "a header that never ends": (lines(GET)[:-4] + b"\r\nX: " + b"y" * 70_000, 431),
    "a body announced too long": (lines(POST, b"Content-Length: 9999999"), 413),
    "a body too long": (
        lines(POST, b"Transfer-Encoding: chunked", body=b"300000\r\n" + bytes(0x300000)),
        413,
    ),
    "JSON too deep": (lines(POST, b"Content-Length: 5000", body=b"[" * 5000), 400),
    "JSON that is not UTF-8": (lines(POST, b"Content-Length: 3", body=b'"\xff"'), 400),
    "not HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), 400),
    "empty lines alone": (b"\r\n\r\n\r\n", None),
    "half a request": (b"POST /json HTT", None),
    "half a body": (lines(POST, b"Content-Length: 10", body=b"{"), None),
    "permessage-deflate with a bad window": (
        lines(WEBSOCKET, b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=a"),
        101,
    ),
    "a websocket frame with reserved bits": (lines(WEBSOCKET, body=b"\xf1\x80\0\0\0\0"), None),
}
"""What is sent, and the status it is answered with (None: any answer, or none)."""


class Daemon:
    """An application with an honest stream that says something whenever it is asked to."""

    def __init__(self) -> None:
        self.asked: trio.MemorySendChannel[bytes]
        self.asked, self._to_say = trio.open_memory_channel[bytes](1)
        self.routes = Router()
        self.routes.http("GET", "/health", self.health)
        self.routes.http("POST", "/json", self.json)
        self.routes.http("GET", "/stream", self.stream)
        self.routes.websocket("/socket", self.socket)

    async def health(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, "OK")

    async def json(self, exchange: Exchange, params: Params) -> None:
        await send_json(exchange.send, 200, await json_body(exchange, lambda value: value))

    async def stream(self, exchange: Exchange, params: Params) -> None:
        await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
        body = exchange.open_body()
        assert body is not None
        async with cancelled_on_disconnect(exchange):
            async for word in self._to_say:
                await body.write(word)

    async def socket(self, exchange: Exchange, params: Params) -> None:
        assert (await exchange.receive())["type"] == "websocket.connect"
        await exchange.send({"type": "websocket.accept"})
        while (message := await exchange.receive())["type"] == "websocket.receive":
            await exchange.send({**message, "type": "websocket.send"})


@attrs.define
class Honest:
    """The client whose stream must not notice anything."""

    daemon: Daemon
    stream: trio.SocketStream
    heard: int = 0

    async def still_hears(self) -> None:
        self.heard += 1
        word = b"<%d>" % self.heard
        await self.daemon.asked.send(word)
        received = b""
        while word not in received:
            data = await self.stream.receive_some()
            assert data, "the honest stream was cut"
            received += data


@asynccontextmanager
async def under_attack() -> AsyncIterator[tuple[HttpServer, int, Honest]]:
    daemon = Daemon()
    limits = HttpLimits(
        header_deadline_s=PATIENCE_S, linger_s=PATIENCE_S, max_websocket_message_bytes=1000
    )
    server = HttpServer(daemon.routes, name="attacked", limits=limits)
    sockets = listen("127.0.0.1:0")
    port = sockets[0].getsockname()[1]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
            await listeners.start(partial(server.serve, sockets, connections=connections))
            try:
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(lines(b"GET /stream HTTP/1.1", b"Host: x"))
                    honest = Honest(daemon, stream)
                    await honest.still_hears()
                    yield server, port, honest
            finally:
                listeners.cancel_scope.cancel()
                connections.cancel_scope.cancel()
                server.cut_all()


async def attack(
    port: int, request: bytes, *, in_pieces: int | None = None, patience_s: float = PATIENCE_S
) -> bytes:
    """Send ``request``, close our side, and return all that comes back before the server's end.

    Our side is closed only after an answer has begun, or after ``patience_s``: closing it earlier
    would withdraw the request.
    """
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        try:
            for at in range(0, len(request), in_pieces or len(request)):
                await stream.send_all(request[at : at + (in_pieces or len(request))])
            with trio.move_on_after(patience_s):
                answer += await stream.receive_some()
            await stream.send_eof()
            while data := await stream.receive_some():
                answer += data
        except trio.BrokenResourceError:
            pass  # a reset is an answer too; what came before it is judged by the caller
    return answer


async def until_only_the_honest_client_is_left(server: HttpServer) -> None:
    while server.statistics().open_connections > 1:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("what", REFUSED)
async def test_a_hostile_request_is_answered_and_harms_nobody(what: str) -> None:
    request, status = REFUSED[what]
    async with under_attack() as (server, port, honest):
        for in_pieces in (None, 7) if len(request) < 500 else (None,):
            patience_s = 0 if status is None else PATIENCE_S
            answer = await attack(port, request, in_pieces=in_pieces, patience_s=patience_s)
            await honest.still_hears()
            await until_only_the_honest_client_is_left(server)
            if status is not None:
                assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert b"500" not in answer.split(b"\r\n")[0]
        fine = await attack(port, lines(GET))
        assert fine.startswith(b"HTTP/1.1 200 ")
        assert fine.endswith(b'"OK"')


async def test_no_random_damage_to_a_request_reaches_the_others() -> None:
    chance = random.Random(20)
    honest_requests = [
        lines(GET),
        lines(POST, b"Content-Length: 2", body=b"{}"),
        lines(POST, b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
        lines(WEBSOCKET, b"Sec-WebSocket-Protocol: a, b", body=b"\x81\x81\0\0\0\0a"),
    ]
    async with under_attack() as (server, port, honest):

        async def attack_often() -> None:
            for _ in range(15):
                request = bytearray(chance.choice(honest_requests) * chance.choice([1, 1, 3]))
                for _ in range(chance.randint(1, 4)):
                    at = chance.randrange(len(request))
                    request[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
                await attack(port, bytes(request), patience_s=0.05)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(attack_often)
        await honest.still_hears()
        await until_only_the_honest_client_is_left(server)


async def test_an_endless_websocket_message_costs_no_memory() -> None:
    async with under_attack() as (server, port, honest):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(lines(WEBSOCKET))
            await stream.receive_some()
            piece = bytes(1 << 20)
            tracemalloc.start()
            try:
                await stream.send_all(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4))
                for _ in range(32):
                    await stream.send_all(piece)
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert peak_bytes < 4_000_000
        await honest.still_hears()
        await until_only_the_honest_client_is_left(server)
        assert server.statistics().dropped_for_abuse == 1
