"""Our agent embeds, as a real process: for a Paddler 4.1 balancer, and for one of ours."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
import trio
from native_client import Json
from paddler_balancer import AgentLink, paddler_balancer
from test_agent_against_paddler_balancer import SLOTS, agent_of, raw_prompt, state

from encoder_models import N_CTX_TRAIN, WIDTH, write_bert
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

DECODER_WIDTH = 256
ENDINGS = ("Done", "NoEmbeddingsProduced", "EmbeddingsDisabled", "Error")


@asynccontextmanager
async def embedding_agent(
    model: Path, *, subprotocol: str | None = None, **parameters: Json
) -> AsyncIterator[AgentLink]:
    """An agent that serves this model in embeddings mode."""
    async with paddler_balancer(subprotocol) as balancer:
        with agent_of(balancer):
            link = await balancer.next_link()
            await link.set_state(state(model, enable_embeddings=True, **parameters))
            await link.wait_serving(SLOTS)
            yield link


def batch(texts: list[str], normalization: Json = "L2") -> Json:
    documents = [{"id": f"d{place}", "content": text} for place, text in enumerate(texts)]
    body = {"input_batch": documents, "normalization_method": normalization}
    return {"GenerateEmbeddingBatch": body}


def tag_of(result: Json) -> str:
    return result if isinstance(result, str) else next(iter(result))


async def answer(link: AgentLink, request_id: str) -> list[Json]:
    """All embedding results of a request, its ending last."""
    results: list[Json] = []
    num_read = 0

    def is_over(link: AgentLink) -> bool:
        nonlocal num_read
        for frame in link.received[num_read:]:
            num_read += 1
            response = frame.get("Response")
            if response is not None and response["request_id"] == request_id:
                results.append(response["response"]["Embedding"])
        return bool(results) and tag_of(results[-1]) in ENDINGS

    await link.wait(is_over, f"the ending of {request_id}")
    assert sum(tag_of(result) in ENDINGS for result in results) == 1
    return results


async def start(link: AgentLink, request_id: str, work: Json) -> list[Json]:
    """Ask in our own words, and wait for the answer."""
    body = {"id": request_id, "request": work, "seed": 1, "tokens": []}
    await link.say({"Trio": {"Start": body}})
    return await answer(link, request_id)


def vectors(results: list[Json]) -> dict[str, list[float]]:
    found = [each["Embedding"] for each in results if "Embedding" in each]
    return {each["source_document_id"]: each["embedding"] for each in found}


def texts_of_all_lengths(number: int) -> list[str]:
    return [f"document {place} " + "about the sea " * (place % 9) for place in range(number)]


async def test_a_batch_is_answered_as_paddler_s_agents_do() -> None:
    async with embedding_agent(BUNDLED_MODEL, n_batch=64) as link:
        await link.ask("e1", batch(["red", "sea " * 200, "green", "sky " * 100, "red"]))
        first, second, *embeddings, last = await answer(link, "e1")
        assert first["DocumentExceedsBatchSize"].keys() == {
            "document_tokens",
            "n_batch",
            "source_document_id",
        }
        assert first["DocumentExceedsBatchSize"]["n_batch"] == 64
        assert first["DocumentExceedsBatchSize"]["document_tokens"] > 200
        assert [
            each["DocumentExceedsBatchSize"]["source_document_id"] for each in (first, second)
        ] == ["d1", "d3"]
        assert [each["Embedding"]["source_document_id"] for each in embeddings] == [
            "d0",
            "d2",
            "d4",
        ]
        assert last == "Done"
        for each in embeddings:
            embedding = each["Embedding"]
            assert embedding.keys() == {
                "embedding",
                "normalization_method",
                "pooling_type",
                "source_document_id",
            }
            assert embedding["normalization_method"] == "L2"
            assert embedding["pooling_type"] == "Last"
            assert len(embedding["embedding"]) == DECODER_WIDTH
            assert math.isclose(math.hypot(*embedding["embedding"]), 1, rel_tol=1e-5)
        found = vectors(embeddings)
        assert np.allclose(found["d0"], found["d4"], atol=0.02)
        assert not np.allclose(found["d0"], found["d2"], atol=0.02)

        await link.ask("e2", batch(["sea " * 200]))
        assert [*await answer(link, "e2")][1:] == ["NoEmbeddingsProduced"]
        await link.ask("e3", batch([]))
        assert await answer(link, "e3") == ["NoEmbeddingsProduced"]
        await link.ask("e4", batch(["red", "", "green"]))
        assert list(vectors(results := await answer(link, "e4"))) == ["d0", "d2"]
        assert results[-1] == {"Error": "document 'd1' is empty: there is nothing to embed"}
        await link.ask("g", raw_prompt())
        (refused,) = await link.wait_answer("g")
        assert refused.keys() == {"TokenGenerationDisabled"}


async def test_every_normalisation_scales_the_same_vector() -> None:
    async with embedding_agent(BUNDLED_MODEL, pooling_type="Mean") as link:
        methods = {"raw": "None", "l2": "L2", "rms": {"RmsNorm": {"epsilon": 0.5}}}
        found = {}
        for name, method in methods.items():
            await link.ask(name, batch(["the sun over the sea"], method))
            (result, _) = await answer(link, name)
            assert result["Embedding"]["normalization_method"] == method
            found[name] = np.array(result["Embedding"]["embedding"])
        raw = found["raw"]
        assert np.linalg.norm(raw) > 2
        assert np.allclose(found["l2"], raw / np.linalg.norm(raw), atol=1e-5)
        assert np.allclose(found["rms"], raw / np.sqrt(np.mean(raw**2) + 0.5), atol=1e-5)


async def test_many_requests_at_once_each_get_their_own_documents_in_order() -> None:
    texts = texts_of_all_lengths(40)
    async with embedding_agent(BUNDLED_MODEL, pooling_type="Mean") as link:
        for place in range(6):
            await link.ask(f"e{place}", batch(texts[place:]))
        alone = {}
        for place, text in enumerate(texts):
            await link.ask(f"alone{place}", batch([text]))
            alone[text] = vectors(await answer(link, f"alone{place}"))["d0"]
        for place in range(6):
            *embeddings, last = await answer(link, f"e{place}")
            found = vectors(embeddings)
            assert last == "Done"
            assert list(found) == [f"d{index}" for index in range(40 - place)]
            for text, vector in zip(texts[place:], found.values(), strict=True):
                assert np.allclose(vector, alone[text], atol=0.02)


async def test_a_stopped_batch_ends_at_once_and_its_slot_is_free() -> None:
    async with embedding_agent(BUNDLED_MODEL, pooling_type="Mean") as link:
        await link.ask("e1", batch(["the sea " * 60] * 3000))
        await link.wait_results("e1", 1)
        await link.stop("e1")
        results = await answer(link, "e1")
        assert results[-1] == "Done"
        assert len(results) < 1000
        await link.ask("e2", batch(["red"]))
        assert (await answer(link, "e2"))[-1] == "Done"
        await link.wait_status(lambda status: status["slots_processing"] == 0, "nothing runs")
        assert len(link.results("e1")) == len(results), "a result came after the ending"


@pytest.mark.parametrize("template", [None, "{% if %}"], ids=["without", "broken"])
async def test_a_model_for_embedding_needs_no_template_and_no_decoder(
    tmp_path: Path, template: str | None
) -> None:
    encoder = write_bert(tmp_path / "encoder.gguf", chat_template=template)
    async with embedding_agent(encoder, pooling_type="Unspecified") as link:
        await link.ask("e1", batch(["red sun", "sea " * 100]))
        oversize, embedded, last = await answer(link, "e1")
        assert oversize["DocumentExceedsBatchSize"]["n_batch"] == N_CTX_TRAIN
        assert len(embedded["Embedding"]["embedding"]) == WIDTH
        assert last == "Done"


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ("None", "a vector for each token and none for the document"),
        ("Unspecified", "the model has none of its own"),
        ("Rank", "classification head"),
    ],
)
async def test_a_pooling_that_gives_no_vector_says_so_and_what_to_set(
    pooling: str, words: str
) -> None:
    async with embedding_agent(BUNDLED_MODEL, pooling_type=pooling) as link:
        await link.ask("e1", batch(["red"]))
        (error,) = await answer(link, "e1")
        assert words in error["Error"]
        assert "Mean, Cls or Last" in error["Error"]


async def test_without_embeddings_mode_the_answer_is_that_they_are_disabled() -> None:
    async with embedding_agent(BUNDLED_MODEL) as link:
        await link.set_state(state(BUNDLED_MODEL))
        await link.wait_status(lambda s: s["slots_total"] == 0, "it loads again")
        await link.wait_serving(SLOTS)
        await link.ask("e1", batch(["red"]))
        assert await answer(link, "e1") == ["EmbeddingsDisabled"]


async def test_our_own_embedding_work_counts_tokens_and_takes_what_is_too_long() -> None:
    async with embedding_agent(
        BUNDLED_MODEL, subprotocol=SUBPROTOCOL, pooling_type="Mean", n_batch=32
    ) as link:
        long = "the sea and the sky " * 20
        inputs = [{"Text": {"text": "red"}}, {"Tokens": {"tokens": [5, 6, 7]}}]
        *found, usage, last = await start(link, "w1", {"Embed": {"inputs": inputs}})
        assert list(vectors(found)) == ["0", "1"]
        assert usage["Usage"]["prompt_tokens"] == 3 + len(tokens_of("red"))
        assert last == "Done"

        inputs = [{"Text": {"text": ""}}, {"Text": {"text": "red"}}]
        refused, found, _, last = await start(link, "w0", {"Embed": {"inputs": inputs}})
        problem = "document '0' is empty: there is nothing to embed"
        assert refused == {"DocumentRefused": {"problem": problem, "source_document_id": "0"}}
        assert list(vectors([found])) == ["1"]
        assert last == {"Error": problem}

        inputs = [{"Text": {"text": long}}]
        work = {"inputs": inputs, "oversize": "report"}
        oversize, usage, last = await start(link, "w2", {"Embed": work})
        length = oversize["DocumentExceedsBatchSize"]["document_tokens"]
        assert length > 64
        assert (usage, last) == ({"Usage": {"prompt_tokens": 0}}, "NoEmbeddingsProduced")

        truncated, usage, _ = await start(
            link, "w3", {"Embed": {**work, "oversize": "truncate", "normalize": "none"}}
        )
        assert usage == {"Usage": {"prompt_tokens": 32}}
        chunked, usage, last = await start(
            link, "w4", {"Embed": {**work, "oversize": "chunk", "normalize": "none"}}
        )
        assert (usage, last) == ({"Usage": {"prompt_tokens": length}}, "Done")
        assert vectors([chunked]) != vectors([truncated])
        (error,) = (await start(link, "w5", {"Embed": {**work, "normalize": "max"}}))[1:]
        assert "normalize is 'max'" in error["Error"]


async def test_what_the_engine_embedded_is_in_the_agent_s_report() -> None:
    async with embedding_agent(BUNDLED_MODEL, subprotocol=SUBPROTOCOL, pooling_type="Mean") as link:
        inputs = [{"Tokens": {"tokens": [5, 6, 7]}}, {"Tokens": {"tokens": [8]}}]
        await start(link, "w1", {"Embed": {"inputs": inputs}})

        def is_counted(link: AgentLink) -> bool:
            reports = [frame["Trio"]["Report"] for frame in link.received if is_report(frame)]
            engine = reports[-1]["engine"] or {}
            counted = engine.get("embedding_documents"), engine.get("embedding_tokens")
            return counted == (2, 4) and engine["embedding_ms"] > 0

        await link.wait(is_counted, "a report that counts both documents")


def is_report(frame: Json) -> bool:
    return "Report" in frame.get("Trio", {})


def tokens_of(text: str) -> list[int]:
    vocabulary = Vocabulary.load(BUNDLED_MODEL)
    try:
        return vocabulary.tokenize(text, add_special=True, parse_special=True)
    finally:
        vocabulary.close()


async def test_without_pooling_our_own_work_gets_a_vector_for_each_token() -> None:
    async with embedding_agent(BUNDLED_MODEL, subprotocol=SUBPROTOCOL, pooling_type="None") as link:
        inputs = [{"Tokens": {"tokens": [5, 6, 7]}}]
        found, _, last = await start(link, "w1", {"Embed": {"inputs": inputs}})
        rows = found["TokenEmbeddings"]["embeddings"]
        assert found["TokenEmbeddings"]["source_document_id"] == "0"
        assert [len(row) for row in rows] == [DECODER_WIDTH] * 3
        assert last == "Done"


async def test_documents_are_ranked_by_a_ranker_and_by_nothing_else(tmp_path: Path) -> None:
    ranker = write_bert(tmp_path / "r.gguf", pooling=gguf.PoolingType.RANK, classes=1)
    documents = ["red", "green sky", "sea " * 100, "red"]
    work = {"Rank": {"query": "red sun", "documents": documents}}
    async with embedding_agent(ranker, subprotocol=SUBPROTOCOL, pooling_type="Rank") as link:
        oversize, *ranks, usage, last = await start(link, "w1", work)
        assert oversize["DocumentExceedsBatchSize"]["source_document_id"] == "2"
        scores = {each["Rank"]["index"]: each["Rank"]["score"] for each in ranks}
        assert list(scores) == [0, 1, 3]
        assert scores[0] == pytest.approx(scores[3], abs=0.001)
        assert scores[0] != pytest.approx(scores[1], abs=0.001)
        assert usage == {"Usage": {"prompt_tokens": 6 + 7 + 6}}
        assert last == "Done"
        await link.ask("e1", batch(["red"]))  # Paddler's question: the class scores as they are
        embedded, last = await answer(link, "e1")
        assert len(embedded["Embedding"]["embedding"]) == 1
        assert embedded["Embedding"]["normalization_method"] == "None"
    async with embedding_agent(BUNDLED_MODEL, subprotocol=SUBPROTOCOL, pooling_type="Mean") as link:
        _, error = await start(link, "w1", work)
        assert "pooling_type is Mean: documents are ranked with pooling_type Rank" in error["Error"]


async def test_more_results_than_the_link_s_queue_holds_do_not_break_it() -> None:
    async with embedding_agent(BUNDLED_MODEL, pooling_type="Mean") as link:
        await link.ask("e1", batch(["red"] * 2500))
        *found, last = await answer(link, "e1")
        assert list(vectors(found)) == [f"d{place}" for place in range(2500)]
        assert last == "Done"


async def test_a_link_that_breaks_takes_its_documents_along_and_nothing_else() -> None:
    async with paddler_balancer() as balancer:
        with agent_of(balancer) as agent:
            link = await balancer.next_link()
            wanted = state(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean")
            await link.set_state(wanted)
            await link.wait_serving(SLOTS)
            engine = agent.engine_pid
            await link.ask("e1", batch(["the sea " * 60] * 2000))
            await link.wait_results("e1", 1)
            await link.crash()
            link = await balancer.next_link()
            await link.set_state(wanted)
            status = await link.wait_serving(SLOTS)
            assert status["slots_processing"] == 0
            await link.ask("e2", batch(["red"]))
            assert (await answer(link, "e2"))[-1] == "Done"
            assert agent.engine_pid == engine


async def test_an_agent_that_is_told_to_stop_finishes_its_documents_first() -> None:
    async with paddler_balancer() as balancer:
        with agent_of(balancer) as agent:
            link = await balancer.next_link()
            await link.set_state(state(BUNDLED_MODEL, enable_embeddings=True))
            await link.wait_serving(SLOTS)
            await link.ask("e1", batch(["the sea " * 60] * 24))
            await link.wait_results("e1", 1)
            agent.signal(signal.SIGTERM)
            await link.wait_status(lambda status: status["slots_total"] == 0, "no slots")
            await link.ask("late", batch(["red"]))
            *found, last = await answer(link, "e1")
            assert (len(found), last) == (24, "Done")
            assert await answer(link, "late") == [{"Error": "this agent is leaving"}]
            await link.wait_closed()
            assert link.received[-1] == {"Notification": "DeregisterAgent"}
            assert await trio.to_thread.run_sync(agent.wait) == 0


async def test_a_killed_engine_fails_the_batch_and_the_next_one_is_served() -> None:
    async with paddler_balancer() as balancer:
        with agent_of(balancer) as agent:
            link = await balancer.next_link()
            await link.set_state(state(BUNDLED_MODEL, enable_embeddings=True))
            await link.wait_serving(SLOTS)
            engine = agent.engine_pid
            assert engine is not None
            await link.ask("e1", batch(["the sea " * 60] * 2000))
            await link.wait_results("e1", 1)
            os.kill(engine, signal.SIGKILL)
            error = (await answer(link, "e1"))[-1]
            assert "SIGKILL" in error["Error"]
            await link.ask("e2", batch(["red"]))  # kept waiting for the engine to come back
            assert (await answer(link, "e2"))[-1] == "Done"
