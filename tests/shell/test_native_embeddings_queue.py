"""Whose turn it is when native embeddings wait: that of the client that sent them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.embedding_fan_out import MAX_UNREAD
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.asgi import Message, Scope
from paddler_trio.net.server.client_identity import CLIENT_HEADER, PRIORITY_HEADER
from paddler_trio.net.server.exchange import Identity
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, InferenceParameters
from paddler_trio.wire.paddler.messages import AgentRequest
from paddler_trio.wire.paddler.request_params import GenerateEmbeddingBatchParams

WIDE = DispatchLimits(max_buffered=30, buffered_timeout_s=10, item_timeout_s=30)
PATH = "/api/v1/generate_embedding_batch"


async def routes_of(here: World) -> InferenceRoutes:
    """The inference port of a cluster that embeds one document at a time."""
    states = FleetKeeper(MemoryDatabase(), here.dispatcher)
    parameters = InferenceParameters(enable_embeddings=True, embedding_batch_size=1)
    desired = BalancerDesiredState.default()
    await states.replace(attrs.evolve(desired, inference_parameters=parameters))
    return InferenceRoutes(here.dispatcher, states, trio.Event())


async def embed(
    listener: InferenceRoutes,
    *texts: str,
    who: Mapping[bytes, bytes] | Identity,
    reads: trio.Event | None = None,
) -> None:
    """One call, read to its end; ``who``: the client, by headers of its own or by its key.

    ``reads``: until it is set, nothing of the body is read.
    """
    documents = [{"id": text, "content": text} for text in texts]
    body = dumps({"input_batch": documents, "normalization_method": "None"})
    arriving: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if arriving:
            return arriving.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if reads is not None and message["type"] == "http.response.body":
            await reads.wait()
        await trio.lowlevel.checkpoint()

    identity, own = (who, {}) if isinstance(who, Identity) else (Identity(), who)
    headers = [*own.items(), (b"content-type", b"application/json")]
    scope: Scope = {"method": "POST", "path": PATH, "headers": headers}
    await listener.routes()(exchange_for(scope, receive, send, identity=identity))


def answer(agent: Peer) -> str:
    """End the one document that the agent was given last, and say which it was."""
    (asked,) = [frame for frame in agent.received() if isinstance(frame, AgentRequest)]
    assert isinstance(asked.request, GenerateEmbeddingBatchParams)
    (document,) = asked.request.input_batch
    agent.lease(asked.id).deliver("Embedding", ["Done"], ends=True)
    return document.content


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({CLIENT_HEADER: b"one"}, {CLIENT_HEADER: b"other"}),
        (Identity("one"), Identity("other")),
        ({}, {PRIORITY_HEADER: b"high"}),
    ],
    ids=["header", "key", "priority"],
)
async def test_who_sends_little_does_not_wait_for_who_sends_much(
    one: Mapping[bytes, bytes] | Identity,
    other: Mapping[bytes, bytes] | Identity,
    autojump_clock: MockClock,
) -> None:
    async with world(WIDE) as here, trio.open_nursery() as nursery:
        listener = await routes_of(here)
        agent = here.agent(slots=1)
        for number in range(3):
            texts = [f"much {number}.{place}" for place in range(2)]
            nursery.start_soon(lambda texts=texts: embed(listener, *texts, who=one))
            await wait_all_tasks_blocked()
        nursery.start_soon(lambda: embed(listener, "little", who=other))
        order: list[str] = []
        for _ in range(7):
            await wait_all_tasks_blocked()
            order.append(answer(agent))
        assert order[0] == "much 0.0"
        assert order.index("little") == 1, order


async def test_a_client_that_does_not_read_makes_its_own_call_wait(
    autojump_clock: MockClock,
) -> None:
    """What was answered and not read is held: of a long call, only so much."""
    reads = trio.Event()
    texts = [f"text {place}" for place in range(40)]
    async with world(WIDE) as here, trio.open_nursery() as nursery:
        listener = await routes_of(here)
        agent = here.agent(slots=1)
        nursery.start_soon(partial(embed, listener, *texts, who={}, reads=reads))
        answered = 0

        async def answer_all() -> None:
            nonlocal answered
            await wait_all_tasks_blocked()
            while frames := [f for f in agent.received() if isinstance(f, AgentRequest)]:
                for frame in frames:
                    vector = {"Embedding": {"embedding": [0.5], "source_document_id": "x"}}
                    agent.lease(frame.id).deliver("Embedding", [vector, "Done"], ends=True)
                    answered += 1
                await wait_all_tasks_blocked()

        await answer_all()
        # and one is being written, one was in the slot, one waited
        assert answered == MAX_UNREAD + 3
        reads.set()
        await answer_all()
        assert answered == 40
