"""Requests forwarded to servers, where the client, the agent and the balancer act at once.

Clients are real ones of a real port; an agent is its record, with tunnels of the test's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import attrs
import pytest
import trio
from dispatch_world import LIMITS, World, status_of, world
from http_world import PATIENCE_S, Served, hello, serving
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.balancer.activity.deadlines import Deadlines
from paddler_trio.balancer.hot_restart.departure import Departure
from paddler_trio.balancer.reverse_proxy.forwarding import Forwarding
from paddler_trio.balancer.reverse_proxy.reverse_proxy import ReverseProxy, UpstreamFront
from paddler_trio.balancer.reverse_proxy.server_pools import ServerPools
from paddler_trio.errors import LinkError
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import App, Exchange, refuse_in_plain_text
from paddler_trio.net.tunnels import DIAL_S, Tunnel, Tunnels
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import UPSTREAM
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import Stopped
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.wire.codec import loads
from paddler_trio.wire.trio.trio_link import TAG, parse_extension
from paddler_trio.wire.trio.tunnel_frames import FrameReader, Kind
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM, OpenTunnel, Upstream

PATIENT: Final = DispatchLimits(max_buffered=2, buffered_timeout_s=1e6, item_timeout_s=1e6)
IN_A_SLOT: Final = b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@attrs.define(eq=False)
class Front:
    """An agent in front of a server that answers nothing; it dials each tunnel at once."""

    connection: AgentConnection
    asked: trio.MemoryReceiveChannel[bytes]
    ends: list[trio.SocketStream] = attrs.field(factory=list)

    async def dial(self) -> None:
        """The tunnels that it is asked for, until cancelled."""
        while True:
            self.dialled(await self.next_asked())

    async def next_asked(self) -> str:
        """The secret of the next one."""
        body = loads(await self.asked.receive())
        assert isinstance(body, dict)
        message = parse_extension(body[TAG])
        assert isinstance(message, OpenTunnel)
        return message.secret

    def dialled(self, secret: str) -> None:
        """It has dialled this one, and was expected."""
        ours, theirs = trio.socket.socketpair()
        self.ends.append(trio.SocketStream(theirs))
        assert self.tunnels.dialled(secret, ours._sock)

    @property
    def tunnels(self) -> Tunnels:
        assert self.connection.tunnels is not None
        return self.connection.tunnels

    async def request(self) -> None:
        """Read one, to its end."""
        reader, kinds = FrameReader(), list[Kind]()
        while Kind.END not in kinds:
            data = await self.ends[-1].receive_some()
            assert data, "the tunnel was closed"
            kinds += [kind for kind, _ in reader.feed(data)]
        assert kinds[0] is Kind.REQUEST

    def lose(self, here: World) -> None:
        """Its connection broke."""
        here.dispatcher.leave(self.connection)
        self.connection.close()

    def close(self, here: World) -> None:
        """Lost or not, nothing of it stays open."""
        self.lose(here)
        for end in self.ends:
            end.socket.close()


def front_of(here: World, number: int = 1) -> Front:
    """It joins."""
    outgoing, asked = trio.open_memory_channel[bytes](100)
    connection = AgentConnection(
        key=AgentKey(number),
        id=f"up{number}",
        name=None,
        kind=UPSTREAM,
        status=status_of(1),
        scope=trio.CancelScope(),
        outgoing=outgoing,
        health=here.dispatcher.health,
        deployment=DEFAULT_UPSTREAM,
        upstream=Upstream(phase="ready"),
    )
    here.dispatcher.join(connection)
    return Front(connection, asked)


@attrs.define(eq=False)
class Port:
    """The port for servers, and agents in front of some."""

    here: World
    served: Served
    agents: trio.Nursery
    fronts: list[Front] = attrs.field(factory=list)

    def front(self) -> Front:
        self.fronts.append(front_of(self.here, len(self.fronts) + 1))
        self.agents.start_soon(self.fronts[-1].dial)
        return self.fronts[-1]

    @property
    def request(self) -> Request:
        """The only one."""
        pool = self.here.dispatcher.pools.find(DEFAULT_UPSTREAM)
        assert pool is not None
        (request,) = pool.requests.values()
        return request


@asynccontextmanager
async def port(
    limits: DispatchLimits = LIMITS, *observers: DispatchObserver
) -> AsyncIterator[Port]:
    """At the end of the block every request must have ended, and no slot may be taken."""
    async with world(limits, observers) as here:
        here.dispatcher.pools.open_upstream(DEFAULT_UPSTREAM)
        forwarding = Forwarding(dispatcher=here.dispatcher)
        app = ReverseProxy(forwarding, ServerPools(here.dispatcher))
        async with serving(app, forwards=True) as served, trio.open_nursery() as agents:
            opened = Port(here, served, agents)
            try:
                yield opened
                await wait_all_tasks_blocked()
            finally:
                agents.cancel_scope.cancel()
                for each in opened.fronts:
                    each.close(here)


async def test_a_client_that_leaves_as_its_slot_is_lost_leaves_the_next_slot_free() -> None:
    """Both in one turn: the next agent was sent nothing, and has nothing to confirm."""
    async with port() as opened:
        first = opened.front()
        client = await opened.served.connect()
        await client.stream.send_all(IN_A_SLOT)
        await wait_all_tasks_blocked()
        await first.request()
        second, request = opened.front(), opened.request
        first.lose(opened.here)
        assert request.lease is not None
        assert request.lease.agent is second.connection
        request.stop()
        await wait_all_tasks_blocked()
        assert second.connection.slots_processing == 0
        assert request.ending == Stopped()
        assert second.ends == []


async def test_a_client_that_leaves_while_its_server_answers_holds_its_slot_until_confirmed() -> (
    None
):
    """What the agent was sent it has, until it says that it is done with it."""
    async with port() as opened:
        only = opened.front()
        client = await opened.served.connect()
        await client.stream.send_all(IN_A_SLOT)
        await wait_all_tasks_blocked()
        await only.request()
        request = opened.request
        request.stop()
        await wait_all_tasks_blocked()
        lease = request.lease
        assert lease is not None
        assert only.connection.slots_processing == 1
        with suppress(trio.BrokenResourceError):
            assert await only.ends[-1].receive_some() == b""
        opened.here.dispatcher.hand_back(lease, "the tunnel ended", suspects=0)
        assert only.connection.slots_processing == 0


def limited(app: App) -> App:
    """A guard that adds a field to the answers of what is behind it."""

    async def answer(exchange: Exchange) -> None:
        send = exchange.send

        async def send_with_field(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-behind", b"yes")]
            await send(message)

        exchange.send = send_with_field
        await app(exchange)

    return answer


async def test_a_refusal_has_nothing_that_a_guard_behind_it_adds() -> None:
    async with world() as here:
        here.dispatcher.pools.open_upstream(DEFAULT_UPSTREAM)
        agent = front_of(here)
        front = UpstreamFront(
            api=limited(hello),
            refuse=refuse_in_plain_text,
            limited=limited,
            forwarding=Forwarding(dispatcher=here.dispatcher),
            pools=ServerPools(here.dispatcher),
            is_unserved=lambda: True,
        )
        async with serving(front, forwards=True) as served:
            client = await served.connect()
            await client.stream.send_all(IN_A_SLOT.replace(b"Host", b"X-Paddler-Agent: x\r\nHost"))
            status, head, body = await client.response()
        assert (status, b"x-behind" in head, b"\r\nretry-after: 10" in head) == (503, False, True)
        assert b"no agent 'x' is connected here" in body
        agent.close(here)


@pytest.mark.parametrize("target", ["/props", "/v1/models"])
async def test_what_waits_for_a_server_is_answered_when_the_balancer_drains(target: str) -> None:
    async with port(PATIENT) as opened:
        client = await opened.served.connect()
        await client.get(target)
        await wait_all_tasks_blocked()
        opened.here.dispatcher.drain()
        with trio.fail_after(PATIENCE_S):
            status, head, body = await client.response()
        assert status == 503
        assert b"balancer is shutting down" in body
        assert b"\r\nretry-after: 10" in head


@pytest.mark.parametrize(
    "field", [b"X-Request-Timeout: 0.2", b"x-envoy-expected-rq-timeout-ms: 200"]
)
async def test_a_client_that_waits_only_so_long_for_a_server_is_refused_then(field: bytes) -> None:
    deadlines = Deadlines(WarmPlacement(trio.current_time))
    async with port(PATIENT, deadlines) as opened, trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run, opened.here.dispatcher.pools)
        client = await opened.served.connect()
        await client.stream.send_all(IN_A_SLOT.replace(b"Host", field + b"\r\nHost"))
        with trio.fail_after(PATIENCE_S):
            status, head, body = await client.response()
        assert (status, b"\r\nretry-after: 10" in head) == (503, True)
        assert b"no slot was free within 0.2 s" in body
        nursery.cancel_scope.cancel()


async def taken(front: Front, taken: list[Tunnel | LinkError]) -> None:
    """A request's turn to have a tunnel."""
    try:
        taken.append(await front.tunnels.take())
    except LinkError as error:
        taken.append(error)


async def test_a_tunnel_that_was_asked_for_as_another_balancer_takes_over_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    """Once the other one has the port, the agent would dial it there, and be sent away."""
    departed = trio.Event()

    async def depart(here: World) -> None:
        await Departure(here.dispatcher).dial_tunnels()
        departed.set()

    async with world() as here:
        front, took = front_of(here), list[Tunnel | LinkError]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(taken, front, took)
            secret = await front.next_asked()
            nursery.start_soon(front.dial)  # all others, at once
            nursery.start_soon(depart, here)
            await trio.sleep(1)
            assert not departed.is_set()
            front.dialled(secret)
            await wait_all_tasks_blocked()
            assert departed.is_set()
            (tunnel,) = took
            assert isinstance(tunnel, Tunnel)
            assert tunnel.is_usable
            nursery.cancel_scope.cancel()
        front.close(here)


async def test_a_tunnel_that_is_not_dialled_before_another_balancer_has_the_port_is_given_up(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        front, took = front_of(here), list[Tunnel | LinkError]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(taken, front, took)
            secret = await front.next_asked()
            nursery.start_soon(front.dial)
            await Departure(here.dispatcher).dial_tunnels()
            assert not front.tunnels.expects(secret)
            await wait_all_tasks_blocked()
            (problem,) = took
            assert "another balancer has taken over the agent up1" in str(problem)
            assert trio.current_time() < DIAL_S
            nursery.cancel_scope.cancel()
        assert not front.tunnels.are_used
        front.close(here)
