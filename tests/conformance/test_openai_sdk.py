"""The official ``openai`` package, unmodified, against the inference port.

The client is the judge: what it parses, raises and retries is what programs in the wild see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fleet import Fleet
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from pydantic import BaseModel

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

WHO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who are you?"}]
STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a long story."}]
WEATHER: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the weather in Paris?"}
]
NO_THINKING = {"enable_thinking": False}
TOOL: Any = {
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


class City(BaseModel):
    """What a structured answer is parsed into."""

    name: str
    inhabitants: int


def client_of(fleet: Fleet, **options: Any) -> OpenAI:
    return OpenAI(
        api_key="any",
        base_url=f"{fleet.inference_url}/v1",
        max_retries=0,
        http_client=httpx.Client(trust_env=False, timeout=60),
        **options,
    )


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[OpenAI]:
    with client_of(fleet) as connected:
        yield connected


def chat(client: OpenAI, **more: Any) -> Any:
    wishes = {"model": "any-name", "messages": WHO, "max_tokens": 40, "temperature": 0} | more
    wishes.setdefault("extra_body", NO_THINKING)
    return client.chat.completions.create(**wishes)


def text_of(answer: Any) -> str:
    content = answer.choices[0].message.content
    assert isinstance(content, str)
    return content


# ----------------------------------------------------------------------------- chat completions


def test_a_chat_completion(client: OpenAI) -> None:
    answer = chat(client)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "any-name"
    assert abs(answer.created - time.time()) < 60
    assert answer.system_fingerprint.startswith("b")
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.finish_reason) == (0, "assistant", "stop")
    assert "paddler" in text_of(answer)
    usage = answer.usage
    assert usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    assert answer._request_id.startswith("req_")
    assert answer.timings["predicted_n"] == usage.completion_tokens


def test_a_stream_says_the_same(client: OpenAI) -> None:
    whole = chat(client)
    events: list[ChatCompletionChunk] = list(
        chat(client, stream=True, stream_options={"include_usage": True})
    )
    first, *_, finish, last = events
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content is None
    assert finish.choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {event.id for event in events} == {first.id}
    content = "".join(event.choices[0].delta.content or "" for event in events[:-1])
    assert content == text_of(whole)


def test_reasoning_comes_beside_the_content(client: OpenAI) -> None:
    answer = chat(client, reasoning_effort="low", extra_body={}, max_tokens=60)
    message = answer.choices[0].message
    assert message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    none = chat(client, reasoning_effort="none", extra_body={})
    assert not hasattr(none.choices[0].message, "reasoning_content")
    bounded = chat(client, extra_body={"reasoning_budget_tokens": 2}, max_tokens=60)
    assert bounded.usage.completion_tokens_details.reasoning_tokens < (
        answer.usage.completion_tokens_details.reasoning_tokens
    )
    deltas = [
        event.choices[0].delta for event in chat(client, stream=True, extra_body={}, max_tokens=60)
    ]
    assert any(getattr(delta, "reasoning_content", None) for delta in deltas)


def test_length_stop_and_seed(client: OpenAI) -> None:
    short = chat(client, max_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 3
    assert chat(client, max_tokens=None, max_completion_tokens=3) is not None
    stopped = chat(client, stop=["paddler"])
    assert stopped.choices[0].finish_reason == "stop"
    assert text_of(chat(client)).startswith(text_of(stopped))
    assert "paddler" not in text_of(stopped)
    hot = {
        "messages": STORY,
        "temperature": 2,
        "top_p": 1,
        "extra_body": NO_THINKING | {"min_p": 0},
    }
    told = {seed: text_of(chat(client, seed=seed, **hot)) for seed in (1, 2, 3)}
    assert len(set(told.values())) > 1
    assert text_of(chat(client, seed=2, **hot)) == told[2]


def test_several_choices(client: OpenAI) -> None:
    wishes = {"messages": STORY, "temperature": 1.5, "seed": 5, "max_tokens": 12}
    answer = chat(client, n=3, **wishes)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert texts[1] == text_of(chat(client, **wishes | {"seed": 6}))
    streamed = ["", "", ""]
    for event in chat(client, n=3, stream=True, **wishes):
        for choice in event.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    assert answer.usage.completion_tokens == 36


def test_logprobs_and_biases(client: OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=8)
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == text_of(answer)
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.logprob <= 0 for entry in entries)
    assert entries[0].top_logprobs[0].token == entries[0].token
    first = client.post(
        "/tokenize", body={"content": entries[0].token}, cast_to=httpx.Response
    ).json()["tokens"][0]
    banned = chat(client, logit_bias={str(first): -100}, max_tokens=8)
    assert not text_of(banned).startswith(entries[0].token)
    forced = chat(client, logit_bias={str(first): 100}, max_tokens=3)
    assert text_of(forced) == entries[0].token * 3


def test_samplers_of_llama_cpp_take_effect(client: OpenAI) -> None:
    """Very hot, but only the likeliest token is left: the greedy answer, whoever leaves it."""
    greedy = text_of(chat(client, messages=STORY, max_tokens=12))
    hot: Any = {"messages": STORY, "temperature": 2, "seed": 3, "max_tokens": 12}
    loose = NO_THINKING | {"min_p": 0, "top_k": 0}
    assert text_of(chat(client, **hot, top_p=1, extra_body=loose)) != greedy
    for wish in ({"top_k": 1}, {"min_p": 1}, {"top_n_sigma": 0.0001}):
        assert text_of(chat(client, **hot, extra_body=loose | wish)) == greedy, wish
    assert text_of(chat(client, **hot, top_p=0, extra_body=loose)) == greedy


def test_what_the_answer_must_look_like(client: OpenAI) -> None:
    def constrained(**wish: object) -> str:
        return text_of(chat(client, extra_body=NO_THINKING | wish, max_tokens=60))

    assert constrained(grammar='root ::= "a" "b"') == "ab"
    assert constrained(guided_choice=["maybe", "never"]) in {"maybe", "never"}
    assert constrained(guided_regex="[0-9]{4}").isdecimal()
    assert constrained(regex="[0-9]{4}").isdecimal()
    assert constrained(ebnf='root ::= "a" "b"') == "ab"
    schema = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}
    assert json.loads(constrained(json_schema=schema)) == {"a": 5}
    assert json.loads(constrained(structured_outputs={"json": schema})) == {"a": 5}
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text_of(answer)), dict)


def test_structured_answers_are_parsed(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="any",
        messages=[{"role": "user", "content": "Name a city and its inhabitants."}],
        response_format=City,
        temperature=0,
        logit_bias={},
        extra_body=NO_THINKING,
        stop=None,
        max_tokens=200,
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, City)


def test_a_tools_round_trip(client: OpenAI) -> None:
    answer = chat(client, messages=WEATHER, tools=[TOOL], max_tokens=100)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}
    told = chat(client, messages=[*WEATHER, choice.message, result], tools=[TOOL], max_tokens=60)
    assert told.choices[0].finish_reason == "stop"
    assert text_of(told)


def test_tool_calls_are_streamed_in_pieces(client: OpenAI) -> None:
    arguments, names, reasons = "", [], []
    for event in chat(client, messages=WEATHER, tools=[TOOL], stream=True, max_tokens=100):
        choice = event.choices[0]
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            if call.id:
                names.append(call.function.name)
            arguments += call.function.arguments or ""
    assert names == ["get_weather"]
    assert json.loads(arguments) == {"city": "Paris"}
    assert reasons[-1] == "tool_calls"


def test_tool_choice(client: OpenAI) -> None:
    required = chat(client, tools=[TOOL], tool_choice="required", max_tokens=100)
    assert required.choices[0].message.tool_calls[0].function.name == "get_weather"
    named = {"type": "function", "function": {"name": "get_weather"}}
    chosen = chat(client, tools=[TOOL], tool_choice=named, max_tokens=100)
    assert set(json.loads(chosen.choices[0].message.tool_calls[0].function.arguments)) == {"city"}
    none = chat(client, messages=WEATHER, tools=[TOOL], tool_choice="none")
    assert none.choices[0].message.tool_calls is None


def test_the_clients_own_streaming_helper_puts_it_together(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="any",
        messages=WEATHER,
        tools=[openai.pydantic_function_tool(City, name="tell_city"), TOOL],
        temperature=0,
        max_tokens=100,
        extra_body=NO_THINKING,
        stream_options={"include_usage": True},
    ) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion()
    assert {"chunk", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None


# -------------------------------------------------------------------------------- completions


def test_completions(client: OpenAI) -> None:
    wishes: Any = {"model": "any", "max_tokens": 6, "temperature": 0}
    answer = client.completions.create(prompt="Once upon", **wishes)
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    echoed = client.completions.create(prompt="Once upon", echo=True, **wishes)
    assert echoed.choices[0].text == "Once upon" + answer.choices[0].text
    streamed = client.completions.create(prompt="Once upon", stream=True, **wishes)
    assert "".join(event.choices[0].text for event in streamed) == answer.choices[0].text
    several = client.completions.create(prompt=["Once upon", "Hello"], n=2, **wishes)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == answer.choices[0].text
    scored = client.completions.create(prompt="Once upon", logprobs=2, **wishes)
    legacy = scored.choices[0].logprobs
    assert legacy is not None
    assert "".join(legacy.tokens or ()) == scored.choices[0].text
    assert len(legacy.top_logprobs or ()) == 6
    best = client.completions.create(prompt="Once upon", best_of=3, **wishes)
    assert len(best.choices) == 1


def test_prompts_of_token_ids(client: OpenAI) -> None:
    tokens = client.post("/tokenize", body={"content": "Once upon"}, cast_to=httpx.Response).json()[
        "tokens"
    ]
    wishes: Any = {"model": "any", "max_tokens": 5, "temperature": 0}
    text = client.completions.create(prompt="Once upon", **wishes).choices[0].text
    assert client.completions.create(prompt=tokens, **wishes).choices[0].text == text
    both = client.completions.create(prompt=[tokens, tokens], **wishes)
    assert [choice.text for choice in both.choices] == [text, text]


# ------------------------------------------------------------------------------------- models


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "paddler-demo"
    meta: Any = model.model_extra
    assert meta["meta"]["n_ctx_train"] > 0
    assert client.models.retrieve("paddler-demo").id == model.id
    with pytest.raises(openai.NotFoundError) as told:
        client.models.retrieve("gpt-nix")
    assert told.value.code == "model_not_found"


# ------------------------------------------------------------------------------------- errors


def test_refusals_are_bad_requests_that_name_the_field(client: OpenAI) -> None:
    for wish, param in (
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"messages": "hi"}, "messages"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ):
        with pytest.raises(openai.BadRequestError) as told:
            chat(client, **wish)
        assert (told.value.param, told.value.type) == (param, "invalid_request_error")
        assert param in told.value.message


def test_a_prompt_that_does_not_fit(client: OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as told:
            chat(client, messages=WHO * 400, stream=stream)
        assert told.value.code == "context_length_exceeded"
        assert told.value.type == "exceed_context_size_error"


def test_unknown_paths_and_methods(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.post("/images/generations", body={}, cast_to=httpx.Response)
    with pytest.raises(openai.APIStatusError) as told:
        client.get("/chat/completions", cast_to=httpx.Response)
    assert told.value.status_code == 405
    assert told.value.response.headers["allow"] == "POST"


def test_embeddings_are_refused_where_they_are_not_enabled(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as told:
        client.embeddings.create(model="any", input="hi")
    assert told.value.status_code == 501
    assert told.value.code == "embeddings_disabled"


def test_what_cannot_be_had_is_not_asked_for_again(client: OpenAI) -> None:
    patient = client.with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError) as refused:
        patient.embeddings.create(model="any", input="hi")
    assert refused.value.status_code == 501
    assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_waiting_too_long_is_told_as_such(lonely: Fleet) -> None:
    with client_of(lonely) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as told:
                chat(client, stream=stream)
            assert (told.value.status_code, told.value.type) == (504, "timeout_error")


def test_overload_is_told_as_such() -> None:
    options = ["--max-buffered-requests=0", "--strict-model-names"]
    with (
        Fleet.start(agents=0, model=None, balancer_options=options) as fleet,
        client_of(fleet) as client,
    ):
        fleet.desire(BUNDLED_MODEL)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as told:
                chat(client, model="paddler-demo", stream=stream)
            assert (told.value.status_code, told.value.type) == (503, "overloaded_error")
            assert int(told.value.response.headers["retry-after"]) > 0
        with pytest.raises(openai.NotFoundError) as unknown:
            chat(client, model="gpt-nix")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


def test_a_client_that_gives_up_frees_its_slot(client: OpenAI, fleet: Fleet) -> None:
    long: Any = {
        "messages": STORY,
        "max_tokens": None,
        "extra_body": NO_THINKING | {"ignore_eos": True},
    }
    stream = chat(client, stream=True, **long)
    next(stream)
    assert fleet.agent_view("a1")["slots_processing"] == 1
    stream.close()
    fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 0, what="slot is free")
    with pytest.raises(openai.APITimeoutError):
        chat(client, timeout=0.05, **long)
    fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 0, what="slot is free")


def test_request_ids_go_both_ways(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="any", messages=WHO, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert int(raw.headers["openai-processing-ms"]) >= 0
    with pytest.raises(openai.BadRequestError) as told:
        chat(client, n=0, extra_headers={"X-Request-Id": "mine-2"})
    assert told.value.request_id == "mine-2"


# --------------------------------------------------------------------------------- embeddings


@pytest.fixture(scope="module")
def embedder() -> Iterator[OpenAI]:
    with Fleet.start(agents=1, slots=2, model=None) as fleet:
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True)
        fleet.wait_serving()
        with client_of(fleet) as client:
            yield client


def test_embeddings(embedder: OpenAI) -> None:
    answer = embedder.embeddings.create(model="any", input=["Hello", "World", "Hello"])
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    first, second, third = (entry.embedding for entry in answer.data)
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-3)
    assert first == pytest.approx(third, abs=1e-3)
    assert first != pytest.approx(second, abs=1e-3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    plain = embedder.embeddings.create(model="any", input="Hello", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(first, abs=1e-3)
    short = embedder.embeddings.create(model="any", input="Hello", dimensions=8)
    assert len(short.data[0].embedding) == 8
    assert sum(value * value for value in short.data[0].embedding) == pytest.approx(1, abs=1e-3)


def test_embeddings_of_token_ids(embedder: OpenAI) -> None:
    tokens = embedder.post(
        "/tokenize", body={"content": "Hello", "add_special": True}, cast_to=httpx.Response
    ).json()["tokens"]
    answer = embedder.embeddings.create(model="any", input=[tokens])
    text = embedder.embeddings.create(model="any", input="Hello")
    assert answer.data[0].embedding == pytest.approx(text.data[0].embedding, abs=1e-3)


def test_chat_is_answered_beside_embeddings(embedder: OpenAI) -> None:
    assert "paddler" in text_of(chat(embedder))
