"""Embeddings through everything: the published client, a balancer, two agents, their engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from fleet import Fleet
from paddler_client.embedding_input_document import EmbeddingInputDocument
from paddler_client.embedding_normalization_method import EmbeddingNormalizationMethod
from paddler_client.generate_embedding_batch_params import GenerateEmbeddingBatchParams
from paddler_client.inference_message import InferenceMessage, InferenceMessageKind
from paddler_client.pooling_type import PoolingType
from test_paddler_client import clients

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

EMBED = "/api/v1/generate_embedding_batch"
LONG = 150
SHORT = 30


@pytest.fixture(scope="module")
def embedding_fleet() -> Iterator[Fleet]:
    """Two agents with four slots each, in embeddings mode; leave it as it was found."""
    patient = ["--drain-timeout=60000"]
    with Fleet.start(agents=2, slots=4, balancer_options=patient, agent_options=patient) as fleet:
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean", n_batch=256)
        fleet.wait_serving()
        yield fleet


def batch(name: str, texts: list[str]) -> GenerateEmbeddingBatchParams:
    return GenerateEmbeddingBatchParams(
        input_batch=[
            EmbeddingInputDocument(id=f"{name}{place}", content=text)
            for place, text in enumerate(texts)
        ],
        normalization_method=EmbeddingNormalizationMethod.l2(),
    )


def test_concurrent_clients_get_their_own_documents_from_every_agent(
    embedding_fleet: Fleet,
) -> None:
    texts = [f"document {place} " + "about the sea " * (place % 12) for place in range(60)]

    async def body() -> None:
        async with clients(embedding_fleet) as (inference, _):

            async def embed(name: str) -> list[InferenceMessage]:
                found = inference.generate_embedding_batch(batch(name, texts))
                return [message async for message in found]

            answers = await asyncio.gather(*(embed(name) for name in "abcde"))
        first: dict[str, list[float]] = {}
        agents: set[str | None] = set()
        for name, messages in zip("abcde", answers, strict=True):
            *embeddings, last = messages
            assert last.kind == InferenceMessageKind.EMBEDDING_DONE
            assert {each.kind for each in embeddings} == {InferenceMessageKind.EMBEDDING}
            agents |= {each.generated_by for each in embeddings}
            found = {}
            for each in embeddings:
                assert each.embedding_data is not None
                assert each.embedding_data.pooling_type == PoolingType.MEAN
                found[each.embedding_data.source_document_id] = each.embedding_data.embedding
            assert found.keys() == {f"{name}{place}" for place in range(60)}
            for place in range(60):
                vector = found[f"{name}{place}"]
                again = first.setdefault(str(place), vector)
                assert np.allclose(vector, again, atol=0.02), "others' company changed a vector"
        assert agents == {"a1", "a2"}

    asyncio.run(body())


def test_oversize_documents_are_reported_and_cost_nobody_else(embedding_fleet: Fleet) -> None:
    body = batch("d", ["red", "the sea " * 400, "green"]).model_dump(mode="json")
    answer = httpx.post(
        embedding_fleet.inference_url + EMBED, json=body, trust_env=False, timeout=60
    )
    lines = [json.loads(line)["Response"]["response"] for line in answer.text.splitlines()]
    found: dict[str, Any] = {}
    for line in lines[:-1]:
        ((tag, value),) = (
            line["Embedding"].items()
            if isinstance(line["Embedding"], dict)
            else ((line["Embedding"], None),)
        )
        found.setdefault(tag, []).append(value)
    assert {each["source_document_id"] for each in found["Embedding"]} == {"d0", "d2"}
    (oversize,) = found["DocumentExceedsBatchSize"]
    assert (oversize["source_document_id"], oversize["n_batch"]) == ("d1", 256)
    assert oversize["document_tokens"] > 256
    assert lines[-1] == {"Embedding": "Done"}


def test_an_engine_that_dies_under_a_batch_costs_no_document_that_was_not_out(
    embedding_fleet: Fleet,
) -> None:
    """Sub-batches without a result go on elsewhere; others end with one error. None hangs."""
    texts = ["the sea and the sky " * 10] * LONG
    victim = embedding_fleet.agents["a1"].engine_pid
    assert victim is not None
    body = batch("d", texts).model_dump(mode="json")
    with httpx.stream(
        "POST", embedding_fleet.inference_url + EMBED, json=body, trust_env=False, timeout=60
    ) as answer:
        lines = answer.iter_lines()
        messages = [json.loads(next(lines))]
        os.kill(victim, signal.SIGKILL)
        messages += [json.loads(line) for line in lines]
    assert messages[-1]["Response"]["response"] == {"Embedding": "Done"}
    errors = [each["Error"]["error"]["code"] for each in messages if "Error" in each]
    ids = [
        each["Response"]["response"]["Embedding"]["Embedding"]["source_document_id"]
        for each in messages[:-1]
        if "Response" in each
    ]
    assert len(ids) == len(set(ids)), "a document came twice"
    assert len(errors) <= 1
    assert set(errors) <= {502}
    assert len(ids) == LONG or errors
    assert len(ids) >= LONG // 2
    embedding_fleet.wait_serving()
    assert embedding_fleet.agents["a1"].engine_pid != victim


def test_a_swap_lets_documents_finish_on_the_old_model(embedding_fleet: Fleet) -> None:
    body = batch("d", ["the sea and the sky " * 25] * SHORT).model_dump(mode="json")
    with httpx.stream(
        "POST", embedding_fleet.inference_url + EMBED, json=body, trust_env=False, timeout=60
    ) as answer:
        lines = answer.iter_lines()
        messages = [json.loads(next(lines))]
        embedding_fleet.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Last")
        messages += [json.loads(line) for line in lines]
    assert not [each for each in messages if "Error" in each]
    embeddings = [each["Response"]["response"]["Embedding"]["Embedding"] for each in messages[:-1]]
    assert len(embeddings) == SHORT
    assert {each["pooling_type"] for each in embeddings} == {"Mean"}
    embedding_fleet.wait_serving()
    embedding_fleet.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean", n_batch=256)
    embedding_fleet.wait_serving()
