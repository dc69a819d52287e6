"""The operator: puts models, drains agents and lets them work again, asks them what they run."""

from __future__ import annotations

import attrs
import trio
from scenario import Order
from watched_dispatcher import WatchedDispatcher
from world import World

from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.errors import LinkError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    InferenceParameters,
    LocalToAgent,
)

ANSWER_S = 3.0


def state_of(path: str) -> BalancerDesiredState:
    """Paths that begin with ``e`` are models that make embeddings."""
    parameters = InferenceParameters(enable_embeddings=path.startswith("e"), embedding_batch_size=2)
    return attrs.evolve(
        BalancerDesiredState.default(),
        model=LocalToAgent(path),
        inference_parameters=parameters,
    )


async def operate(world: World, dispatcher: WatchedDispatcher, states: FleetKeeper) -> None:
    """Everything the scenario has the operator do."""
    async with trio.open_nursery() as nursery:
        for swap in world.scenario.swaps:
            nursery.start_soon(_put, world, states, swap)
        for order in world.scenario.drains:
            nursery.start_soon(_drain, world, dispatcher, order)
        for order in world.scenario.queries:
            nursery.start_soon(_ask, world, dispatcher, order)


async def _put(world: World, states: FleetKeeper, swap: Order) -> None:
    await trio.sleep_until(swap.at_s)
    world.note("operator", f"puts {swap.subject}")
    await states.replace(state_of(swap.subject))


async def _drain(world: World, dispatcher: WatchedDispatcher, order: Order) -> None:
    """Drain an agent for a while; it may be away at either end."""
    await trio.sleep_until(order.at_s)
    agent = _find(dispatcher, order.subject)
    if agent is None or agent.id in world.drained:
        return
    world.note("operator", f"drains {agent.id}")
    dispatcher.drain_agent(agent, drained=True)
    world.drained.add(agent.id)
    await trio.sleep(order.for_s)
    ordinal = 0
    while (agent := _find(dispatcher, order.subject)) is None:
        ordinal = await dispatcher.agents_changed.wait_beyond(ordinal)
    world.note("operator", f"lets {agent.id} work")
    world.drained.discard(agent.id)
    dispatcher.drain_agent(agent, drained=False)


async def _ask(world: World, dispatcher: WatchedDispatcher, order: Order) -> None:
    await trio.sleep_until(order.at_s)
    agent = _find(dispatcher, order.subject)
    if agent is None:
        return
    answer: object = "no answer in time"
    with trio.move_on_after(ANSWER_S):
        try:
            if agent.kind.answers_questions:
                answer = await agent.questions.ask_tree()
            else:
                answer = await agent.questions.ask("GetModelMetadata")
        except LinkError as error:
            answer = error
    world.note("operator", f"hears from {agent.id}: {answer}")


def _find(dispatcher: WatchedDispatcher, agent_id: str) -> AgentConnection | None:
    return next((a for a in dispatcher.agents.values() if a.id == agent_id), None)
