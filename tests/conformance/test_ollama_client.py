"""Ollama's own client against real daemons: conversations, streams, tools, thinking, forms, texts,
models, errors; on the port that has nothing else, and on that of inference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fleet import Fleet

from paddler_trio.balancer.apis.ollama.ollama_models import VERSION
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

if TYPE_CHECKING:
    import ollama

MODEL = "paddler-demo"
SAY = [{"role": "user", "content": "What is a slot?"}]
BRIEFLY = {"num_predict": 24}
FORM = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
}


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
      city: The name of the city.
    """
    return city


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The fleet of all files here, with a port for Ollama's programs."""
    options = ["--compat-ollama-addr=127.0.0.1:0"]
    with Fleet.start(agents=1, slots=4, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=4096, temperature=0.0, penalty_presence=0.0)
        fleet.wait_serving()
        yield fleet


def alone(fleet: Fleet) -> str:
    """The port that has nothing else."""
    (address,) = fleet.balancer.wait_for_log("balancer up")["compat_ollama"]  # type: ignore[misc]
    return f"http://{address}"


@pytest.fixture(scope="module", params=["alone", "inference"])
def client(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[ollama.Client]:
    import ollama  # slow: not while tests are collected

    host = alone(fleet) if request.param == "alone" else fleet.inference_url
    with ollama.Client(host, trust_env=False, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=alone(fleet), trust_env=False, timeout=60) as made:
        yield made


def lines(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def is_timed(answer: Any) -> None:
    assert answer.done
    assert answer.prompt_eval_count > 0
    assert answer.eval_count > 0
    assert answer.eval_duration > 0
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert answer.total_duration == pytest.approx(parts, abs=2)


# ------------------------------------------------------------------------------- conversations


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_a_stream_says_the_same_as_a_whole_answer(client: ollama.Client, name: str) -> None:
    asked: Any = {"model": name, "messages": SAY, "options": BRIEFLY, "think": False}
    whole = client.chat(**asked)
    pieces = list(client.chat(**asked, stream=True))
    assert (whole.model, whole.message.role) == (name, "assistant")
    assert whole.message.content
    assert len(pieces) > 2
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for answer in (whole, pieces[-1]):
        is_timed(answer)
        assert answer.eval_count <= 24
    assert whole.done_reason == pieces[-1].done_reason


def test_an_answer_ends_at_its_bound_and_at_a_stop_text(client: ollama.Client) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    cut = client.chat(MODEL, messages, think=False, options={"num_predict": 3})
    assert (cut.done_reason, cut.eval_count) == ("length", 3)
    whole = client.chat(MODEL, messages, think=False, options={"num_predict": 40})
    stop = (whole.message.content or "").split(" ")[3]
    stopped = client.chat(MODEL, messages, think=False, options={"num_predict": 40, "stop": [stop]})
    assert stopped.done_reason == "stop"
    assert stop not in (stopped.message.content or "")
    assert (whole.message.content or "").startswith(stopped.message.content or "")


def test_thoughts_are_apart(client: ollama.Client) -> None:
    asked: Any = {"model": MODEL, "messages": SAY, "think": True, "options": {"num_predict": 200}}
    whole = client.chat(**asked).message
    pieces = [piece.message for piece in client.chat(**asked, stream=True)]
    assert whole.thinking
    assert "<think>" not in (whole.content or "")
    assert "".join(piece.thinking or "" for piece in pieces) == whole.thinking
    assert not client.chat(MODEL, SAY, think=False, options=BRIEFLY).message.thinking


def test_a_tool_is_called_and_its_result_answered(client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked: Any = {"model": MODEL, "tools": [get_weather], "think": False}
    whole = client.chat(**asked, messages=messages)
    (call,) = whole.message.tool_calls or []
    assert call.function.name == "get_weather"
    assert set(call.function.arguments) == {"city"}
    streamed = [
        each
        for piece in client.chat(**asked, messages=messages, stream=True)
        for each in piece.message.tool_calls or []
    ]
    assert [each.function for each in streamed] == [call.function]
    messages += [whole.message, {"role": "tool", "tool_name": "get_weather", "content": "Sunny."}]
    answer = client.chat(**asked, messages=messages, options=BRIEFLY)
    assert answer.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(client: ollama.Client, stream: bool) -> None:
    asked: Any = {"model": MODEL, "messages": SAY, "think": False, "options": {"temperature": 1.5}}

    def said(form: Any) -> Any:
        answer = client.chat(**asked, format=form, stream=stream)
        pieces = list(answer) if stream else [answer]
        return json.loads("".join(piece.message.content for piece in pieces))

    assert said(FORM).keys() == {"city", "warm"}


def test_any_object_is_a_form(client: ollama.Client) -> None:
    options = {"num_predict": 400, "temperature": 0.8, "seed": 7}
    answer = client.chat(MODEL, SAY, think=False, format="json", options=options)
    assert (answer.message.content or "").startswith("{")
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)


def test_log_probabilities_are_told(client: ollama.Client) -> None:
    asked: Any = {"model": MODEL, "messages": SAY, "think": False, "options": {"num_predict": 4}}
    whole = client.chat(**asked, logprobs=True, top_logprobs=2)
    pieces = list(client.chat(**asked, logprobs=True, top_logprobs=2, stream=True))
    entries = list(whole.logprobs or [])
    assert len(entries) == 4
    assert all(each.logprob <= 0 and len(each.top_logprobs or []) == 2 for each in entries)
    assert [each for piece in pieces for each in piece.logprobs or []] == entries


def test_an_answer_that_was_begun_is_gone_on_with(client: ollama.Client) -> None:
    begun = {"role": "assistant", "content": "A slot is"}
    answer = client.chat(MODEL, [*SAY, begun], think=False, options=BRIEFLY)
    assert answer.message.content
    assert not answer.message.content.startswith("A slot is")


# -------------------------------------------------------------------------------------- prompts


def test_a_prompt_is_answered_as_a_conversation_of_one(client: ollama.Client) -> None:
    asked: Any = {"model": MODEL, "prompt": "What is a slot?", "think": False, "options": BRIEFLY}
    whole = client.generate(**asked)
    pieces = list(client.generate(**asked, stream=True))
    assert whole.response == client.chat(MODEL, SAY, think=False, options=BRIEFLY).message.content
    assert "".join(piece.response for piece in pieces) == whole.response
    is_timed(whole)
    is_timed(pieces[-1])


def test_a_raw_prompt_and_a_template_are_what_the_model_reads(client: ollama.Client) -> None:
    raw = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    raw += "<|im_start|>assistant\n"
    template = (
        "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end -}}\n"
        "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}"
    )
    as_it_stands = client.generate(MODEL, raw, raw=True, options=BRIEFLY)
    templated = client.generate(
        MODEL, "Hello", system="Be brief.", template=template, options=BRIEFLY
    )
    assert as_it_stands.response
    assert templated.response == as_it_stands.response
    assert templated.prompt_eval_count == as_it_stands.prompt_eval_count


@pytest.mark.parametrize("stream", [False, True])
def test_the_context_of_an_answer_is_what_the_next_prompt_stands_behind(
    client: ollama.Client, fleet: Fleet, stream: bool
) -> None:
    def said(prompt: str, **more: Any) -> Any:
        asked = {"model": MODEL, "prompt": prompt, "options": BRIEFLY, "think": False, **more}
        answer = client.generate(**asked, stream=stream)
        return list(answer)[-1] if stream else answer

    def text_of(tokens: Sequence[int]) -> str:
        body = {"tokens": list(tokens)}
        answer = httpx.post(f"{fleet.inference_url}/detokenize", json=body, trust_env=False)
        return str(answer.json()["content"])

    first = said("What is a slot?")
    assert first.context is not None
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    assert "What is a slot?<|im_end|>\n<|im_start|>assistant\n" in text_of(first.context)
    second = said("And an agent?", context=first.context)
    assert second.context[: len(first.context)] == first.context
    whole = text_of(second.context)
    assert whole.index("What is a slot?") < whole.index("<|im_start|>user\nAnd an agent?")
    assert second.prompt_eval_count + second.eval_count == len(second.context)
    assert said("What is", raw=True).context is None, "it is no part of a conversation"
    template = "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n"
    behind = said("Again", context=[1, 2, 3], template=template)
    assert behind.context[:3] == [1, 2, 3]
    assert "\nAgain<|im_end|>" in text_of(behind.context)


def test_a_context_that_cannot_be_is_refused_by_name(client: ollama.Client) -> None:
    import ollama

    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"context": [5, 10**6]},
            r"context\[1\]: token 1000000 is not one of the \d+ tokens of this",
        ),
        ({"context": [5] * 5000}, "5000 tokens, which exceeds the available context size of 4096"),
        ({"context": [5] * 1020}, "exceeds the available context size of 1024 tokens"),
        ({"context": [-1]}, r"context\[0\] is -1, must be a whole number from 0"),
        ({"context": [5], "raw": True}, "context has no place in a prompt with raw"),
    ]
    for more, says in wrong:
        with pytest.raises(ollama.ResponseError, match=says) as refused:
            client.generate(MODEL, "Hello", **more)
        assert refused.value.status_code == 400


def test_nothing_to_say_loads_the_model(client: ollama.Client) -> None:
    assert client.generate(MODEL).done_reason == "load"
    loaded = client.chat(MODEL)
    assert (loaded.done, loaded.done_reason, loaded.message.content) == (True, "load", "")
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"


# --------------------------------------------------------------------------------------- models


def test_the_models_are_listed_and_described(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest"
    assert listed.size is not None
    assert listed.size > 1_000_000
    assert listed.details is not None
    assert listed.details.parameter_size == "4.33M"
    assert listed.details.quantization_level == "Q8_0"
    (running,) = client.ps().models
    assert (running.model, running.digest) == (listed.model, listed.digest)
    assert running.context_length == 1024
    shown = client.show(listed.model)
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 2048
    assert "im_start" in (shown.template or "")
    assert "temperature" in (shown.parameters or "")


def test_what_is_the_operators_is_refused_with_the_reason(client: ollama.Client) -> None:
    import ollama

    assert client.pull(MODEL).status == "success"
    steps = [step.status for step in client.pull(MODEL, stream=True)]
    assert steps == ["pulling manifest", "success"]
    for ask, status, words in (
        (lambda: client.pull("llama3.2"), 403, "scopes inference and management"),
        (lambda: client.push(MODEL), 501, "operator"),
        (lambda: client.delete(MODEL), 403, "no key has them"),
        (lambda: client.copy(MODEL, "other"), 403, "no key has them"),
        (lambda: client.create("other", from_=MODEL), 403, "no key has them"),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as refused:
            ask()
        assert refused.value.status_code == status
    with pytest.raises(ollama.ResponseError, match="'other' is not served") as missing:
        client.show("other")
    assert missing.value.status_code == 404


def test_errors_are_texts(client: ollama.Client) -> None:
    import ollama

    for options, says in (({"temperature": "hot"}, "options.temperature"), ([], "options is")):
        with pytest.raises(ollama.ResponseError, match=says) as refused:
            client._request_raw("POST", "/api/chat", json={"messages": SAY, "options": options})
        assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="embeddings are not enabled"):
        client.embed(MODEL, "a text")


# ----------------------------------------------------------------------------- the port's own


def test_the_port_has_what_ollamas_has(http: httpx.Client, fleet: Fleet) -> None:
    assert http.get("/").text == "Ollama is running"
    for path in ("/", "/api/tags", "/api/version"):
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert http.get("/api/version").json() == {"version": VERSION}
    assert http.get("/health").text == "OK"
    for path in ("/api/v1/agents", "/props", "/api/v2/agents"):
        unknown = http.get(path)
        assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
        assert isinstance(unknown.json()["error"], str)
    assert http.get("/v1/unknown").json()["error"]["code"] == "unknown_url"
    wrong = http.get("/api/chat")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_other_apis_answer_below_v1_of_that_port(http: httpx.Client, name: str) -> None:
    """Programs of Ollama's send there what their users wrote for OpenAI's or Anthropic's, under the
    names that they were listed."""
    asked = {"model": name, "messages": SAY, "max_tokens": 4}
    shapes: dict[str, tuple[dict[str, Any], str]] = {
        "/v1/chat/completions": (asked, "choices"),
        "/v1/completions": ({"model": name, "prompt": "What is", "max_tokens": 4}, "choices"),
        "/v1/responses": ({"model": name, "input": "Hello", "max_output_tokens": 4}, "output"),
        "/v1/messages": (asked, "content"),
    }
    for path, (body, member) in shapes.items():
        answer = http.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, name), answer.text
        assert answer.json()[member]
    assert [each["id"] for each in http.get("/v1/models").json()["data"]] == [MODEL]
    assert http.get(f"/v1/models/{name}").json()["id"] == MODEL
    wrong = http.post("/v1/chat/completions", json={**asked, "max_tokens": "many"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")


def test_every_line_has_what_ollamas_have(http: httpx.Client) -> None:
    """As curl sends it: without a word on what it is."""
    body = json.dumps({"model": MODEL, "messages": SAY, "think": False, "options": BRIEFLY})
    kind = {"content-type": "application/x-www-form-urlencoded"}
    *pieces, last = lines(http.post("/api/chat", content=body, headers=kind))
    assert {frozenset(piece) for piece in pieces} == {
        frozenset({"model", "created_at", "message", "done"})
    }
    assert set(last) == {
        *("model", "created_at", "message", "done", "done_reason", "total_duration"),
        *("load_duration", "prompt_eval_count", "prompt_eval_duration"),
        *("eval_count", "eval_duration"),
    }


def test_what_has_no_effect_is_reported(http: httpx.Client) -> None:
    answer = http.post(
        "/api/chat",
        json={
            "model": MODEL,
            "messages": SAY,
            "keep_alive": "5m",
            "novelty": 1,
            "options": {"num_predict": 2, "num_ctx": 8192, "num_gpu": 99, "novelty": 1},
        },
    )
    names = set(answer.headers["x-paddler-ignored-fields"].split(", "))
    assert names == {"novelty", "options.num_ctx", "options.novelty"}
    assert lines(answer)[-1]["done_reason"] == "length"


def test_texts_are_embedded() -> None:
    import ollama

    options = ["--compat-ollama-addr=127.0.0.1:0"]
    with Fleet.start(agents=1, slots=1, model=None, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True, pooling_type="Mean")
        fleet.wait_serving()
        with ollama.Client(alone(fleet), trust_env=False, timeout=60) as client:
            first, second = client.embed(MODEL, ["a slot", "an agent"]).embeddings
            (short,) = client.embed(MODEL, "a slot", dimensions=8).embeddings
            none = client.embed(MODEL, [])
            own = client.embeddings(MODEL, "a slot").embedding
            assert client.show(MODEL).capabilities == ["embedding"]
            with pytest.raises(ollama.ResponseError, match="dimensions is 9999"):
                client.embed(MODEL, "a slot", dimensions=9999)
    assert none.embeddings == []
    for vector in (first, second, short):
        assert sum(each * each for each in vector) == pytest.approx(1, abs=1e-5)
    assert (len(first), len(short)) == (256, 8)
    scale = own[0] / first[0]
    assert own == pytest.approx([scale * each for each in first], rel=1e-3, abs=1e-4)
