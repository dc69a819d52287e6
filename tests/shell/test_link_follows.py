"""An agent's link while one balancer takes over from another at the same address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from http_world import Served, serving, until

from paddler_trio.agent.link import balancer_link
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.hot_restart.departure import Departure
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, InferenceParameters, NoModel
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS
from paddler_trio.wire.trio.trio_link import Want, render_extension

SLOTS = 4


def state(top_k: int) -> AgentDesiredState:
    return AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(top_k=top_k),
        model=NoModel(),
        multimodal_projection=NoModel(),
    )


@attrs.define(eq=False)
class World:
    """Two balancers at one address; ``accepting`` is the one that agents reach."""

    old: Dispatcher
    new: Dispatcher
    served: Served
    link: BalancerLink
    models: ModelServer
    accepting: Dispatcher

    async def agent_of(self, dispatcher: Dispatcher) -> AgentConnection:
        await until(lambda: bool(dispatcher.agents))
        return next(iter(dispatcher.agents.values()))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """With a linked agent that serves."""
    sockets = {
        dispatcher: AgentSocket(dispatcher, trio.Event())
        for dispatcher in (Dispatcher(DispatchLimits()), Dispatcher(DispatchLimits()))
    }
    old, new = sockets
    status = AgentStatus(SLOTS)
    status.set(is_serving=True)
    requests = AgentRequests(status)
    models = ModelServer(
        status,
        threads=1,
        settings=EngineSettings(),
        drain_s=0,
        supervise=_nothing,
        supervise_preparation=_nothing,
        on_step=requests.on_step,
        on_engine_gone=requests.on_engine_gone,
    )

    async def serve(exchange: Exchange, params: Params) -> None:
        await sockets[it.accepting].serve(exchange, params["agent_id"])

    routes = Router()
    routes.websocket("/api/v1/agent_socket/{agent_id}", serve)
    async with serving(routes) as served, trio.open_nursery() as nursery:
        address = BalancerAddress("127.0.0.1", served.port)
        link = BalancerLink(address, "a1", status, models, requests)
        it = World(old, new, served, link, models, old)
        for dispatcher in sockets:
            dispatcher.open(agents=served.connections, requests=served.connections)
        requests.open(nursery, models)
        nursery.start_soon(link.run)
        yield it
        await link.leave()
        nursery.cancel_scope.cancel()


async def _nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_slots_move_with_what_the_balancer_before_lets_go_and_the_link_stays_up() -> None:
    async with world() as it, trio.open_nursery() as nursery:
        before = await it.agent_of(it.old)
        await until(lambda: before.status.slots_total == SLOTS)
        assert Feature.FOLLOWS in before.features
        it.accepting = it.new
        departure = Departure(it.old)
        await nursery.start(departure.run)
        await departure.wait_followed()
        after = await it.agent_of(it.new)
        assert it.link.is_up
        assert it.link.num_connections == 2
        assert (before.status.slots_total, after.status.slots_total) == (SLOTS, 0)
        departure.let_go(lambda: 1)
        await until(lambda: after.status.slots_total == SLOTS - 1)
        assert before.usable_slots <= 1
        departure.let_go()
        await until(lambda: after.status.slots_total == SLOTS)
        await until(lambda: not it.old.agents)
        assert it.link.is_up
        assert it.link.num_connections == 2
        nursery.cancel_scope.cancel()


async def test_what_the_balancer_before_desires_does_not_count_any_more() -> None:
    async with world() as it, trio.open_nursery() as nursery:
        before = await it.agent_of(it.old)
        before.send(render_extension(Want(state(1), NO_EXTRAS)))
        await until(lambda: it.models.desired == state(1))
        it.accepting = it.new
        departure = Departure(it.old)
        await nursery.start(departure.run)
        after = await it.agent_of(it.new)
        after.send(render_extension(Want(state(2), NO_EXTRAS)))
        await until(lambda: it.models.desired == state(2))
        before.send(render_extension(Want(state(3), NO_EXTRAS)))
        before.send_state(state(4))
        await before.questions.ask_tree()  # it has read what came before that question
        assert it.models.desired == state(2)
        nursery.cancel_scope.cancel()


async def test_a_balancer_that_dies_while_it_leaves_gives_its_slots_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balancer_link, "FIRST_PAUSE_S", 0.001)
    async with world() as it, trio.open_nursery() as nursery:
        before = await it.agent_of(it.old)
        it.accepting = it.new
        await nursery.start(Departure(it.old).run)
        after = await it.agent_of(it.new)
        assert after.status.slots_total == 0
        before.scope.cancel()
        await until(lambda: after.status.slots_total == SLOTS)
        assert it.link.is_up
        after.scope.cancel()
        await until(lambda: it.link.num_connections == 3)
        again = await it.agent_of(it.new)
        await until(lambda: again.status.slots_total == SLOTS)
        nursery.cancel_scope.cancel()


async def test_an_agent_that_leaves_says_goodbye_to_both() -> None:
    async with world() as it, trio.open_nursery() as nursery:
        before = await it.agent_of(it.old)
        it.accepting = it.new
        await nursery.start(Departure(it.old).run)
        after = await it.agent_of(it.new)
        await it.link.leave()
        assert (before.said_goodbye, after.said_goodbye) == (True, True)
        assert not it.old.agents
        assert not it.new.agents
        nursery.cancel_scope.cancel()
