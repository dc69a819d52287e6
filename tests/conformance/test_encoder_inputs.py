"""Everything llama-server takes as an input to embed, to an encoder and to a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import httpx
import pytest
from fleet import BUNDLED_MODEL, Fleet

from encoder_models import N_CTX_TRAIN, WIDTH, write_bert

RED = {"content": [{"type": "text", "text": "red"}]}


@pytest.fixture(scope="module")
def agent() -> Iterator[Fleet]:
    with Fleet.start(agents=1, slots=2, model=None) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def encoder(agent: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tmp_path_factory.mktemp("encoder") / "encoder.gguf"
    model = write_bert(path, pooling=gguf.PoolingType.MEAN)
    agent.desire(model, enable_embeddings=True, pooling_type="Mean", context_size=64)
    agent.wait_serving()
    with httpx.Client(base_url=agent.inference_url, trust_env=False, timeout=60) as http:
        yield http


def post(http: httpx.Client, path: str = "/v1/embeddings", **body: object) -> httpx.Response:
    return http.post(path, json=body)


def vectors(answer: httpx.Response) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("", 1),  # an encoder has tokens of its own around it
        ("red", 1),
        ([5, 6, 7], 1),
        ([5, "red", 7], 1),
        (["red", "green"], 2),
        (["red", [5, 6]], 2),
        ([[5, 6], [5, "red", 7]], 2),
        ({"prompt_string": "red"}, 1),
        (RED, 1),
        (["red", {"prompt_string": "red"}, RED], 3),
    ],
)
def test_inputs_have_many_forms(encoder: httpx.Client, given: object, count: int) -> None:
    told = vectors(post(encoder, input=given))
    assert [len(vector) for vector in told] == [WIDTH] * count
    for vector in told:
        assert sum(value**2 for value in vector) == pytest.approx(1, abs=1e-3)


def test_parts_of_a_text_are_one_text(encoder: httpx.Client) -> None:
    parts = {"content": [{"type": "text", "text": "red "}, {"type": "text", "text": "green"}]}
    whole, joined = vectors(post(encoder, input=["red green", parts]))
    assert whole == pytest.approx(joined, abs=1e-6)


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"input": []}, "input"),
        ({"input": {"content": "string"}}, "input"),
        ({"input": {"content": [{"type": "unknown"}]}}, "input.content[0]"),
        ({"input": {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}}, "input."),
        ({"input": [99_999]}, "input[0]"),
        ({"input": ["red", "red " * (2 * N_CTX_TRAIN)]}, "input[1]"),
        ({"input": "red", "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": "red", "dimensions": 0}, "dimensions"),
        ({"input": "red", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_what_cannot_be_embedded_is_refused_with_its_path(
    encoder: httpx.Client, wish: dict[str, Any], param: str
) -> None:
    answer = post(encoder, **wish)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    if param == "input[1]":
        assert "too large" in error["message"]
        assert error["n_prompt_tokens"] > error["n_ctx"]


def test_a_decoder_has_nothing_to_embed_in_nothing(encoder: httpx.Client, agent: Fleet) -> None:
    agent.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean", context_size=1024)
    agent.wait_serving()
    for given, place in (("", "input[0]"), (["Hello", ""], "input[1]")):
        answer = post(encoder, input=given)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == place
        assert error["message"] == f"{place} is empty: there is nothing to embed"
