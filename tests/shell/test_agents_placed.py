"""Agents that announce which deployment they serve, and on which host, before they register."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio_websocket
from http_world import Served, serving, until

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.balancer.agents.agent_snapshot import snapshot, snapshot_v2
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.paddler.messages import RegisterAgent, render
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

CODER: dict[str, object] = {"host": "h1", "deployment": "coder", "labels": {"gpu": "yes"}}


@attrs.frozen
class Balancer:
    dispatcher: Dispatcher
    states: FleetKeeper
    served: Served

    @asynccontextmanager
    async def link(
        self, agent_id: str, *frames: object, subprotocols: tuple[str, ...] = (SUBPROTOCOL,)
    ) -> AsyncIterator[trio_websocket.WebSocketConnection]:
        """A link over which these frames are sent."""
        client = await self.served.connect()
        async with trio.open_nursery() as nursery:
            socket = await trio_websocket.wrap_client_stream(
                nursery,
                client.stream,
                self.served.address,
                f"/api/v1/agent_socket/{agent_id}",
                subprotocols=list(subprotocols),
            )
            for frame in frames:
                await socket.send_message(frame if isinstance(frame, str) else json.dumps(frame))
            yield socket
            await socket.aclose()


def registers(name: str = "a1") -> str:
    return render(RegisterAgent(name, AgentStatus(1).snapshot())).decode()


def placed(value: object) -> Mapping[str, object]:
    return {"Trio": {"Placement": value}}


@pytest.fixture
async def fleet() -> AsyncIterator[Balancer]:
    dispatcher = Dispatcher(DispatchLimits())
    states = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    await states.load()
    agents = AgentSocket(dispatcher, trio.Event())

    async def serve(exchange: Exchange, params: Params) -> None:
        await agents.serve(exchange, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    async with serving(routes) as served:
        dispatcher.open(agents=served.connections, requests=served.connections)
        served.connections.start_soon(FleetController(states, dispatcher).run)
        yield Balancer(dispatcher, states, served)


async def why_closed(socket: trio_websocket.WebSocketConnection) -> str:
    await socket.get_message()  # its version
    with pytest.raises(trio_websocket.ConnectionClosed) as closed:
        await socket.get_message()
    reason = closed.value.reason
    assert reason is not None
    assert reason.code == 1008
    return str(reason.reason)


async def test_an_instance_joins_its_deployment_and_is_not_sent_the_state_of_another(
    fleet: Balancer,
) -> None:
    dispatcher = fleet.dispatcher
    dispatcher.set_deployments([PoolSettings(name="coder", admissible=frozenset())])
    async with fleet.link("h1.coder", placed(CODER), registers("a1.coder")) as socket:
        await until(lambda: bool(dispatcher.agents))
        (agent,) = dispatcher.agents.values()
        assert (agent.deployment, agent.host, agent.labels) == ("coder", "h1", {"gpu": "yes"})
        await fleet.states.replace(attrs.evolve(BalancerDesiredState.default()))
        shown: Any = snapshot_v2(agent, 0)
        assert (shown["deployment"], shown["host"], shown["labels"]) == (
            "coder",
            "h1",
            {"gpu": "yes"},
        )
        assert not {"deployment", "host", "labels"} & set(snapshot(agent, 0))
        assert "Version" in await socket.get_message()
        with trio.move_on_after(0.1) as silence:
            heard = await socket.get_message()
            raise AssertionError(heard)
        assert silence.cancelled_caught
        pool = dispatcher.pools.find("coder")
        assert pool is not None
        assert list(pool.agents.values()) == [agent]
    await until(lambda: not dispatcher.agents)


async def test_the_first_link_of_a_host_has_labels_and_serves_default(fleet: Balancer) -> None:
    first = placed({"host": "h1", "deployment": "default", "labels": {"site": "attic"}})
    async with fleet.link("h1", first, registers()):
        await until(lambda: bool(fleet.dispatcher.agents))
        (agent,) = fleet.dispatcher.agents.values()
        assert (agent.deployment, agent.host, agent.labels) == ("default", "h1", {"site": "attic"})


@pytest.mark.parametrize("subprotocols", [(), (SUBPROTOCOL,)])
async def test_who_announces_nothing_is_a_host_of_its_own(
    fleet: Balancer, subprotocols: tuple[str, ...]
) -> None:
    async with fleet.link("h1.coder", registers(), subprotocols=subprotocols):
        await until(lambda: bool(fleet.dispatcher.agents))
        (agent,) = fleet.dispatcher.agents.values()
        assert (agent.deployment, agent.host, agent.labels) == ("default", "h1.coder", {})


async def test_an_agent_of_a_deployment_that_there_is_not_stays_without_work(
    fleet: Balancer,
) -> None:
    async with fleet.link("h1.coder", placed(CODER), registers()) as socket:
        await until(lambda: bool(fleet.dispatcher.agents))
        assert [pool.name for pool in fleet.dispatcher.pools.known()] == ["default"]
        assert not socket.closed


@pytest.mark.parametrize(
    ("agent_id", "frames", "why"),
    [
        ("h1.other", [placed(CODER)], "on host 'h1' has the id 'h1.other'"),
        ("h1", [placed(CODER)], "on host 'h1' has the id 'h1'"),
        ("h2", [placed(CODER | {"deployment": "default"})], "on host 'h1' has the id 'h2'"),
        ("h1.coder", [placed(CODER), placed(CODER)], "twice"),
        ("h1.coder", [placed(CODER | {"deployment": "Coder!"})], "Coder!"),
        ("h1.coder", [placed(CODER | {"labels": {"a b": "c"}})], "cannot stand in a label"),
        (
            "h1.coder",
            [placed(CODER | {"labels": {f"l{n}": "x" for n in range(33)}})],
            "33 labels, the limit is 32",
        ),
        ("h1.coder", [placed({"host": "h1"})], "deployment"),
        ("h1.coder", [{"Trio": {"Report": {}}}], ""),
    ],
)
async def test_a_place_that_cannot_be_ends_the_link_with_the_reason(
    fleet: Balancer, agent_id: str, frames: list[object], why: str
) -> None:
    async with fleet.link(agent_id, *frames) as socket:
        assert why in await why_closed(socket)
    await until(lambda: not fleet.dispatcher.agents)


async def test_what_is_not_known_before_the_registration_is_ignored(fleet: Balancer) -> None:
    async with fleet.link("h1", {"Trio": {"Later": {}}}, registers()):
        await until(lambda: bool(fleet.dispatcher.agents))


async def test_a_place_is_announced_before_the_registration_or_not_at_all(
    fleet: Balancer,
) -> None:
    async with fleet.link("h1.coder", registers()) as socket:
        await until(lambda: bool(fleet.dispatcher.agents))
        await socket.send_message(json.dumps(placed(CODER)))
    await until(lambda: not fleet.dispatcher.agents)
