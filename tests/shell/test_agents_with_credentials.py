"""Agents that came with a credential: under its name, with its labels, and with other secrets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio_websocket
from http_world import Served, serving, until

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.paddler.messages import RegisterAgent, render
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL, render_extension
from paddler_trio.wire.trio.upstream_messages import Rotate

NEW, OLD = b"\1" * 32, b"\2" * 32


@attrs.define
class World:
    """What a registry of agents would do about a new secret is ``outcome``."""

    dispatcher: Dispatcher
    served: Served
    identity: AgentIdentity | None = None
    outcome: bool | ConfigurationError = True
    asked: list[tuple[bytes, bytes]] = attrs.field(factory=list)

    async def rotate(self, new: bytes, old: bytes) -> bool:
        self.asked.append((new, old))
        if isinstance(self.outcome, ConfigurationError):
            raise self.outcome
        return self.outcome

    @asynccontextmanager
    async def link(
        self, agent_id: str, *frames: str
    ) -> AsyncIterator[trio_websocket.WebSocketConnection]:
        client = await self.served.connect()
        async with trio.open_nursery() as nursery:
            socket = await trio_websocket.wrap_client_stream(
                nursery,
                client.stream,
                self.served.address,
                f"/api/v1/agent_socket/{agent_id}",
                subprotocols=[SUBPROTOCOL],
            )
            for frame in frames:
                await socket.send_message(frame)
            assert "Version" in await socket.get_message()
            yield socket
            await socket.aclose()

    async def agent(self) -> AgentConnection:
        await until(lambda: bool(self.dispatcher.agents))
        (agent,) = self.dispatcher.agents.values()
        return agent


@pytest.fixture
async def world() -> AsyncIterator[World]:
    dispatcher = Dispatcher(DispatchLimits())
    agents = AgentSocket(dispatcher, trio.Event())

    async def serve(exchange: Exchange, params: Params) -> None:
        if found.identity is not None:
            exchange.identity.agent = found.identity
        await agents.serve(exchange, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    async with serving(routes) as served:
        dispatcher.open(agents=served.connections, requests=served.connections)
        found = World(dispatcher, served)
        found.identity = AgentIdentity("gpu", {"gpu": "yes", "rack": "7"}, found.rotate)
        yield found


def registers(name: str | None) -> str:
    return render(RegisterAgent(name, AgentStatus(1).snapshot())).decode()


def placed(deployment: str, labels: Mapping[str, str]) -> str:
    value = {"host": "h1", "deployment": deployment, "labels": labels}
    return json.dumps({"Trio": {"Placement": value}})


def wish() -> str:
    return render_extension(Rotate(NEW.hex(), OLD.hex())).decode()


@pytest.mark.parametrize("name", ["gpu", None])
async def test_it_has_the_name_and_the_labels_of_its_credential(
    world: World, name: str | None
) -> None:
    async with world.link("h1", registers(name)):
        agent = await world.agent()
        assert (agent.name, agent.labels) == ("gpu", {"gpu": "yes", "rack": "7"})


async def test_what_it_claims_does_not_change_what_its_token_said(world: World) -> None:
    claimed = placed("coder", {"rack": "8", "own": "1"})
    async with world.link("h1.coder", claimed, registers("gpu.coder")):
        agent = await world.agent()
        assert agent.labels == {"gpu": "yes", "rack": "7", "own": "1"}


@pytest.mark.parametrize("name", ["other", "gpu.coder", "gpux", ""])
async def test_another_name_ends_the_link(world: World, name: str) -> None:
    async with world.link("h1", registers(name)) as socket:
        with pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await socket.get_message()
    reason = closed.value.reason
    assert reason is not None
    assert (reason.code, "joined as 'gpu'" in str(reason.reason)) == (1008, True)
    assert not world.dispatcher.agents


async def test_a_new_secret_is_answered_once_it_is_stored(world: World) -> None:
    async with world.link("h1", registers("gpu"), wish()) as socket:
        with trio.fail_after(50):
            while "Rotated" not in (text := await socket.get_message()):
                pass
        assert json.loads(text) == {"Trio": {"Rotated": {"sha256": NEW.hex()}}}
        assert world.asked == [(NEW, OLD)]


@pytest.mark.parametrize("outcome", [False, ConfigurationError("cannot write")])
async def test_one_that_is_not_stored_is_not_answered_and_the_link_stays(
    world: World, outcome: bool | ConfigurationError
) -> None:
    world.outcome = outcome
    async with world.link("h1", registers("gpu"), wish(), wish()):
        agent = await world.agent()
        await until(lambda: bool(world.asked))
        assert world.dispatcher.agents == {agent.key: agent}


async def test_without_a_credential_there_is_no_secret_to_replace(world: World) -> None:
    world.identity = None
    async with world.link("h1", registers("anything"), wish()):
        agent = await world.agent()
        assert agent.name == "anything"
    assert world.asked == []
