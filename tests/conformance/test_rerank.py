"""Documents ranked through everything: by a tiny reranker of random weights, in both shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import httpx
import pytest
from fleet import Fleet

from encoder_models import write_bert

DOCUMENTS = ["red green blue", "sun rain snow wind", "one two three", "sea sky"]


@pytest.fixture(scope="module")
def ranking_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two agents that serve a reranker."""
    path = tmp_path_factory.mktemp("reranker") / "reranker.gguf"
    model = write_bert(path, pooling=gguf.PoolingType.RANK, classes=1)
    with Fleet.start(agents=2, slots=2, model=None) as fleet:
        fleet.desire(model, enable_embeddings=True, pooling_type="Rank", context_size=64)
        fleet.wait_serving()
        yield fleet


def rank(fleet: Fleet, path: str = "/v1/rerank", **body: object) -> httpx.Response:
    return httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)


def scores(results: list[dict[str, Any]], name: str = "relevance_score") -> dict[int, float]:
    return {result["index"]: result[name] for result in results}


def test_documents_come_best_first_whatever_agent_ranked_them(ranking_fleet: Fleet) -> None:
    answer = rank(ranking_fleet, query="rain", documents=DOCUMENTS).json()
    found = scores(answer["results"])
    assert set(found) == {0, 1, 2, 3}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert len(set(found.values())) == 4
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 4 * 3
    alone = {
        place: rank(ranking_fleet, query="rain", documents=[document]).json()["results"][0]
        for place, document in enumerate(DOCUMENTS)
    }
    for place, result in alone.items():
        assert result["relevance_score"] == pytest.approx(found[place], abs=1e-3)


@pytest.mark.parametrize(("top_n", "count"), [(0, 0), (-1, 0), (2, 2), (99, 3)])
def test_as_many_as_are_asked_for(ranking_fleet: Fleet, top_n: int, count: int) -> None:
    answer = rank(ranking_fleet, query="sun", documents=["sea", "sky", "sun"], top_n=top_n)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == count


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_only_the_best_with_their_documents(ranking_fleet: Fleet, path: str) -> None:
    answer = rank(
        ranking_fleet,
        path,
        model="m",
        query="sea",
        documents=[{"text": text} for text in DOCUMENTS],
        top_n=2,
        return_documents=True,
    ).json()
    assert answer["model"] == "m"
    assert len(answer["results"]) == 2
    for result in answer["results"]:
        assert result["document"]["text"] == DOCUMENTS[result["index"]]


def test_the_shape_of_tei(ranking_fleet: Fleet) -> None:
    usual = rank(ranking_fleet, query="one", documents=DOCUMENTS).json()["results"]
    other = rank(ranking_fleet, query="one", texts=DOCUMENTS, return_text=True).json()
    assert scores(other, "score") == pytest.approx(scores(usual), abs=1e-3)
    assert all(each["text"] == DOCUMENTS[each["index"]] for each in other)


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3]])
def test_what_are_no_documents_is_refused(ranking_fleet: Fleet, documents: object) -> None:
    answer = rank(ranking_fleet, query="one", documents=documents)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("documents")


def test_a_document_that_is_too_long_is_named(ranking_fleet: Fleet) -> None:
    answer = rank(ranking_fleet, query="one", documents=["sea", "sky " * 200])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "documents[1]"


def test_a_cluster_that_generates_ranks_nothing(fleet: Fleet) -> None:
    answer = rank(fleet, query="one", documents=DOCUMENTS)
    assert answer.status_code == 501
    assert "pooling-type Rank" in answer.json()["error"]["message"]
