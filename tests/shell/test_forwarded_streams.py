"""Pieces of a server's stream go through the tunnel together, whole, in order, and none is late.

Server, agent and balancer are ends of real sockets; the clock is the test's.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock
from upstream_world import ADDRESS, TIMEOUTS

from paddler_trio.agent.servers.forwarded_exchange import ForwardedExchange
from paddler_trio.agent.servers.tunnel_dial import (
    MAX_HELD_BYTES,
    AgentTunnel,
    ForwardedStreams,
    is_stream,
)
from paddler_trio.net.client.upstream_client import UpstreamClient
from paddler_trio.wire.trio.tunnel_frames import (
    FrameReader,
    Kind,
    RequestHead,
    end_frame,
    read_failed,
)

INTERVAL_S = 0.025
ROUNDING_S = 1e-6
"""Trio's loop sleeps by the clock of the test, in floats."""
SERVER_SENT_EVENTS = b"text/event-stream; charset=utf-8"


@attrs.define(eq=False)
class World:
    """An exchange under way: what the server writes, and what the balancer has read."""

    clock: MockClock
    server: socket.socket
    balancer: socket.socket
    exchange: ForwardedExchange
    _frames: FrameReader = attrs.field(factory=FrameReader, init=False)

    async def sends(self, data: bytes) -> None:
        self.server.sendall(data)
        await trio.testing.wait_all_tasks_blocked()

    async def piece(self, data: bytes) -> None:
        await self.sends(b"%x\r\n%b\r\n" % (len(data), data))

    async def passes(self, seconds: float) -> None:
        self.clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    def read(self, max_bytes: int = 1 << 20) -> list[tuple[Kind, bytes]]:
        """What has come since the last call."""
        try:
            return list(self._frames.feed(self.balancer.recv(max_bytes)))
        except BlockingIOError:
            return []

    def read_pieces(self) -> list[bytes]:
        return [payload for kind, payload in self.read() if kind is Kind.BODY]


@asynccontextmanager
async def forwarding(
    *, interval_s: float = INTERVAL_S, content_type: bytes = SERVER_SENT_EVENTS
) -> AsyncIterator[World]:
    """A server that has sent the head of a chunked answer and its first piece, ``first``."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(1000)
    of_agent, server = socket.socketpair()
    of_tunnel, balancer = socket.socketpair()
    balancer.setblocking(False)

    async def dial() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return trio.SocketStream(trio.socket.from_stdlib_socket(of_agent))

    client = UpstreamClient(address=ADDRESS, timeouts=TIMEOUTS, dial=dial, bearer=None)
    streams = ForwardedStreams(interval_s)
    tunnel = AgentTunnel(trio.SocketStream(trio.socket.from_stdlib_socket(of_tunnel)))
    head = RequestHead(id="a", method=b"GET", target=b"/", headers=(), has_body=False)
    tunnel.feed(end_frame())
    exchange = ForwardedExchange(tunnel, client, streams, head)
    with server, balancer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            nursery.start_soon(streams.run)
            nursery.start_soon(exchange.run)
            world = World(clock, server, balancer, exchange)
            await trio.testing.wait_all_tasks_blocked()
            await world.sends(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: %b\r\n\r\n"
                % content_type
            )
            await world.piece(b"first")
            assert [kind for kind, _ in world.read()] == [Kind.RESPONSE, Kind.BODY]
            yield world
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(tunnel.stream)


async def test_short_passes_go_together(mock_clock: MockClock) -> None:
    async with forwarding() as world:
        for number in range(5):
            await world.passes(0.004)
            await world.piece(b"%d" % number)
            assert world.read() == [], "another one is expected in time"
        await world.passes(0.004)
        await world.piece(b"5")
        assert world.read_pieces() == [b"%d" % number for number in range(6)]


async def test_what_is_held_goes_when_it_is_due_whatever_the_server_does(
    mock_clock: MockClock,
) -> None:
    async with forwarding() as world:
        await world.passes(0.002)
        await world.piece(b"held")
        await world.passes(INTERVAL_S - 0.003)
        assert world.read() == []
        await world.passes(0.002)
        assert world.read_pieces() == [b"held"]


async def test_long_passes_go_one_by_one(mock_clock: MockClock) -> None:
    async with forwarding() as world:
        for number in range(5):
            await world.passes(0.013)
            await world.piece(b"%d" % number)
            assert world.read_pieces() == [b"%d" % number]


async def test_the_end_goes_at_once_with_what_is_held(mock_clock: MockClock) -> None:
    async with forwarding() as world:
        await world.passes(0.002)
        await world.piece(b"held")
        await world.sends(b"4\r\nlast\r\n0\r\n\r\n")
        got = world.read()
        assert [kind for kind, _ in got] == [Kind.BODY, Kind.BODY, Kind.END]
        assert [payload for _, payload in got[:2]] == [b"held", b"last"]
        assert world.exchange.is_whole


@pytest.mark.parametrize("garbage", [b"", b"no chunk at all\r\n"])
async def test_a_failure_comes_behind_what_is_held(mock_clock: MockClock, garbage: bytes) -> None:
    async with forwarding() as world:
        await world.passes(0.002)
        await world.piece(b"held")
        if garbage:
            await world.sends(garbage)
        else:
            world.server.shutdown(socket.SHUT_WR)
            await trio.testing.wait_all_tasks_blocked()
        held, failed = world.read()
        assert held == (Kind.BODY, b"held")
        assert failed[0] is Kind.FAILED
        assert not read_failed(failed[1]).may_repeat


@pytest.mark.parametrize(
    ("interval_s", "content_type"),
    [(0.0, SERVER_SENT_EVENTS), (INTERVAL_S, b"application/json"), (INTERVAL_S, b"image/png")],
)
async def test_nothing_else_is_held(
    mock_clock: MockClock, interval_s: float, content_type: bytes
) -> None:
    async with forwarding(interval_s=interval_s, content_type=content_type) as world:
        for number in range(3):
            await world.piece(b"%d" % number)
            assert world.read_pieces() == [b"%d" % number]


async def test_much_is_not_held(mock_clock: MockClock) -> None:
    async with forwarding() as world:
        await world.passes(0.002)
        await world.piece(b"x" * (MAX_HELD_BYTES // 2))
        assert world.read() == []
        await world.piece(b"y" * (MAX_HELD_BYTES // 2))
        assert [piece[:1] for piece in world.read_pieces()] == [b"x", b"y"]


@pytest.mark.parametrize("gap_s", [0.002, 2 * INTERVAL_S])
async def test_a_balancer_that_does_not_read_loses_nothing(
    mock_clock: MockClock, gap_s: float
) -> None:
    """What the tunnel does not take, of pieces that were due with the next one or by the clock,
    goes before all that comes later."""
    async with forwarding() as world:
        world.server.setblocking(False)
        unsent = body = b""
        while not unsent:  # until the agent reads no more than the balancer does
            piece = b"%d " % len(body) + b"." * 1500
            body += piece
            assert len(body) < 1 << 24, "the agent reads and reads"
            chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
            unsent = chunk[_send(world.server, chunk) :]
            await world.passes(gap_s / 2)
            await world.passes(gap_s / 2)
        got = b""
        while unsent or len(got) < len(body):
            got += b"".join(world.read_pieces())
            unsent = unsent[_send(world.server, unsent) :]
            await world.passes(INTERVAL_S)
        assert got == body
        await world.piece(b"last")
        await world.sends(b"0\r\n\r\n")
        assert [kind for kind, _ in world.read()] == [Kind.BODY, Kind.END]
        assert world.exchange.is_whole


def _send(sock: socket.socket, data: bytes) -> int:
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0


async def test_what_is_overdue_and_not_taken_ends_the_passing_on(mock_clock: MockClock) -> None:
    """The server may be silent then: nothing else would send the rest."""
    ours, balancer = socket.socketpair()
    ours.setblocking(False)
    stream_of_tunnel = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    tunnel = AgentTunnel(stream_of_tunnel)
    streams = ForwardedStreams(INTERVAL_S)
    headers = [(b"content-type", SERVER_SENT_EVENTS)]
    async with stream_of_tunnel, trio.open_nursery() as nursery:
        nursery.start_soon(streams.run)
        with balancer, streams.forward(headers, tunnel) as stream:
            stream.hold(b"first")
            assert stream.pass_on()
            mock_clock.jump(0.002)
            stream.hold(b"held")
            assert stream.pass_on()
            filling = b""
            while num_taken := _send(ours, b"." * 65_536):
                filling += b"." * num_taken
            with stream.until_full():
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(INTERVAL_S)
                await trio.sleep_forever()
            stream.hold(b"later")
            assert not stream.pass_on()
            got = balancer.recv(len(filling) + 5, socket.MSG_WAITALL)
            assert got == b"first" + filling
            await tunnel.send(stream.take_held())
            assert balancer.recv(100) == b"heldlater"
        nursery.cancel_scope.cancel()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.0, 0.04), st.integers(1, 9000)), max_size=40),
    st.booleans(),
)
def test_each_piece_comes_once_in_order_and_in_time(
    pieces: list[tuple[float, int]], ends: bool
) -> None:
    async def run() -> None:
        async with forwarding() as world:
            sent_s: list[tuple[float, bytes]] = []
            got: list[bytes] = []

            async def wait_until(at_s: float) -> None:
                """In steps in which nothing may become late."""
                while True:
                    oldest = [sent for sent, _ in sent_s[len(got) :]]
                    due_s = oldest[0] + INTERVAL_S if oldest else at_s
                    step_s = min(due_s, at_s) - trio.current_time()
                    await world.passes(max(0.0, step_s) + ROUNDING_S)
                    got.extend(world.read_pieces())
                    now_s = trio.current_time()
                    late = [sent for sent, _ in sent_s[len(got) :] if now_s > sent + INTERVAL_S]
                    assert not late
                    if now_s >= at_s:
                        return

            for gap_s, num_bytes in pieces:
                await wait_until(trio.current_time() + gap_s)
                data = bytes([65 + len(sent_s) % 26]) * num_bytes
                sent_s.append((trio.current_time(), data))
                await world.piece(data)
                got.extend(world.read_pieces())
            if ends:
                await world.sends(b"0\r\n\r\n")
                got.extend(world.read_pieces())
            else:
                await wait_until(trio.current_time() + INTERVAL_S)
            assert got == [data for _, data in sent_s]

    trio.run(run, clock=MockClock())


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream ; charset=utf-8", True),
        (b"application/x-ndjson", True),
        (b"application/json", False),
        (b"text/event-streams", False),
        (b"", False),
    ],
)
def test_streams_are_known_by_their_type(content_type: bytes, is_one: bool) -> None:
    assert is_stream([(b"X", b"y"), (b"CONTENT-TYPE", content_type)]) is is_one
    assert not is_stream([])
