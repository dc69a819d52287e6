"""Whatever the kernel takes at once, and whoever else writes: the balancer reads every frame of an
agent whole, once, in order."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import attrs
import pytest
import trio
import trio_websocket
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from paddler_trio.agent.link.link_reply import (
    DIRECT_BYTES,
    OUTGOING_FRAMES,
    DialledStream,
    LinkWriter,
)

LEAST_BUFFER = 1
"""The kernel makes it as small as it can: a few kilobytes."""


@attrs.define(eq=False)
class Ends:
    """A link: its agent's end, what is written to it, and its balancer's end."""

    agent: trio_websocket.WebSocketConnection
    stream: DialledStream
    writer: LinkWriter
    balancer: trio_websocket.WebSocketConnection


def tcp_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LEAST_BUFFER)
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in ends)
    return left, right


@asynccontextmanager
async def link(
    pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]] = tcp_pair,
    on_full: Callable[[], None] = lambda: pytest.fail("the queue is full"),
) -> AsyncIterator[Ends]:
    ours, theirs = pair()
    stream = DialledStream(ours)
    async with stream, theirs, trio.open_nursery() as nursery:
        balancers: list[trio_websocket.WebSocketConnection] = []

        async def accept() -> None:
            server = cast("trio.SocketStream", theirs)
            request = await trio_websocket.wrap_server_stream(nursery, server)
            balancers.append(await request.accept())

        async with trio.open_nursery() as handshake:
            handshake.start_soon(accept)
            agent = await trio_websocket.wrap_client_stream(
                nursery, cast("trio.SocketStream", stream), "balancer", "/"
            )
        stream.is_agreed = True
        yield Ends(agent, stream, LinkWriter(agent, stream, on_full), balancers[0])
        nursery.cancel_scope.cancel()


def text(number: int, size: int) -> str:
    return f"{number} ".ljust(size, "x")


actions = st.lists(
    st.one_of(
        st.lists(st.sampled_from([1, 130, 3_000, 9_000]), max_size=3).map(
            lambda sizes: ("send", sizes)
        ),
        st.sampled_from([10, 9_000]).map(lambda size: ("others", [size])),
        st.integers(0, 3).map(lambda turns: ("turns", [turns])),
        st.integers(0, 3).map(lambda count: ("read", [count])),
        st.just(("ping", [])),
    ),
    max_size=25,
)


@settings(max_examples=100)
@given(actions, st.sampled_from([tcp_pair, memory_stream_pair]))
def test_every_frame_arrives_whole_once_in_order(
    todo: list[tuple[str, list[int]]],
    pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]],
) -> None:
    async def run() -> None:
        expected: list[str] = []
        others: list[str] = []
        read: list[str] = []
        async with link(pair) as ends, trio.open_nursery() as nursery:
            nursery.start_soon(ends.writer.run)

            async def read_one() -> None:
                with trio.fail_after(50):
                    read.append(cast("str", await ends.balancer.get_message()))

            for what, sizes in todo:
                if what == "send":
                    frames = [text(len(expected) + place, size) for place, size in enumerate(sizes)]
                    expected += frames
                    ends.writer.send(*(frame.encode() for frame in frames))
                elif what == "others":
                    others.append("o".ljust(sizes[0], "o"))
                    nursery.start_soon(ends.agent.send_message, others[-1])
                elif what == "ping":
                    nursery.start_soon(ends.agent.ping)
                elif what == "turns":
                    for _ in range(sizes[0]):
                        await trio.lowlevel.checkpoint()
                else:
                    for _ in range(min(sizes[0], len(expected) + len(others) - len(read))):
                        await read_one()
            while len(read) < len(expected) + len(others):
                await read_one()
            with trio.fail_after(50):
                await ends.writer.sent()
            assert ends.writer.num_unsent == 0
            nursery.cancel_scope.cancel()
        assert [each for each in read if not each.startswith("o")] == expected
        assert sorted(each for each in read if each.startswith("o")) == sorted(others)

    trio.run(run)


async def test_results_are_with_the_kernel_when_the_call_returns() -> None:
    async with link() as ends:  # no task writes
        ends.writer.send(b"one", b"two")
        assert ends.writer.num_unsent == 0
        assert [await ends.balancer.get_message() for _ in range(2)] == ["one", "two"]


async def test_no_frame_has_the_mask_of_another() -> None:
    """They come from the kernel many at a time."""
    masks: list[bytes] = []

    class Recorder(DialledStream):
        def write_now(self, data: bytes) -> bool:
            masks.append(data[2:6])
            return True

    async with link() as ends:
        ours, _ = memory_stream_pair()
        writer = LinkWriter(ends.agent, Recorder(ours), lambda: None)
        for _ in range(200):
            writer.send(b"token")
    assert len(masks) == 200
    assert {len(mask) for mask in masks} == {4}
    assert len(set(masks)) > 190


async def test_a_long_frame_waits_for_its_task() -> None:
    async with link() as ends:
        ends.writer.send(b"x" * (DIRECT_BYTES + 1))
        assert ends.writer.num_unsent == 1


async def test_over_tls_frames_wait_for_their_task() -> None:
    async with link(memory_stream_pair) as ends:
        ends.writer.send(b"one")
        assert ends.writer.num_unsent == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.writer.run)
            assert await ends.balancer.get_message() == "one"
            nursery.cancel_scope.cancel()


async def test_a_write_that_is_cancelled_in_a_frame_leaves_a_link_that_closes_in_order() -> None:
    async with link() as ends, trio.open_nursery() as nursery:
        for _ in range(5):  # the library reads one ahead
            ends.writer.send(b"x" * DIRECT_BYTES)
        with trio.CancelScope() as writing:
            nursery.start_soon(cancel_when_blocked, writing)
            await ends.writer.run()
        assert writing.cancelled_caught
        assert ends.stream.has_unsent
        nursery.start_soon(ends.agent.aclose)
        with trio.fail_after(50):
            read, reason = await everything(ends.balancer)
        assert set(read) == {"x" * DIRECT_BYTES}
        assert reason is not None
        assert reason.code == 1000


async def everything(
    end: trio_websocket.WebSocketConnection,
) -> tuple[list[str], trio_websocket.CloseReason | None]:
    """Its messages, and how it was closed."""
    read: list[str] = []
    try:
        while True:
            read.append(cast("str", await end.get_message()))
    except trio_websocket.ConnectionClosed as closed:
        return read, closed.reason


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_nothing_is_sent_once_the_connection_closes() -> None:
    async with link() as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.writer.run)
        ends.writer.send(b"last")
        ends.writer.close()
        ends.writer.send(b"late")
        assert await ends.balancer.get_message() == "last"
        await ends.balancer.aclose()
        with pytest.raises(trio_websocket.ConnectionClosed):
            await ends.balancer.get_message()


async def test_after_a_goodbye_no_text_follows_the_close_frame() -> None:
    async with link() as ends, trio.open_nursery() as nursery:
        nursery.start_soon(ends.agent.aclose)
        await wait_all_tasks_blocked()
        ends.writer.send(b"late")
        assert ends.writer.num_unsent == 1
        assert not ends.stream.has_unsent


async def test_a_balancer_that_does_not_read_is_given_up() -> None:
    full: list[str] = []
    async with link(on_full=lambda: full.append("full")) as ends:
        for _ in range(OUTGOING_FRAMES + 2):
            ends.writer.send(b"x" * 20_000)
        # two are with the kernel and the stream, one entry of the queue is for their rest
        assert full
        assert ends.writer.num_unsent == OUTGOING_FRAMES


async def test_a_broken_socket_is_met_by_the_task() -> None:
    ours, theirs = tcp_pair()
    stream = DialledStream(ours)
    await theirs.aclose()
    assert not stream.write_now(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    await stream.aclose()
    assert not stream.write_now(b"x")
