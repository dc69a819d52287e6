"""A server behind agents: an honest one, and a hostile one where a request asks for it.

It stands on as many ports as there are agents with ``--upstream``. A request whose query has an
``act`` is answered as a broken or hostile server would, ``size`` bytes or pieces of it; any other
as a small llama-server does. It is a process of its own, because the attacker is busy and what it
paces would come late; its memory is bounded, and it ends with the one that started it.

    python benchmarks/attack_server.py PORTS

Nobody may ask for ``SMUGGLED``: where a proxy takes a part of one request for another one, it is
asked for, and everything is answered with 418 from then on.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import attrs
import trio

SLOTS = 16
TOKEN_S = 0.01
MOST_TOKENS = 1000
SMUGGLED = "/smuggled"
STORY = "Once upon a time"
ADDRESS_SPACE_BYTES = 1 << 30
READ_BYTES = 1 << 18
READ_AS_JSON_BYTES = 1 << 16
BLOCK = bytes(1 << 16)
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENTS = CHUNKED.replace(b"text/plain", b"text/event-stream")
_AT_ONCE = struct.pack("ii", 1, 0)
"""``SO_LINGER``: a close that resets."""
_BOUNDED = Path(__file__).with_name("attack_bounded.py")
_SLOT_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/realtime")


@attrs.frozen(eq=False)
class AttackServer:
    """The process, and the ports on loopback on which it listens; end it with :meth:`end`."""

    process: subprocess.Popen[str]
    ports: Sequence[int]

    @classmethod
    def start(cls, num_ports: int) -> AttackServer:
        bounded = (sys.executable, str(_BOUNDED), str(ADDRESS_SPACE_BYTES))
        process = subprocess.Popen(
            [*bounded, sys.executable, str(Path(__file__)), str(num_ports)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        return cls(process, json.loads(process.stdout.readline() or "[]"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


# --- in the process ---------------------------------------------------------------------------


@attrs.define
class Place:
    """One port: how many of its slots are busy, and whether it was ever asked for ``SMUGGLED``."""

    busy: int = 0
    was_smuggled: bool = False


@attrs.define(eq=False)
class Exchange:
    """One request that has come, as far as it was read, and the connection that it came on."""

    stream: trio.SocketStream
    place: Place
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    """Its first ``READ_AS_JSON_BYTES``."""
    body_bytes: int = 0

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, status: int, body: bytes, more: str = "") -> None:
        """A whole answer of known length."""
        lines = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n{more}"
        await self.send(f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def until_left(self) -> None:
        while await self.stream.receive_some(READ_BYTES):
            pass

    def asked(self) -> dict[str, Any]:
        """Its body, if that is a short object of JSON."""
        try:
            asked = json.loads(self.body) if len(self.body) == self.body_bytes else {}
        except (ValueError, RecursionError):
            return {}
        return asked if isinstance(asked, dict) else {}


@attrs.define(eq=False)
class Reader:
    """Requests one after the other. Agents send a body with its length, and nothing ahead."""

    stream: trio.SocketStream
    place: Place
    _received: bytes = b""

    async def request(self) -> Exchange | None:
        """The next one, whole; None when the agent closed."""
        while b"\r\n\r\n" not in self._received:
            data = await self.stream.receive_some(READ_BYTES)
            if not data:
                return None
            self._received += data
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        path, _, query = target.partition("?")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        exchange = Exchange(self.stream, self.place, method, path, dict(parse_qsl(query)), headers)
        if "early" not in exchange.query.get("act", ""):
            await self._read_body(exchange, int(headers.get("content-length", "0")))
        return exchange

    async def _read_body(self, exchange: Exchange, length: int) -> None:
        exchange.body_bytes = length
        while True:
            taken, self._received = self._received[:length], self._received[length:]
            length -= len(taken)
            room = READ_AS_JSON_BYTES - len(exchange.body)
            exchange.body += taken[: max(room, 0)]
            if not length:
                return
            self._received = await self.stream.receive_some(READ_BYTES)
            if not self._received:
                raise trio.BrokenResourceError("the agent gave it up")


# --- honest answers -----------------------------------------------------------------------------


async def _honest(exchange: Exchange, _: int) -> bool:
    """As llama-server; True if another request may follow."""
    slots = [{"id": n, "is_processing": n < exchange.place.busy} for n in range(SLOTS)]
    known: dict[str, object] = {
        "/health": {"status": "ok"},
        "/props": {"total_slots": SLOTS, "build_info": "b1"},
        "/v1/models": {"data": [{"id": "attacked"}]},
        "/slots": slots,
    }
    if exchange.path in known and exchange.method == "GET":
        await exchange.answer(200, json.dumps(known[exchange.path]).encode())
    elif exchange.path == "/v1/chat/completions" and exchange.method == "POST":
        await _chat(exchange)
    elif exchange.path == "/v1/completions" and exchange.method == "POST":
        await exchange.answer(200, json.dumps({"choices": [{"text": STORY}]}).encode())
    else:
        await exchange.answer(404, b'{"error":{"message":"File Not Found"}}')
    return True


async def _chat(exchange: Exchange) -> None:
    asked = exchange.asked()
    if not asked.get("stream"):
        text = (asked.get("guided_choice") or [STORY])[0]
        message = {"role": "assistant", "content": text}
        await exchange.answer(200, json.dumps({"choices": [{"message": message}]}).encode())
        return
    await exchange.send(_EVENTS)
    event = json.dumps({"choices": [{"delta": {"content": "word "}}]}).encode()
    for _ in range(min(int(asked.get("max_tokens", 16)), MOST_TOKENS)):
        await exchange.send(_event(event))
        await trio.sleep(TOKEN_S)
    await exchange.send(_event(b"[DONE]") + b"0\r\n\r\n")


def _event(data: bytes) -> bytes:
    return _chunk(b"data: %b\n\n" % data)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _sized(exchange: Exchange, size: int) -> bool:
    """An honest answer of so many bytes."""
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    for start in range(0, size, len(BLOCK)):
        await exchange.send(BLOCK[: size - start])
    return True


async def _events(exchange: Exchange, size: int) -> bool:
    """An honest stream of so many events, as fast as they are taken."""
    await exchange.send(_EVENTS)
    for _ in range(size):
        await exchange.send(_event(b'{"choices":[{"delta":{"content":"a "}}]}'))
    await exchange.send(b"0\r\n\r\n")
    return True


# --- hostile ones -------------------------------------------------------------------------------


async def _silence(exchange: Exchange, _: int) -> bool:
    """Nothing, for ever."""
    await exchange.until_left()
    return False


async def _letters(exchange: Exchange, size: int) -> bool:
    """Head and body, one byte at a time."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size:
        await exchange.send(bytes([byte]))
    return True


async def _short(exchange: Exchange, size: int) -> bool:
    """The end of the connection before the end of the body."""
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (size + 10))
    await exchange.send(b"a" * size)
    return False


async def _long(exchange: Exchange, size: int) -> bool:
    """More than the body, in the words of another answer."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
    await exchange.send(answer + answer * max(size // len(answer), 1))
    return True


async def _two_lengths(exchange: Exchange, size: int) -> bool:
    """Two lengths that differ."""
    lengths = b"Content-Length: %d\r\nContent-Length: %d\r\n" % (size, size + 1)
    await exchange.send(b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\n" + b"a" * size)
    return False


async def _two_framings(exchange: Exchange, size: int) -> bool:
    """A length and chunks."""
    both = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n")
    await exchange.send(both + _chunk(b"a" * max(size, 1)) + b"0\r\n\r\n")
    return False


async def _small(exchange: Exchange, size: int) -> bool:
    """So many chunks of one byte."""
    await exchange.send(CHUNKED)
    for start in range(0, size, 4096):
        await exchange.send(b"1\r\na\r\n" * min(4096, size - start))
    await exchange.send(b"0\r\n\r\n")
    return True


async def _endless(exchange: Exchange, size: int) -> bool:
    """Chunks of ``size`` bytes, for ever."""
    chunk = _chunk(b"a" * max(size, 1))
    together = chunk * (len(BLOCK) // len(chunk) + 1)
    await exchange.send(CHUNKED)
    while True:
        await exchange.send(together)


async def _extensions(exchange: Exchange, size: int) -> bool:
    """One chunk with an extension of so many bytes."""
    await exchange.send(CHUNKED + b"1;" + b"x" * size + b"\r\na\r\n0\r\n\r\n")
    return False


async def _overflow(exchange: Exchange, _: int) -> bool:
    """A chunk of more bytes than numbers have."""
    await exchange.send(CHUNKED + b"f" * 40 + b"\r\na\r\n")
    return False


async def _early(exchange: Exchange, _: int) -> bool:
    """An answer before the body was read, which never is."""
    await exchange.answer(200, b'{"early":true}')
    await trio.sleep(1.0)
    return False


async def _informational(exchange: Exchange, size: int) -> bool:
    """So many answers that are none yet."""
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
    for start in range(0, size, 1000):
        await exchange.send(hint * min(1000, size - start))
    await exchange.answer(200, b"{}")
    return False


async def _one_field(exchange: Exchange, size: int) -> bool:
    """A head of one long field."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Long: "
    await exchange.send(head + b"a " * (size // 2) + b"\r\n\r\n")
    return False


async def _many_fields(exchange: Exchange, size: int) -> bool:
    """A head of very many fields."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
    await exchange.send(head + b"A: b\r\n" * (size // 6) + b"\r\n")
    return False


async def _named_fields(exchange: Exchange, size: int) -> bool:
    """Fields of the connection that name what frames the body, and very many others."""
    named = b"content-length, transfer-encoding, date" + b", x" * (min(size, 20_000) // 3)
    body = b"Content-Length: 4\r\n\r\nfine"
    await exchange.send(b"HTTP/1.1 200 OK\r\nConnection: " + named + b"\r\n" + body)
    return True


async def _garbage(exchange: Exchange, size: int) -> bool:
    """Bytes by chance."""
    await exchange.send(random.Random(size).randbytes(max(size, 1)))
    return False


async def _reset(exchange: Exchange, size: int) -> bool:
    """A reset in the middle of a stream of events."""
    await exchange.send(_EVENTS + _event(b"a" * max(size, 1)))
    await trio.sleep(TOKEN_S)
    exchange.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    return False


async def _trailers(exchange: Exchange, size: int) -> bool:
    """So many bytes of trailers, some of which frame a body."""
    trailers = b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n" + b"A: b\r\n" * (size // 6)
    await exchange.send(CHUNKED + _chunk(b"a") + b"0\r\n" + trailers + b"\r\n")
    return True


async def _old(exchange: Exchange, size: int) -> bool:
    """HTTP/1.0, where the end of the connection ends the body."""
    await exchange.send(b"HTTP/1.0 200 OK\r\n\r\n" + b"a" * size)
    return False


async def _switch(exchange: Exchange, size: int) -> bool:
    """Another protocol that nobody asked for."""
    head = b"HTTP/1.1 101 Now\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    await exchange.send(head + b"\x82\x05Hello" * max(size // 7, 1))
    await exchange.until_left()
    return False


async def _first_byte(exchange: Exchange, _: int) -> bool:
    await exchange.send(b"H")
    return False


async def _echo(exchange: Exchange, _: int) -> bool:
    """A WebSocket whose frames come back as they are."""
    await exchange.send(_open(exchange))
    while data := await exchange.stream.receive_some(READ_BYTES):
        await exchange.send(data)
    return False


async def _deaf(exchange: Exchange, _: int) -> bool:
    """A WebSocket of which nothing is read."""
    await exchange.send(_open(exchange))
    await trio.sleep(3.0)
    return False


async def _talk(exchange: Exchange, _: int) -> bool:
    """A WebSocket that never stops."""
    await exchange.send(_open(exchange))
    while True:
        await exchange.send(b"\x82\x05Hello" * 1000)


async def _refuse(exchange: Exchange, _: int) -> bool:
    await exchange.answer(403, b'{"error":{"message":"no WebSockets for you"}}')
    return True


def _open(exchange: Exchange) -> bytes:
    """Nobody here checks the key: what is agreed on is between both ends."""
    key = exchange.headers.get("sec-websocket-key", "")
    return (
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Accept: {key[:60]}\r\n\r\n"
    ).encode("latin-1")


Act: TypeAlias = Callable[[Exchange, int], Awaitable[bool]]
"""Answers a request, ``size`` bytes or pieces; True if another one may follow."""
ACTS: Mapping[str, Act] = {
    "deaf": _deaf,
    "early": _early,
    "echo": _echo,
    "endless": _endless,
    "events": _events,
    "extensions": _extensions,
    "first-byte": _first_byte,
    "garbage": _garbage,
    "informational": _informational,
    "letters": _letters,
    "long": _long,
    "many-fields": _many_fields,
    "named-fields": _named_fields,
    "old": _old,
    "one-field": _one_field,
    "overflow": _overflow,
    "refuse": _refuse,
    "reset": _reset,
    "short": _short,
    "silence": _silence,
    "sized": _sized,
    "small": _small,
    "switch": _switch,
    "talk": _talk,
    "trailers": _trailers,
    "two-framings": _two_framings,
    "two-lengths": _two_lengths,
}
"""What the query may name as its ``act``."""


async def _serve(place: Place, stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = Reader(stream, place)
    try:
        while (exchange := await reader.request()) is not None:
            if not await _answer(exchange):
                return
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def _answer(exchange: Exchange) -> bool:
    place = exchange.place
    place.was_smuggled |= exchange.path == SMUGGLED
    if place.was_smuggled:
        await exchange.answer(418, b'{"error":{"message":"a request was smuggled"}}')
        return False
    act = ACTS.get(exchange.query.get("act", ""), _honest)
    takes_slot = exchange.path in _SLOT_PATHS
    place.busy += takes_slot
    try:
        return await act(exchange, int(exchange.query.get("size", "0")))
    finally:
        place.busy -= takes_slot


async def _listen(num_ports: int) -> None:
    async with trio.open_nursery() as nursery:
        ports = []
        for _ in range(num_ports):
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=512)
            ports.append(listeners[0].socket.getsockname()[1])
            nursery.start_soon(trio.serve_listeners, partial(_serve, Place()), listeners)
        print(json.dumps(ports), flush=True)


if __name__ == "__main__":
    trio.run(_listen, int(sys.argv[1]))
