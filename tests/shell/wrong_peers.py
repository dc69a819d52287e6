"""Whatever may answer at a balancer's address, and an agent that dials it: real sockets."""

from __future__ import annotations

import base64
import hashlib
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

import attrs
import pytest
import trio
import trio_websocket
from structlog.testing import capture_logs
from structlog.typing import EventDict

from paddler_trio.agent.link import balancer_connection, balancer_link
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.messages import RegisterAgent, parse_balancer_message
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

Peer: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
PAGE = b"<html>" + b"not here " * 500 + b"</html>"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE)
MOVED = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(name="impatient")
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer_link, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(balancer_link, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(balancer_link, "CONNECT_S", 0.4)
    monkeypatch.setattr(balancer_connection, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(balancer_connection, "HEARTBEAT_DEADLINE_S", 0.5)
    monkeypatch.setattr(balancer_connection, "DEREGISTRATION_S", 0.3)


# ------------------------------------------------------------------------- before a handshake


def says(data: bytes, *, then_waits: bool = False) -> Peer:
    """Answers the request with these bytes, then closes or says no more."""

    async def peer(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        await stream.send_all(data)
        if then_waits:
            await until_gone(stream)

    return peer


def never_stops(beginning: bytes, more: bytes) -> Peer:
    async def peer(stream: trio.SocketStream) -> None:
        await stream.send_all(beginning)
        while True:
            await stream.send_all(more)

    return peer


async def closes_at_once(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def resets(stream: trio.SocketStream) -> None:
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def speaks_tls(stream: trio.SocketStream) -> None:
    await trio.SSLStream(
        stream, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True
    ).do_handshake()


async def silent(stream: trio.SocketStream) -> None:
    await until_gone(stream)


# -------------------------------------------------------------------------- after a handshake


async def agreed(stream: trio.SocketStream, *, subprotocol: str | None = SUBPROTOCOL) -> None:
    """A handshake by hand, so that what follows may be anything."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some(65536)
    lines = dict(line.split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
    key = next(value for name, value in lines.items() if name.lower() == b"sec-websocket-key")
    await stream.send_all(_accepting(key, subprotocol=subprotocol))


def _accepting(key: bytes, *, subprotocol: str | None, extensions: bytes = b"") -> bytes:
    accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest())
    chosen = f"sec-websocket-protocol: {subprotocol}\r\n" if subprotocol is not None else ""
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: %b\r\n%b%b\r\n" % (accept, chosen.encode(), extensions)
    )


def agrees_on(subprotocol: str | None) -> Peer:
    async def peer(stream: trio.SocketStream) -> None:
        await agreed(stream, subprotocol=subprotocol)

    return peer


def frames(data: bytes, *, then_waits: bool = False) -> Peer:
    """Agrees, says this, and closes or says no more."""

    async def peer(stream: trio.SocketStream) -> None:
        await agreed(stream)
        await stream.send_all(data)
        if then_waits:
            await until_gone(stream)

    return peer


def frame(opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0) -> bytes:
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    return head + bytes([126]) + struct.pack("!H", len(payload)) + payload


async def pings_while_it_closes(stream: trio.SocketStream) -> None:
    """Answers no ping until the agent gives up, and pings while it says goodbye."""
    await agreed(stream)
    while True:
        await stream.send_all(frame(9, b"?") * 10)
        await trio.sleep(0.005)


async def sends_without_end(stream: trio.SocketStream) -> None:
    await agreed(stream)
    await stream.send_all(frame(1, b"a" * 65535, fin=False))
    while True:
        await stream.send_all(frame(0, b"a" * 65535, fin=False))


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
PEERS: dict[str, Peer] = {
    "a page": says(OK),
    "no such page": says(NOT_FOUND),
    "garbage": says(bytes(range(256)) * 9),
    "closes at once": closes_at_once,
    "resets": resets,
    "half a handshake, then the end": says(b"HTTP/1.1 101 Switching Protocols\r\nupgr"),
    "half a handshake, then silence": says(b"HTTP/1.1 101 Switching Pro", then_waits=True),
    "TLS": speaks_tls,
    "SSH": says(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", then_waits=True),
    "SMTP": says(b"220 mail.example ESMTP\r\n", then_waits=True),
    "a wrong accept key": says(_accepting(b"another key", subprotocol=SUBPROTOCOL)),
    "no accept key": says(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    ),
    "another subprotocol": agrees_on("chat"),
    "an extension nobody offered": says(
        _accepting(b"?", subprotocol=None, extensions=b"sec-websocket-extensions: x\r\n")
    ),
    "a huge header": says(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 1_000_000),
    "a header without end": never_stops(b"HTTP/1.1 200 OK\r\nx: ", b"a" * 65536),
    "a header of blanks": says(b"HTTP/1.1 200 OK\r\nx:" + b" " * 15_000 + b"\0\r\n\r\n"),
    "headers without end": never_stops(b"HTTP/1.1 200 OK\r\n", b"x: a\r\n" * 9999),
    "a page without end": never_stops(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 65536),
    "a refusal without end": never_stops(b"HTTP/1.1 401 Unauthorized\r\n\r\n", b"a" * 65536),
    "patience without end": never_stops(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999),
    "a little patience": says(b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + NOT_FOUND),
    "moved": says(MOVED),
    "chunks that are none": says(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
    "HTTP/2": says(b"\0\0\x12\4\0\0\0\0\0" * 9),
    "silent": silent,
    "reserved bits": frames(frame(TEXT, b"{}", reserved=7)),
    "an unknown opcode": frames(frame(3, b"{}")),
    "a frame of an exabyte": frames(b"\x81\x7f" + struct.pack("!Q", 2**60), then_waits=True),
    "a length that is negative": frames(b"\x81\x7f" + struct.pack("!Q", 2**64 - 1)),
    "a message without end": sends_without_end,
    "a fragmented ping": frames(frame(PING, b"a", fin=False)),
    "a long ping": frames(frame(PING, b"a" * 126)),
    "a masked frame": frames(b"\x81\x82\0\0\0\0{}"),
    "text that is none": frames(frame(TEXT, b"\xff\xfe")),
    "a middle without a beginning": frames(frame(0, b"a")),
    "a close of one byte": frames(frame(CLOSE, b"\3")),
    "a close with a wrong code": frames(frame(CLOSE, struct.pack("!H", 1005))),
    "a close, then more": frames(frame(CLOSE, struct.pack("!H", 1000)) + frame(PING, b"a") * 9),
    "half a close": frames(b"\x88"),
    "frames that are no messages": frames(
        frame(TEXT, b"{") + frame(TEXT, b"[" * 9999) + frame(BINARY, b"\0") + frame(PONG, b"?")
    ),
    "pings while it closes": pings_while_it_closes,
}


# ---------------------------------------------------------------------------------- machinery


@attrs.define(eq=False)
class WrongPeer:
    """The first connection gets the wrong peer, each later one a balancer that takes agents."""

    peer: Peer
    context: ssl.SSLContext | None = None
    dials: int = 0
    registered: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        if self.context is not None:
            stream = cast(
                "trio.SocketStream",
                trio.SSLStream(stream, self.context, server_side=True, https_compatible=True),
            )
        self.dials += 1
        if self.dials == 1:
            await self._misbehave(stream)
            return
        try:
            async with trio.open_nursery() as nursery:
                request = await trio_websocket.wrap_server_stream(nursery, stream)
                socket = await request.accept(subprotocol=SUBPROTOCOL)
                message = parse_balancer_message(await socket.get_message())
                assert isinstance(message, RegisterAgent)
                self.registered.set()
                await trio.sleep_forever()
        except* (trio_websocket.ConnectionClosed, trio.BrokenResourceError):
            pass  # the agent was impatient, or the test is over

    async def _misbehave(self, stream: trio.SocketStream) -> None:
        try:
            with trio.move_on_after(20):
                await self.peer(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            pass  # the agent had enough of it
        finally:
            await trio.aclose_forcefully(stream)


async def dial(
    peer: Peer, context: ssl.SSLContext | None = None, tls: ClientTls = SYSTEM_TRUST
) -> list[EventDict]:
    """An agent that meets this peer first is with a balancer later; what it logged until then.

    With a ``context`` both are behind TLS.
    """
    wrong_peer = WrongPeer(peer, context)
    status = AgentStatus(1)
    requests = AgentRequests(status)
    models = ModelServer(
        status,
        threads=1,
        settings=EngineSettings(),
        drain_s=0,
        supervise=_no_engine,
        supervise_preparation=_no_engine,
        on_step=requests.on_step,
        on_engine_gone=requests.on_engine_gone,
    )
    with capture_logs() as records:
        async with trio.open_nursery() as nursery:
            requests.open(nursery, models)
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listener.socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, wrong_peer.serve, [listener])
            address = BalancerAddress("127.0.0.1", port, is_tls=context is not None)
            link = BalancerLink(address, "a1", status, models, requests, tls=tls)
            nursery.start_soon(link.run)
            with trio.fail_after(60):
                await wrong_peer.registered.wait()
            nursery.cancel_scope.cancel()
    return list(records)


def reasons(records: list[EventDict]) -> list[str]:
    """Why each connection ended."""
    return [str(r["reason"]) for r in records if r["event"] == "no link to the balancer"]


def unmasked(data: bytes) -> bytes:
    """All payloads of masked frames, one after the other."""
    payloads, place = b"", 0
    while place + 2 <= len(data):
        length, place = data[place + 1] & 127, place + 2
        if length == 126:
            length, place = struct.unpack_from("!H", data.ljust(place + 2), place)[0], place + 2
        mask, body = data[place : place + 4], data[place + 4 : place + 4 + length]
        payloads += bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))
        place += 4 + length
    return payloads


async def _no_engine(*_: object) -> None:
    raise AssertionError("nobody wants a model")


async def until_gone(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass
