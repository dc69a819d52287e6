"""A call for many embeddings ends as it says, also where something fails in the middle of it."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import trio
from dispatch_world import LIMITS, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.embedding_fan_out import EmbeddingFanOut
from paddler_trio.net.server.input_budget import FREE_BYTES, MIB, InputBudget
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire import codec
from paddler_trio.wire.paddler.request_params import GenerateEmbeddingBatchParams
from paddler_trio.wire.trace_parent import TraceContext

VECTOR = {
    "embedding": [1.0],
    "normalization_method": "None",
    "pooling_type": "Mean",
}


async def test_a_call_for_whose_next_part_there_is_no_room_says_so_and_is_done(
    autojump_clock: MockClock,
) -> None:
    """The status is out, and so may be vectors of the parts before."""
    documents = [{"id": str(number), "content": "word " * 5_000} for number in range(4)]
    params = codec.structure(
        {"input_batch": documents, "normalization_method": "None"}, GenerateEmbeddingBatchParams
    )
    budget = InputBudget(MIB)
    room, others = budget.reservation(), budget.reservation()
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    exchange = exchange_for({}, trio.sleep_forever, send, room=room)
    async with world(LIMITS) as here, trio.open_nursery() as nursery:
        agent = here.agent(slots=1, serves=None)
        call = EmbeddingFanOut(
            here.dispatcher,
            params,
            1,
            client="",
            priority=Priority.NORMAL,
            id="call",
            trace=TraceContext("1" * 32, "2" * 16),
        )
        nursery.start_soon(call.stream, exchange, [])
        await wait_all_tasks_blocked()
        others.grow(FREE_BYTES + MIB - budget.held_bytes)
        for document in "01":  # the second one was encoded while the first was computed
            (started,) = agent.sent()
            lease = agent.connection.lease(started.removeprefix("start "))
            assert lease is not None
            vector = VECTOR | {"source_document_id": document}
            lease.deliver("Embedding", [{"Embedding": vector}], ends=False)
            lease.deliver("Embedding", ["Done"], ends=True)
            await wait_all_tasks_blocked()
    lines = [json.loads(message["body"]) for message in sent[1:]]
    *parts, done = lines
    vectors = [
        part["Response"]["response"]["Embedding"]["Embedding"]["source_document_id"]
        for part in parts
        if "Response" in part
    ]
    assert sorted(vectors) == ["0", "1"]
    (error,) = [part["Error"]["error"] for part in parts if "Error" in part]
    assert error["code"] == 503
    assert "input" in error["description"]
    assert done["Response"]["response"] == {"Embedding": "Done"}
    assert not sent[-1].get("more_body")
