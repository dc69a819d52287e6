"""An agent's exchanges in one tunnel, with a balancer that is quicker than the agent."""

from __future__ import annotations

import socket
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock
from upstream_world import answering, upstream

from paddler_trio.agent.servers.forwarded_exchange import ForwardedExchange
from paddler_trio.agent.servers.tunnel_dial import AgentTunnel, ForwardedStreams
from paddler_trio.errors import leaves
from paddler_trio.net.client.upstream_client import UpstreamClient
from paddler_trio.wire.trio.tunnel_frames import (
    FrameReader,
    Kind,
    RequestHead,
    body_frames,
    end_frame,
    read_request,
    request_frame,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


def request(wire_id: str) -> bytes:
    head = RequestHead(id=wire_id, method=b"GET", target=b"/", headers=(), has_body=False)
    return request_frame(head) + end_frame()


@attrs.define(eq=False)
class HastyBalancer(trio.abc.Stream):
    """The agent's end of a tunnel: the next request is there before a write of the end returns."""

    _stream: trio.abc.Stream
    _theirs: trio.abc.Stream
    _requests: list[bytes]
    _frames: FrameReader = attrs.field(factory=FrameReader, init=False)
    received: list[tuple[Kind, bytes]] = attrs.field(factory=list, init=False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        frames = list(self._frames.feed(bytes(data)))
        self.received += frames
        if any(kind is Kind.END for kind, _ in frames) and self._requests:
            await self._theirs.send_all(self._requests.pop(0))
            await trio.testing.wait_all_tasks_blocked()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def run_next(tunnel: AgentTunnel, client: UpstreamClient) -> ForwardedExchange:
    frame = await tunnel.next_frame()
    assert frame is not None
    assert frame[0] is Kind.REQUEST
    exchange = ForwardedExchange(tunnel, client, ForwardedStreams(0.0), read_request(frame[1]))
    assert await exchange.run()
    return exchange


@pytest.mark.parametrize("answer", [OK, CHUNKS])
@pytest.mark.parametrize("piece_bytes", [7, 1 << 20])
async def test_a_request_that_comes_before_the_answer_was_written_is_the_next_exchange(
    autojump_clock: MockClock, answer: bytes, piece_bytes: int
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    stream = HastyBalancer(ours, theirs, [request("b"), request("c")])
    await theirs.send_all(request("a"))
    handler = answering(answer, answer, answer, piece_bytes=piece_bytes)
    async with upstream(handler) as world, trio.open_nursery() as nursery:
        tunnel = AgentTunnel(stream)
        nursery.start_soon(tunnel.run)
        exchanges = [await run_next(tunnel, world.client) for _ in range(3)]
        nursery.cancel_scope.cancel()
    assert [each.head.id for each in exchanges] == ["a", "b", "c"]
    assert all(each.is_whole for each in exchanges)
    assert [kind for kind, _ in stream.received].count(Kind.END) == 3
    bodies = b"".join(payload for kind, payload in stream.received if kind is Kind.BODY)
    assert bodies == b"hello" * 3


async def test_a_request_in_the_middle_of_an_answer_breaks_the_rules(
    autojump_clock: MockClock,
) -> None:
    async def silent(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    ours, theirs = trio.testing.memory_stream_pair()

    async def interrupted() -> None:
        async with upstream(silent) as world, trio.open_nursery() as nursery:
            tunnel = AgentTunnel(ours)
            nursery.start_soon(tunnel.run)
            nursery.start_soon(run_next, tunnel, world.client)
            await theirs.send_all(request("a"))
            await trio.testing.wait_all_tasks_blocked()
            await theirs.send_all(request("b"))

    with pytest.raises(ExceptionGroup) as caught:
        await interrupted()
    assert [str(error) for error in leaves(caught.value)] == [
        "REQUEST in the middle of an answer @ tunnel"
    ]


async def test_a_request_without_a_body_has_none_though_its_end_comes_a_read_later(
    autojump_clock: MockClock,
) -> None:
    heard: list[bytes] = []

    async def server(stream: trio.abc.Stream) -> None:
        heard.append(bytes(await stream.receive_some(65_536)))
        await stream.send_all(OK)

    ours, theirs = trio.testing.memory_stream_pair()
    whole = request("a")
    async with upstream(server) as world, trio.open_nursery() as nursery:
        tunnel = AgentTunnel(ours)
        nursery.start_soon(tunnel.run)
        nursery.start_soon(run_next, tunnel, world.client)
        await theirs.send_all(whole[: -len(end_frame())])
        await trio.testing.wait_all_tasks_blocked()
        await theirs.send_all(end_frame())
        frames = FrameReader()
        answer: list[tuple[Kind, bytes]] = []
        while not answer or answer[-1][0] is not Kind.END:
            answer += frames.feed(bytes(await theirs.receive_some()))
        nursery.cancel_scope.cancel()
    assert heard == [b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"]
    assert [kind for kind, _ in answer] == [Kind.RESPONSE, Kind.BODY, Kind.END]


async def test_an_upload_that_is_given_up_is_noticed_behind_what_the_server_does_not_take() -> None:
    async def takes_nothing(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        async with (
            upstream(takes_nothing) as world,
            trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream,
            trio.open_nursery() as nursery,
        ):
            tunnel = AgentTunnel(stream)
            headers = ((b"content-length", b"99000000"),)
            head = RequestHead(id="a", method=b"PUT", target=b"/", headers=headers, has_body=True)
            exchange = ForwardedExchange(tunnel, world.client, ForwardedStreams(0.0), head)
            ended: list[bool] = []

            async def run() -> None:
                ended.append(await exchange.run())
                nursery.cancel_scope.cancel()

            nursery.start_soon(tunnel.run)
            nursery.start_soon(run)
            sent = 0
            while (now := sent_on(theirs, sent)) > sent:
                sent = now
                await trio.testing.wait_all_tasks_blocked()
            assert not ended
            theirs.close()
            nursery.cancel_scope.deadline = trio.current_time() + 5
        assert ended == [False], "no other exchange"
        assert world.num_ended == 1, "the server knows, too"


def sent_on(sock: socket.socket, sent: int) -> int:
    """As many bytes of the frames of a body as fit into it, behind those that were sent."""
    frame = body_frames(b"x" * 65_536)
    with suppress(BlockingIOError):
        while True:
            sent += sock.send(frame[sent % len(frame) :])
    return sent


async def test_a_tunnel_that_leaves_begins_no_exchange_and_ends_none() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    tunnel = AgentTunnel(ours)
    began: list[object] = []

    async def wait() -> None:
        began.append(await tunnel.next_exchange())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tunnel.run)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        tunnel.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert began == [None]
        await theirs.send_all(request("a"))
        frame = await tunnel.next_frame()
        assert frame is not None, "what an exchange under way waits for still comes"
        assert frame[0] is Kind.REQUEST
        assert await tunnel.next_exchange() is None, "the END that came with it is not looked at"
        nursery.cancel_scope.cancel()
