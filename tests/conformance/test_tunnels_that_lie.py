"""What an agent sends through its tunnels cannot become somebody else's answer, or hold anything.

The agent is a test's own: it announces a server, dials the tunnels that it is asked for, and sends
through them what no server of ours does. Other clients use the connection of the balancer's port
after it, as a proxy before the balancer does.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import pytest
import structlog
import trio
import trio_websocket
from native_client import RunningBalancer, running_balancer
from paddler_agent import status_snapshot
from test_agents_that_lie import dial_as_ours, say

from paddler_trio.system.synchronization import Future
from paddler_trio.wire.trio.tunnel_frames import (
    Headers,
    Kind,
    ResponseHead,
    body_frames,
    end_frame,
    frame,
    response_frame,
)
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM, TUNNEL_PATH

Json: TypeAlias = Any

ASK = b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}"
BESIDE = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SMUGGLED = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
PATIENCE_S = 60.0
READY = {"Trio": {"Upstream": {"phase": "ready", "models": ["m"]}}}
EVENTS = ((b"Content-Type", b"text/event-stream"),)


@attrs.define(eq=False)
class LyingAgent:
    """Offers slots of a server that is not there, and sends ``lie`` for each exchange."""

    balancer: RunningBalancer
    lie: bytes = b""
    later: bytes = b""
    """Sent after it when the client has read of it."""
    was_read: trio.Event = attrs.field(factory=trio.Event, init=False)
    dials: bool = True
    asked: Future[str] = attrs.field(factory=Future, init=False)
    """The secret of the first tunnel."""
    dialled: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def serve(self, socket: trio_websocket.WebSocketConnection) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                told = json.loads(await socket.get_message())
                asked = told.get("Trio", {}).get("OpenTunnel") if isinstance(told, dict) else None
                if asked is not None:
                    self.asked.set(asked["secret"])
                    await say(socket, READY)  # it was well, whatever it did with the last one
                    if self.dials:
                        nursery.start_soon(self.tunnel, asked["secret"])

    async def tunnel(self, secret: str) -> None:
        async with await dial_tunnel(self.balancer, secret) as stream:
            try:
                data = b""
                while b"\r\n\r\n" not in data:
                    data += await stream.receive_some(65_536)
                switched, _, frames = data.partition(b"\r\n\r\n")
                assert switched.startswith(b"HTTP/1.1 101")
                self.dialled.set()
                while frames or await stream.receive_some(65_536):
                    frames = b""
                    await stream.send_all(self.lie)
                    if self.later:
                        await self.was_read.wait()
                        await stream.send_all(self.later)
            except trio.BrokenResourceError:
                return


async def stay_well(socket: trio_websocket.WebSocketConnection) -> None:
    while True:
        await say(socket, READY)
        await trio.sleep(1.0)


async def dial_tunnel(balancer: RunningBalancer, secret: str) -> trio.SocketStream:
    host, _, port = balancer.management.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.send_all(
        f"GET {TUNNEL_PATH}{secret} HTTP/1.1\r\nHost: {balancer.management}\r\n\r\n".encode()
    )
    return stream


@asynccontextmanager
async def lying(slots: int = 2, **config: Json) -> AsyncIterator[LyingAgent]:
    """A balancer with one such agent."""
    async with (
        running_balancer(reverseproxy_addr="127.0.0.1:0", **config) as balancer,
        dial_as_ours(balancer.management, f"liar.{DEFAULT_UPSTREAM}") as socket,
        trio.open_nursery() as nursery,
    ):
        placement = {"host": "liar", "deployment": DEFAULT_UPSTREAM, "labels": {}}
        await say(socket, {"Trio": {"Placement": placement}})
        await say(socket, READY)
        status = status_snapshot(slots_total=slots, desired_slots_total=slots)
        registration = {"name": "liar", "slot_aggregated_status_snapshot": status}
        await say(socket, {"Notification": {"RegisterAgent": registration}})
        await balancer.wait_agents(lambda agents: [a["slots_total"] for a in agents] == [slots])
        agent = LyingAgent(balancer)
        nursery.start_soon(agent.serve, socket)
        nursery.start_soon(stay_well, socket)
        yield agent
        nursery.cancel_scope.cancel()


async def everything(agent: LyingAgent, requests: Sequence[bytes]) -> bytes:
    """All that the balancer sends for these requests on one connection, until it closes it."""
    host, _, port = agent.balancer.reverse_proxy.rpartition(":")
    data = b""
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        for request in requests:
            await stream.send_all(request)
        with trio.move_on_after(PATIENCE_S) as scope:
            while piece := await stream.receive_some(65_536):
                data += piece
    assert not scope.cancelled_caught, data
    return data


def closing(request: bytes) -> bytes:
    return request.replace(b"Host", b"Connection: close\r\nHost")


def head(headers: Headers = (), *, is_sized: bool = False) -> bytes:
    return response_frame(
        ResponseHead(status=200, reason=b"OK", headers=headers, is_sized=is_sized)
    )


def sized(length: bytes) -> bytes:
    return head(((b"Content-Length", length),), is_sized=True)


LIES = {
    "a body longer than it says": sized(b"2") + body_frames(b"ok" + SMUGGLED) + end_frame(),
    "a second body after it": sized(b"2") + body_frames(b"ok") + body_frames(SMUGGLED),
    "a body shorter than it says": sized(b"90") + body_frames(b"ok") + end_frame(),
    "no length where it says one": head(is_sized=True) + body_frames(SMUGGLED) + end_frame(),
    "two lengths": head(((b"Content-Length", b"0"), (b"content-length", b"47")), is_sized=True)
    + body_frames(SMUGGLED),
    "a chunk that ends the body": head() + frame(Kind.BODY) + body_frames(SMUGGLED) + end_frame(),
    "a field that is two": head(((b"X: 1\r\n\r\n" + SMUGGLED, b""),)) + end_frame(),
    "a length with a blank in its name": head(((b"Content-Length ", b"0"),)) + end_frame(),
    "a trailer that is an answer": head() + end_frame(((b"a", b"\r\n\r\n" + SMUGGLED),)),
    "an answer of its own head": head() + head() + end_frame(),
    "events longer than they say": head((*EVENTS, (b"Content-Length", b"2")), is_sized=True)
    + body_frames(b"ok" + SMUGGLED),
    "a switch that nobody asked for": response_frame(
        ResponseHead(status=101, reason=b"X", headers=((b"Upgrade", b"websocket"),), is_sized=False)
    )
    + body_frames(SMUGGLED),
    "a length of 2 GiB": b"\x03\x80\x00\x00\x00",
    "an unknown kind": b"\x07\x00\x00\x00\x01a",
    "a request": frame(Kind.REQUEST, b"\x90"),
    "a status that is none": frame(Kind.RESPONSE, b"\x94\x64\xc4\x00\x90\xc2"),
    "no msgpack": frame(Kind.RESPONSE, b"\xc1"),
    "msgpack of a billion elements": frame(Kind.RESPONSE, b"\xdd\x7f\xff\xff\xff"),
    "nested a thousand times": frame(Kind.RESPONSE, b"\x91" * 1000),
}


async def test_no_lie_in_a_tunnel_reaches_the_next_request_of_a_connection() -> None:
    """The next request is on its way before the lie comes; it is answered by what we say of the
    lie, or not at all."""
    async with lying(buffered_request_timeout_s=0.1) as agent:
        for what, lie in LIES.items():
            agent.lie = lie
            for request in (ASK, BESIDE):
                answer = await everything(agent, [request, closing(BESIDE)])
                assert b"evil" not in answer.replace(b"\r\n0\r\n", b""), (what, answer)
                assert answer.count(b"HTTP/1.1 200") <= 1, (what, answer)
            (entry,) = await agent.balancer.agents()
            assert entry["slots_processing"] == 0, what


LATER_LIES = {
    "more than it said": (sized(b"4") + body_frames(b"ok"), body_frames(b"ok" + SMUGGLED)),
    "an end before it": (sized(b"90") + body_frames(b"ok"), end_frame()),
    "a chunk that ends the body": (
        head(EVENTS) + body_frames(b"ok"),
        body_frames(b"ok") + frame(Kind.BODY) + body_frames(SMUGGLED),
    ),
    "a second head": (head() + body_frames(b"ok"), body_frames(b"ok") + head() + end_frame()),
    "no frame": (head() + body_frames(b"ok"), b"\x03\x80\x00\x00\x00"),
    "a trailer that is an answer": (
        head() + body_frames(b"ok"),
        end_frame(((b"a", b"\r\n\r\n" + SMUGGLED),)),
    ),
}


@pytest.mark.parametrize("what", LATER_LIES)
async def test_no_lie_in_the_middle_of_an_answer_reaches_the_next_request(what: str) -> None:
    async with lying(buffered_request_timeout_s=0.1) as agent:
        agent.lie, agent.later = LATER_LIES[what]
        host, _, port = agent.balancer.reverse_proxy.rpartition(":")
        answer = b""
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(ASK + closing(BESIDE))
            with trio.fail_after(PATIENCE_S):
                while piece := await stream.receive_some(65_536):
                    answer += piece
                    if b"ok" in answer:
                        agent.was_read.set()
        assert b"evil" not in answer
        assert answer.count(b"HTTP/1.1 200") == 1
        await agent.balancer.wait_agents(lambda agents: agents[0]["slots_processing"] == 0)


async def test_a_silent_tunnel_holds_a_request_beside_the_slots_for_its_time() -> None:
    async with lying(reverseproxy_response_timeout_s=0.2) as agent:
        answer = await everything(agent, [closing(BESIDE)])
        assert answer.startswith(b"HTTP/1.1 504")
        assert b"sent nothing for 0.2 s" in answer


async def test_clients_that_leave_before_there_is_a_tunnel_hold_no_slot_and_blame_nobody() -> None:
    with structlog.testing.capture_logs() as told:
        async with lying(slots=1) as agent:
            agent.dials = False
            host, _, port = agent.balancer.reverse_proxy.rpartition(":")
            for _ in range(3):  # so many failures in a row eject an agent
                async with await trio.open_tcp_stream(host, int(port)) as client:
                    await client.send_all(ASK)
                    await agent.balancer.wait_slots(1)
                await agent.balancer.wait_slots(0)
    assert not [each for each in told if each["event"] == "agent did not confirm a stop"]


async def test_a_tunnel_that_nobody_asked_for_is_refused_and_the_right_one_still_comes() -> None:
    async with lying() as agent, trio.open_nursery() as nursery:
        agent.dials, agent.lie = False, sized(b"2") + body_frames(b"ok") + end_frame()
        answer: Future[bytes] = Future()

        async def ask() -> None:
            answer.set(await everything(agent, [closing(ASK)]))

        nursery.start_soon(ask)
        secret = await agent.asked.wait()
        for wrong in (secret[:-1] + "~", secret + "a", "", "x" * 4000):
            async with await dial_tunnel(agent.balancer, wrong) as stream:
                assert (await stream.receive_some(65_536)).startswith(b"HTTP/1.1 404"), wrong
        nursery.start_soon(agent.tunnel, secret)
        await agent.dialled.wait()
        async with await dial_tunnel(agent.balancer, secret) as stream:  # it is used up
            assert (await stream.receive_some(65_536)).startswith(b"HTTP/1.1 404")
        assert (await answer.wait()).endswith(b"\r\n\r\nok")
        nursery.cancel_scope.cancel()


async def test_an_agent_that_takes_nothing_of_an_upload_learns_that_its_client_left() -> None:
    """The end comes ahead of what is on its way: its server may be busy for hours."""
    upload = ASK.replace(b"2\r\n\r\n{}", b"32000000\r\n\r\n" + b"x" * 32_000_000)
    async with lying(slots=1) as agent:
        agent.dials = False
        host, _, port = agent.balancer.reverse_proxy.rpartition(":")
        client = await trio.open_tcp_stream(host, int(port))
        with trio.fail_after(PATIENCE_S):
            await client.send_all(upload)
            async with await dial_tunnel(agent.balancer, await agent.asked.wait()) as tunnel:
                tunnel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
                data = b""
                while b"/completion" not in data:
                    data += await tunnel.receive_some(1024)
                await client.aclose()
                with select.epoll(1) as hang_ups:
                    hang_ups.register(tunnel.socket, select.EPOLLRDHUP)
                    await trio.lowlevel.wait_readable(hang_ups.fileno())
