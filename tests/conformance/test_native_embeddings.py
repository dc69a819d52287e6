"""Embedding batches over HTTP: split over the agents, gathered into one stream, never cut short."""

from __future__ import annotations

import pytest
import trio
from native_client import (
    CHAT,
    CONVERSATION,
    EMBED,
    RAW,
    RAW_PROMPT,
    Json,
    agents_of,
    only_line,
    request_id_of,
    result_of,
    running_balancer,
)
from paddler_agent import PaddlerAgent


def documents(number: int) -> Json:
    batch = [{"id": f"d{place}", "content": f"text {place}"} for place in range(number)]
    return {"input_batch": batch, "normalization_method": "L2"}


def embedding(document_id: str) -> Json:
    return {
        "Embedding": {
            "embedding": [0.25, -0.5],
            "normalization_method": "L2",
            "pooling_type": "Last",
            "source_document_id": document_id,
        }
    }


async def embed(agent: PaddlerAgent, sizes: list[int]) -> None:
    """Answer every sub-batch as a 4.1 agent does: its documents in order, then Done."""
    while True:
        wire_id, request = await agent.next_request()
        batch = request["GenerateEmbeddingBatch"]["input_batch"]
        sizes.append(len(batch))
        for document in batch:
            await agent.respond(wire_id, {"Embedding": embedding(document["id"])})
        await agent.respond(wire_id, {"Embedding": "Done"})


async def test_embeddings_are_refused_with_the_reason_when_they_cannot_be() -> None:
    async with running_balancer() as balancer:
        answer = await balancer.http.post(balancer.inference_url(EMBED), json=documents(1))
        assert answer.status_code == 501
        assert answer.text == "Embedding generation is not enabled in the inference parameters"
        await balancer.put_parameters(enable_embeddings=True)
        answer = await balancer.http.post(balancer.inference_url(EMBED), json=documents(1))
        assert (answer.status_code, answer.text) == (503, "No agents are currently connected")


async def test_generation_is_a_501_while_the_cluster_embeds() -> None:
    async with running_balancer() as balancer:
        await balancer.put_parameters(enable_embeddings=True)
        for path, body in ((RAW, RAW_PROMPT), (CHAT, CONVERSATION)):
            answer = await balancer.http.post(balancer.inference_url(path), json=body)
            assert answer.status_code == 501
            assert answer.text == (
                "Token generation is disabled while the cluster is configured for embeddings"
            )


async def test_a_batch_reaches_all_agents_and_every_document_returns_once() -> None:
    async with running_balancer() as balancer:
        await balancer.put_parameters(enable_embeddings=True)
        async with agents_of(balancer, 1, 2, 1, 3) as agents, trio.open_nursery() as nursery:
            sizes: list[list[int]] = [[] for _ in agents]
            for agent, seen in zip(agents, sizes, strict=True):
                nursery.start_soon(embed, agent, seen)
            async with balancer.post(EMBED, documents(11)) as answer:
                *lines, last = await answer.rest()
            await balancer.wait_slots(0, 0, 0, 0)
            nursery.cancel_scope.cancel()
    assert sorted(size for seen in sizes for size in seen) == [2, 3, 3, 3]
    assert all(sizes)
    found = [result_of(line)["Embedding"]["source_document_id"] for line in lines]
    assert sorted(found) == sorted(f"d{place}" for place in range(11))
    assert len({request_id_of(line) for line in lines}) == 4
    envelope = last["Response"]
    assert envelope.keys() == {"generated_by", "request_id", "response"}
    assert (envelope["generated_by"], envelope["response"]) == (None, {"Embedding": "Done"})
    assert request_id_of(last) not in {request_id_of(line) for line in lines}


async def test_sixteen_documents_over_four_slots_and_a_small_buffer_all_get_an_answer() -> None:
    async with running_balancer(max_buffered_requests=4) as balancer:
        await balancer.put_parameters(enable_embeddings=True, embedding_batch_size=1)
        async with agents_of(balancer, 1, 1, 1, 1) as agents, trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(embed, agent, [])
            async with balancer.post(EMBED, documents(16)) as answer:
                *lines, last = await answer.rest()
            nursery.cancel_scope.cancel()
    assert last["Response"]["response"] == {"Embedding": "Done"}
    assert len(lines) == 16
    assert not [line for line in lines if "Error" in line], "a batch overflowed the shared buffer"


@pytest.mark.parametrize(
    "ending",
    [
        "NoEmbeddingsProduced",
        "EmbeddingsDisabled",
        "EmbeddingRejectedDueToActiveTokenGeneration",
        {"Error": "x"},
    ],
    ids=str,
)
async def test_what_ends_a_part_of_a_batch_does_not_end_the_batch(ending: Json) -> None:
    async with running_balancer() as balancer:
        await balancer.put_parameters(enable_embeddings=True)
        async with agents_of(balancer, 1, 1) as agents, balancer.post(EMBED, documents(2)) as a:
            requests = [await agent.next_request() for agent in agents]
            await agents[0].respond(requests[0][0], {"Embedding": ending})
            assert result_of(await a.next_line()) == ending
            content = requests[1][1]["GenerateEmbeddingBatch"]["input_batch"][0]["id"]
            await agents[1].respond(requests[1][0], {"Embedding": embedding(content)})
            await agents[1].respond(requests[1][0], {"Embedding": "Done"})
            first, last = await a.rest()
        assert result_of(first) == embedding(content)
        assert result_of(last) == "Done"


async def test_an_empty_batch_is_done_at_once_and_a_dropped_one_stops_its_parts() -> None:
    async with running_balancer() as balancer:
        await balancer.put_parameters(enable_embeddings=True)
        async with agents_of(balancer, 1) as (agent,):
            assert result_of(await only_line(balancer, EMBED, documents(0))) == "Done"
            async with balancer.post(EMBED, documents(3)):
                wire_id, _ = await agent.next_request()
            assert await agent.next_stop() == wire_id
            await agent.respond(wire_id, {"Embedding": "NoEmbeddingsProduced"})
            await balancer.wait_slots(0)
