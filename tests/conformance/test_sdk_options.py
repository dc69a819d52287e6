"""What the official clients offer beside the plain call: options of requests, helpers, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fleet import Fleet
from pydantic import BaseModel

WHO: Any = [{"role": "user", "content": "Who are you?"}]
PLAIN: Any = {"effort": "none"}


class City(BaseModel):
    """What a structured answer is parsed into."""

    name: str
    inhabitants: int


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{fleet.inference_url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


@pytest.fixture(scope="module")
def claude(fleet: Fleet) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=fleet.inference_url,
        api_key="none",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "m", "messages": WHO, "max_tokens": 8, "temperature": 0} | more
    asked.setdefault("extra_body", {"enable_thinking": False})
    return client.chat.completions.create(**asked)


# -------------------------------------------------------------------------- fields by their fate


@pytest.mark.parametrize(
    "field",
    [
        {"store": True},
        {"metadata": {"a": "b"}},
        {"user": "me"},
        {"safety_identifier": "me"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"service_tier": "auto"},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
        {"parallel_tool_calls": False},
        {"stop": ["\u2603", "\u2604", "\u2605", "\u2606"]},
        {"logit_bias": {}},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_asks_for_nothing_here_changes_nothing(
    client: openai.OpenAI, field: dict[str, Any]
) -> None:
    assert chat(client, **field).choices[0].message.content == (
        chat(client).choices[0].message.content
    )


@pytest.mark.parametrize(
    "field",
    [
        {"audio": {"format": "wav", "voice": "alloy"}},
        {"modalities": ["text", "audio"]},
        {"prediction": {"type": "content", "content": "x"}},
        {"service_tier": "flex"},
        {"verbosity": "low"},
        {"web_search_options": {}},
        {"functions": [{"name": "f"}]},
        {"moderation": {"model": "m"}},
        {"top_logprobs": 3},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_cannot_be_had_is_a_bad_request_that_names_it(
    client: openai.OpenAI, field: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        chat(client, **field)
    assert told.value.param == next(iter(field))
    assert told.value.request_id


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"image": {"detail": "low"}}, "image"),
    ],
)
def test_a_response_that_cannot_be_had_is_too(
    client: openai.OpenAI, field: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        client.responses.create(model="m", input="hi", max_output_tokens=4, **field)
    assert told.value.param == param


def test_labels_of_a_response_are_echoed(client: openai.OpenAI) -> None:
    labels: Any = {
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "max_tool_calls": 2,
    }
    told = client.responses.create(
        model="m", input="hi", max_output_tokens=4, reasoning=PLAIN, **labels
    )
    assert {name: getattr(told, name) for name in labels} == labels


# ------------------------------------------------------------------------------- ways of calling


def test_raw_and_streaming_responses(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "m", "messages": WHO, "max_tokens": 4}
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-request-id"] == raw.request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse().choices[0].finish_reason == "length"
    with client.chat.completions.with_streaming_response.create(**asked) as open_answer:
        assert open_answer.parse().usage is not None
    told = claude.messages.with_raw_response.create(**asked)
    assert told.headers["request-id"]
    assert told.parse()._request_id == told.headers["request-id"]  # documented so


def test_an_answer_that_was_cut_cannot_be_parsed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "messages": WHO, "response_format": City, "extra_body": {}}
    asked["extra_body"] = {"enable_thinking": False}
    whole = client.chat.completions.parse(**asked, max_tokens=80)
    assert isinstance(whole.choices[0].message.parsed, City)
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        client.chat.completions.parse(**asked, max_tokens=1)
    assert cut.value.completion.usage is not None
    assert cut.value.completion.usage.completion_tokens == 1


def test_a_stream_of_chunks_with_a_last_one_for_the_usage(client: openai.OpenAI) -> None:
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.completion_tokens) == ([], 8)
    assert all(chunk.usage is None for chunk in chunks)
    assert not any(chunk.usage for chunk in chat(client, stream=True))


def test_completion_tokens_may_be_bounded_by_the_newer_name(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="m", messages=WHO, max_completion_tokens=5)
    assert told.usage is not None
    assert told.usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError, match="say different things"):
        chat(client, max_completion_tokens=5)


def test_a_client_that_waits_no_longer_frees_its_slot(client: openai.OpenAI, fleet: Fleet) -> None:
    impatient = client.with_options(timeout=0.05)
    with pytest.raises(openai.APITimeoutError):
        chat(impatient, max_tokens=900, extra_body={"ignore_eos": True})
    fleet.wait_until(
        lambda view: all(agent["slots_processing"] == 0 for agent in view["agents"]),
        what="no slot is taken",
    )


def test_unknown_paths_speak_the_dialect_they_are_under(
    fleet: Fleet, claude: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.NotFoundError) as told:
        claude.messages.batches.list()
    assert told.value.body["type"] == "error"  # type: ignore[index]  # JSON
    with httpx.Client(base_url=fleet.inference_url, trust_env=False) as http:
        wrong = http.get("/v1/messages")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["type"] == "invalid_request_error"
        assert wrong.json()["type"] == "error"
        assert http.get("/v1/files").json()["error"]["code"] == "unknown_url"
