"""What ``--compat-openai-addr`` answers is what OpenAI's own schema has, and nothing else.

The judge is the official package: its types, made from the newest schema, must know every member of
every object. Where the types let null pass and the schema wants a text, members are absent.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fleet import Fleet
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
WHO: Any = [{"role": "user", "content": "Who are you?"}]
BESIDE = {"timings_per_token": True, "return_progress": True, "verbose": True}
"""What llama-server's clients ask for, and OpenAI's schema has no room for."""


@pytest.fixture(scope="module")
def exact() -> Iterator[httpx.Client]:
    """The port of a small fleet."""
    options = ["--compat-openai-addr=127.0.0.1:0"]
    with Fleet.start(agents=1, slots=2, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=2048, temperature=0.0, penalty_presence=0.0)
        fleet.wait_serving()
        (address,) = fleet.balancer.wait_for_log("balancer up")["compat_openai"]  # type: ignore[misc]
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as http:
            yield http


def strangers(value: object, path: str = "") -> Iterator[str]:
    """The members that the official types do not have."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or {})
        for name, _ in type(value).model_fields.items():
            yield from strangers(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from strangers(inner, f"{path}[]")


adapter_of = functools.cache(TypeAdapter)
"""A union of all events takes a tenth of a second to compile."""


def judged(kind: Any, text: str) -> Any:
    """The document as the official type; strictly, and with nothing left over."""
    value = adapter_of(kind).validate_json(text, strict=True)
    left = list(strangers(value))
    if getattr(value, "type", "") == "response.function_call_arguments.done":
        left.remove(".name")  # the published schema wants it, the package has forgotten it
    assert left == []
    return value


def post(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: httpx.Response) -> list[str]:
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return [line.removeprefix("data: ") for line in lines if line != "data: [DONE]"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"enable_thinking": True},
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"messages": ASK, "tools": [WEATHER]},
        {"messages": ASK, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 9},
        BESIDE,
    ],
    ids=["plain", "thinking", "logprobs", "tool", "cut", "beside"],
)
def test_a_chat_and_its_stream(exact: httpx.Client, more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": WHO, "max_tokens": 120, "enable_thinking": False} | more
    whole = judged(ChatCompletion, post(exact, "/v1/chat/completions", **body).text)
    assert whole.usage.completion_tokens > 0
    options = {"include_usage": True}
    answer = post(exact, "/v1/chat/completions", **body, stream=True, stream_options=options)
    chunks = [judged(ChatCompletionChunk, event) for event in events(answer)]
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    for index, choice in enumerate(whole.choices):
        deltas = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        text = "".join(each.delta.content or "" for each in deltas)
        assert text == (choice.message.content or "")
        assert deltas[-1].finish_reason == choice.finish_reason
        calls = [call for each in deltas for call in each.delta.tool_calls or ()]
        said = choice.message.tool_calls or ()
        assert [call.function.arguments for call in calls] == [c.function.arguments for c in said]
        assert all(call.id and call.function.name for call in calls), "each in one piece"
    if more is BESIDE:
        assert answer.headers["x-paddler-ignored-fields"].split(", ") == list(BESIDE)


def test_a_completion_and_its_stream(exact: httpx.Client) -> None:
    body = {"model": "m", "prompt": "Once", "max_tokens": 6, "logprobs": 2, **BESIDE}
    judged(Completion, post(exact, "/v1/completions", **body).text)
    for event in events(post(exact, "/v1/completions", **body, stream=True)):
        told = json.loads(event)
        for choice in told["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null until the end
        judged(Completion, json.dumps(told))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reasoning": {"effort": "low"}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"input": ASK[0]["content"], "tools": [{"type": "function", **WEATHER["function"]}]},
        {"max_output_tokens": 4},
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"timings_per_token": True, "return_progress": True},
    ],
    ids=["plain", "thinking", "logprobs", "tool", "cut", "labels", "beside"],
)
def test_a_response_and_its_stream(exact: httpx.Client, more: dict[str, Any]) -> None:
    body = {"input": "Who are you?", "max_output_tokens": 150, "reasoning": {"effort": "none"}}
    body = {"model": "m", **body, **more}
    answer = post(exact, "/v1/responses", **body)
    whole = judged(Response, answer.text)
    for label in ("user", "safety_identifier", "prompt_cache_key"):
        assert answer.json().get(label, "absent") == more.get(label, "absent"), "never null"
    again = exact.get(f"/v1/responses/{whole.id}")
    judged(Response, again.text)
    told = [
        judged(ResponseStreamEvent, event)
        for event in events(post(exact, "/v1/responses", **body, stream=True))
    ]
    assert told[0].type == "response.created"
    assert "usage" not in told[0].response.model_fields_set, "there is none yet, and null is none"
    assert told[-1].type == f"response.{whole.status}"
    assert [event.sequence_number for event in told] == list(range(len(told)))
    assert told[-1].response.output_text == whole.output_text


def test_models_and_errors(exact: httpx.Client) -> None:
    models = exact.get("/v1/models").json()
    assert set(models) == {"object", "data"}
    for model in models["data"]:
        judged(Model, json.dumps(model))
        judged(Model, exact.get(f"/v1/models/{model['id']}").text)
    words = "word " * 4000
    for body in ({"n": 0}, {"messages": [{"role": "user", "content": words}]}):
        refused = exact.post("/v1/chat/completions", json={"messages": WHO, **body})
        assert refused.status_code == 400
        assert set(refused.json()) == {"error"}
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}


def test_the_client_finds_nothing_beside(exact: httpx.Client) -> None:
    base_url = f"{exact.base_url}/v1".replace("//v1", "/v1")
    with openai.OpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        thought = client.chat.completions.create(model="m", messages=WHO, max_tokens=200)
        assert list(strangers(thought)) == []
        assert thought.usage is not None
        assert thought.usage.completion_tokens_details is not None
        assert (thought.usage.completion_tokens_details.reasoning_tokens or 0) > 0
        with client.responses.stream(
            model="m", input="Who are you?", max_output_tokens=200
        ) as stream:
            assert [name for event in stream for name in strangers(event)] == []


def test_embeddings_have_their_own_members_only() -> None:
    options = ["--compat-openai-addr=127.0.0.1:0"]
    with Fleet.start(agents=1, slots=1, model=None, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean")
        fleet.wait_serving()
        (address,) = fleet.balancer.wait_for_log("balancer up")["compat_openai"]  # type: ignore[misc]
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as http:
            told = post(http, "/v1/embeddings", model="m", input=["a", "b"])
    assert len(judged(CreateEmbeddingResponse, told.text).data) == 2
