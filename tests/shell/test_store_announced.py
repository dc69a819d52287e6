"""Who learns of a balancer's model store, and when it is forgotten."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio_websocket
from http_world import Served, serving, until

from paddler_trio.agent.link import balancer_link
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.messages import RegisterAgent, render
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

PATH = "/api/v2/store"


@attrs.frozen
class Balancer:
    agents: AgentSocket
    served: Served

    def cut(self) -> None:
        self.served.server.cut_all()


@asynccontextmanager
async def balancer(store_path: str | None = PATH) -> AsyncIterator[Balancer]:
    dispatcher = Dispatcher(DispatchLimits())
    states = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    await states.load()
    agents = AgentSocket(dispatcher, trio.Event(), store_path=store_path)

    async def serve(exchange: Exchange, params: Params) -> None:
        await agents.serve(exchange, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    async with serving(routes) as served:
        dispatcher.open(agents=served.connections, requests=served.connections)
        served.connections.start_soon(FleetController(states, dispatcher).run)
        yield Balancer(agents, served)


async def first_frames(served: Served, subprotocols: list[str], count: int) -> list[object]:
    """What an agent gets that registers, frame by frame."""
    client = await served.connect()
    async with trio.open_nursery() as nursery:
        socket = await trio_websocket.wrap_client_stream(
            nursery,
            client.stream,
            served.address,
            "/api/v1/agent_socket/a1",
            subprotocols=subprotocols,
        )
        await socket.send_message(render(RegisterAgent("a1", AgentStatus(1).snapshot())).decode())
        frames = [json.loads(await socket.get_message()) for _ in range(count)]
        await socket.aclose()
    return frames


async def test_our_agents_hear_of_the_store_before_anything_is_desired() -> None:
    async with balancer() as fleet:
        frames = await first_frames(fleet.served, [SUBPROTOCOL], 3)
    assert frames[1] == {"Trio": {"Store": {"path": PATH}}}
    assert "SetState" in json.dumps(frames[2])


async def test_paddlers_agents_hear_nothing_of_it() -> None:
    async with balancer() as fleet:
        frames = await first_frames(fleet.served, [], 2)
    assert "SetState" in json.dumps(frames[1])
    assert "Trio" not in json.dumps(frames)


async def test_a_balancer_without_a_store_announces_none() -> None:
    async with balancer(store_path=None) as fleet:
        frames = await first_frames(fleet.served, [SUBPROTOCOL], 2)
    assert "SetState" in json.dumps(frames[1])


async def test_an_agent_asks_the_balancer_that_it_is_linked_to_and_no_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balancer_link, "FIRST_PAUSE_S", 0.001)
    status = AgentStatus(1)
    models = ModelServer(
        status,
        threads=1,
        settings=EngineSettings(),
        drain_s=0,
        supervise=_nothing,
        supervise_preparation=_nothing,
        on_step=lambda step: None,
        on_engine_gone=lambda engine, reason, suspects: None,
    )
    seen: list[StoreAddress | None] = []
    monkeypatch.setattr(ModelServer, "set_store", lambda self, store: seen.append(store))
    async with balancer() as fleet:
        port = fleet.served.port
        link = BalancerLink(
            BalancerAddress("127.0.0.1", port), "a1", status, models, AgentRequests(status)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await until(lambda: len(seen) == 2)
            assert seen == [None, StoreAddress(f"http://127.0.0.1:{port}{PATH}", None)]
            fleet.agents.store_path = None
            fleet.cut()
            await until(lambda: len(seen) == 3)
            assert seen[-1] is None
            nursery.cancel_scope.cancel()


async def _nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()
