"""What TLS costs: the same load over plain and encrypted connections, side by side.

    .venv/bin/python benchmarks/tls_throughput.py [--rounds 7] [--seconds 1]

One server of ours in a process of its own, an application that only writes, a client with as little
Python as possible. Each round measures plain, then TLS, then the next kind of load; what else the
machine does falls on both. The target for streams and requests is a ratio of 0.7 at the median.

Large bodies have none: over the loopback they go as fast as memory is copied, and encrypting takes
longer than that on any processor. Their rates are here to be compared with those of networks. The
client decrypts too, in its own process, and so takes a share of the second core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from certificates import Authority  # found only now
from paddler_trio.net.server.asgi import read_body, send_text
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.server.streaming import body_writer
from paddler_trio.net.tls.server_context import TlsFiles
from paddler_trio.net.tls.server_tls import ServerTls

TARGET = 0.7
TOKENS = 2000
TOKEN = json.dumps({"Response": {"request_id": "7d3e", "response": {"GeneratedToken": {
    "ContentToken": " word"}}}}).encode() + b"\n"  # fmt: skip
LARGE = bytes(262_144)
LARGE_TIMES = 128
PING = b"\x89\0"
"""Of ours, at any time on a WebSocket."""
START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"", "more_body": False}


async def app(exchange: Exchange) -> None:
    """``/tokens``, ``/large``, ``/small``, an upload, and a WebSocket of tokens."""
    receive, send = exchange.receive, exchange.send
    if exchange.is_websocket:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            for _ in range(TOKENS):
                await exchange.send_encoded(TOKEN)
            await exchange.send_encoded(b"END")
        return
    if exchange.path == "/upload":
        body = await read_body(receive, limit_bytes=2**30, deadline_s=60)
        await send_text(send, 200, str(len(body)))
    elif exchange.path == "/small":
        await send_text(send, 200, "hello")
    else:
        await send(START)
        write_piece = body_writer(exchange)
        piece, times = (TOKEN, TOKENS) if exchange.path == "/tokens" else (LARGE, LARGE_TIMES)
        for _ in range(times):
            await write_piece(piece)
        await send(END)


def serve(started: Connection, files: TlsFiles) -> None:
    """Both servers in one process, until it is ended."""

    async def run() -> None:
        plain = HttpServer(app, name="plain")
        encrypted = HttpServer(app, name="tls", tls=ServerTls.read(files))
        async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
            addresses = []
            for server in (plain, encrypted):
                serving = partial(server.serve, listen("127.0.0.1:0"), connections=connections)
                addresses += await listeners.start(serving)
            started.send(addresses)

    trio.run(run)


class Client:
    """A blocking connection that counts bytes and looks for an end."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        self.buffer = memoryview(bytearray(1 << 20))

    def ask(self, request: bytes, end: bytes) -> None:
        """Send, and read until what was read ends so."""
        self.socket.sendall(request)
        tail = b""
        while not tail.endswith((end, end + PING)):
            count = self.socket.recv_into(self.buffer)
            assert count, "the connection ended"
            tail = (tail + bytes(self.buffer[max(0, count - 64) : count]))[-64:]


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


LAST_CHUNK = b"\r\n0\r\n\r\n"
UPLOAD = bytes(16 << 20)
PUT = b"PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(UPLOAD)
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
GO = b"\x81\x82\0\0\0\0go"
LAST_FRAME = b"\x81\x03END"

LOADS: dict[str, tuple[Callable[[Client], None], float, str]] = {
    "HTTP, a stream of tokens": (lambda c: c.ask(get("/tokens"), LAST_CHUNK), TOKENS, "tokens/s"),
    "WebSocket, a stream of tokens": (lambda c: c.ask(GO, LAST_FRAME), TOKENS, "tokens/s"),
    "HTTP, requests with small answers": (lambda c: c.ask(get("/small"), b"hello"), 1, "req/s"),
    "HTTP, a large answer": (
        lambda c: c.ask(get("/large"), LAST_CHUNK), len(LARGE) * LARGE_TIMES / 1e6, "MB/s"
    ),
    "HTTP, an upload": (
        lambda c: c.ask(PUT + UPLOAD, str(len(UPLOAD)).encode()), len(UPLOAD) / 1e6, "MB/s"
    ),
}  # fmt: skip


def rate(client: Client, name: str, seconds: float) -> float:
    """How many units a second, for at least so long."""
    load, units, _ = LOADS[name]
    began_s, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < seconds:
        load(client)
        count += 1
    return count * units / took_s


def connected(address: str, context: ssl.SSLContext | None, name: str) -> Client:
    client = Client(address, context)
    if "WebSocket" in name:
        client.ask(UPGRADE, b"\r\n\r\n")
    return client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args()
    authority = Authority.make(Path(tempfile.mkdtemp(prefix="tls-throughput-")))
    pair, context = authority.sign(), authority.client_context()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs, TlsFiles(pair.cert, pair.key)))
    server.start()
    try:
        plain, encrypted = ours.recv()
        handshakes(encrypted, context, options.seconds)
        is_met = True
        for name, (_, _, unit) in LOADS.items():
            rates: dict[str, list[float]] = {"plain": [], "tls": []}
            for _ in range(options.rounds):
                for kind, address, used in (("plain", plain, None), ("tls", encrypted, context)):
                    client = connected(address, used, name)
                    rates[kind].append(rate(client, name, options.seconds))
                    client.socket.close()
            ratio = statistics.median(
                b / a for a, b in zip(rates["plain"], rates["tls"], strict=True)
            )
            is_met &= ratio >= TARGET or unit == "MB/s"
            medians = [statistics.median(each) for each in rates.values()]
            print(f"{name:36} {medians[0]:10,.0f} {medians[1]:10,.0f} {unit:9} {ratio:5.2f}")
        print(f"target {TARGET} for streams and requests: {'met' if is_met else 'MISSED'}")
    finally:
        server.terminate()
        server.join()
    sys.exit(0 if is_met else 1)


def handshakes(address: str, context: ssl.SSLContext, seconds: float) -> None:
    """How many new connections with one request each a client gets in a second."""
    began_s, count = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < seconds:
        client = Client(address, context)
        client.ask(get("/small"), b"hello")
        client.socket.close()
        count += 1
    print(f"{'connections with TLS, one after the other':36} {count / took_s:,.0f} /s")


if __name__ == "__main__":
    main()
