"""In some scenarios a part of the fleet serves another model to those who ask for it by name.

Its agents are instances on hosts of their own, and its requests come over ``/api/v2/generate``.
What it serves never changes; what happens to the other deployment must not be noticed here.
"""

from __future__ import annotations

import random

import attrs
from scenario import AgentPlan, ClientPlan, Order, Scenario, Shape

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    InferenceParameters,
    LocalToAgent,
    NoModel,
    state_digest,
)

OTHER = "other"
STATE = AgentDesiredState(
    chat_template_override=None,
    inference_parameters=InferenceParameters(),
    model=LocalToAgent("o0"),
    multimodal_projection=NoModel(),
)
SHARE = 0.25
"""Of the scenarios."""


def divided(scenario: Scenario) -> Scenario:
    """The scenario, maybe with some of its agents and requests in the other deployment."""
    rng = random.Random(f"{scenario.seed}/deployments")
    if rng.random() > SHARE:
        return scenario
    new_ids: dict[str, str] = {}
    agents = []
    for agent in scenario.agents:
        if not agent.is_paddler and rng.random() < 0.5:
            new_ids[agent.id] = f"{agent.id}.{OTHER}"
            agents.append(attrs.evolve(agent, id=new_ids[agent.id], deployment=OTHER))
        else:
            agents.append(agent)

    def renamed(orders: tuple[Order, ...]) -> tuple[Order, ...]:
        return tuple(
            attrs.evolve(order, subject=new_ids.get(order.subject, order.subject))
            for order in orders
        )

    return attrs.evolve(
        scenario,
        agents=tuple(agents),
        clients=tuple(_asking(client, rng) for client in scenario.clients),
        drains=renamed(scenario.drains),
        queries=renamed(scenario.queries),
    )


def _asking(client: ClientPlan, rng: random.Random) -> ClientPlan:
    is_other = rng.random() < 0.5
    if client.is_socket or client.asks[0].shape is not Shape.RAW or not is_other:
        return client
    return attrs.evolve(client, asks=(attrs.evolve(client.asks[0], shape=Shape.OTHER),))


def open_pools(dispatcher: Dispatcher) -> None:
    """Both deployments are there, with or without agents."""
    dispatcher.set_deployments(
        [
            PoolSettings(name="default"),
            PoolSettings(name=OTHER, admissible=frozenset({state_digest(STATE)})),
        ]
    )


def introduce(agent: AgentConnection) -> None:
    """An instance is sent the state of its deployment."""
    if agent.deployment == OTHER:
        agent.send_state(STATE)


def placement(agent: AgentPlan) -> dict[str, object]:
    """What an instance announces."""
    host = agent.id.removesuffix(f".{agent.deployment}")
    return {"host": host, "deployment": agent.deployment, "labels": {}}
