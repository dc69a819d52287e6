"""Requests as users of llama-server send them: the same paths, statuses and shapes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fleet import BUNDLED_MODEL, Fleet

from vision_models import data_uri, encoded, picture

BOOK: Any = [
    {"role": "system", "content": "Book"},
    {"role": "user", "content": "What is the best book"},
]
HELLO: Any = [{"role": "user", "content": "Hello"}]
NO_THINKING = {"enable_thinking": False}


@pytest.fixture(scope="module")
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=30) as client:
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def events(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, without the last ``[DONE]``."""
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    lines = [line for block in blocks for line in block.split("\n")]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


# ----------------------------------------------------------------------------- chat completions


@pytest.mark.parametrize(
    "content", ["What is", [{"type": "text", "text": "What"}, {"type": "text", "text": "is"}]]
)
def test_chat_without_a_version_in_the_path(http: httpx.Client, content: object) -> None:
    body = post(
        http,
        "/chat/completions",
        model=None,
        max_tokens=8,
        messages=[{"role": "system", "content": "Book"}, {"role": "user", "content": content}],
        **NO_THINKING,
    )
    assert "cmpl" in body["id"]
    assert body["system_fingerprint"].startswith("b")
    assert body["model"] == "paddler-demo"
    assert body["usage"]["completion_tokens"] <= 8
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["finish_reason"] in {"length", "stop"}


def test_a_chat_stream(http: httpx.Client) -> None:
    told = events(http, "/chat/completions", max_tokens=8, messages=BOOK, **NO_THINKING)
    ids = set()
    for index, event in enumerate(told):
        (choice,) = event["choices"]
        ids.add(event["id"])
        assert event["system_fingerprint"].startswith("b")
        if index == 0:
            assert choice["delta"] == {"role": "assistant", "content": None}
        else:
            assert "role" not in choice["delta"]
        if choice["finish_reason"] is not None:
            assert "content" not in choice["delta"]
            assert event is told[-1]
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("response_format", "content"),
    [
        ({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, '"foooooo"'),
        ({"type": "sound"}, None),
        ({"type": "json_object", "schema": 123}, None),
        ({"type": "json_object", "schema": {"type": 123}}, None),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, None),
    ],
)
def test_response_formats(
    http: httpx.Client, response_format: dict[str, Any], content: str | None
) -> None:
    wishes: Any = {"max_tokens": 20, "messages": BOOK, "response_format": response_format}
    if content is None:
        error = refused(http, "/chat/completions", **wishes, **NO_THINKING)
        assert error["param"].startswith("response_format")
    else:
        body = post(http, "/chat/completions", **wishes, **NO_THINKING)
        assert body["choices"][0]["message"]["content"] == content


def test_schemas_and_grammars_of_the_request(http: httpx.Client) -> None:
    wishes: Any = {"max_tokens": 10, "messages": HELLO, **NO_THINKING}
    body = post(http, "/chat/completions", json_schema={"const": "42"}, **wishes)
    assert body["choices"][0]["message"]["content"] == '"42"'
    body = post(http, "/chat/completions", grammar='root ::= "a"{5,5}', **wishes)
    assert body["choices"][0]["message"]["content"] == "aaaaa"
    error = refused(http, "/chat/completions", grammar="root ::= this is (not GBNF", **wishes)
    assert error["param"] == "grammar"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "string",
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
        [*HELLO, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
    ],
)
def test_invalid_messages(http: httpx.Client, messages: object) -> None:
    assert refused(http, "/chat/completions", messages=messages)["message"]


def test_timings_come_with_every_chunk_and_with_the_usage(http: httpx.Client) -> None:
    first, *told, last = events(
        http,
        "/chat/completions",
        max_tokens=10,
        messages=HELLO,
        stream_options={"include_usage": True},
        timings_per_token=True,
    )
    assert "timings" not in first
    assert last["choices"] == []
    assert {"prompt_per_second", "predicted_per_second", "predicted_n"} <= set(last["timings"])
    assert last["timings"]["predicted_n"] <= 10
    assert any("timings" in event for event in told)


def test_a_prompt_that_does_not_fit(http: httpx.Client) -> None:
    for stream in (False, True):
        error = refused(http, "/chat/completions", messages=BOOK * 200, stream=stream)
        assert error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] > error["n_ctx"] == 1024
        assert "exceeds the available context size" in error["message"]


def test_an_answer_that_was_begun_is_gone_on_with(http: httpx.Client) -> None:
    for content in ("Whill", [{"type": "text", "text": "Whill"}]):
        messages = [*HELLO, {"role": "assistant", "content": content}]
        asked: Any = {"messages": messages, "max_tokens": 2, "verbose": True, **NO_THINKING}
        body = post(http, "/chat/completions", **asked)
        assert body["__verbose"]["prompt"].endswith("Whill")
        fresh = post(http, "/chat/completions", **asked, continue_final_message=False)
        assert not fresh["__verbose"]["prompt"].endswith("Whill")


def test_what_the_model_was_given_is_told_to_who_asks(http: httpx.Client) -> None:
    asked: Any = {"messages": BOOK, "max_tokens": 2, "temperature": 0.5}
    told = post(http, "/chat/completions", **asked, verbose=True)["__verbose"]
    assert "best book" in told["prompt"]
    assert told["generation_settings"]["temperature"] == 0.5
    assert "__verbose" not in post(http, "/chat/completions", **asked, verbose=False)
    *_, last = events(http, "/chat/completions", **asked, verbose=True)
    assert last["__verbose"]["prompt"] == told["prompt"]
    text = post(http, "/v1/completions", prompt="Once", max_tokens=2, verbose=True)
    assert text["__verbose"]["prompt"] == "Once"


def test_rates_leave_the_first_token_out(http: httpx.Client) -> None:
    one = post(http, "/completion", prompt="I believe", n_predict=1)["timings"]
    assert one["predicted_n"] == 1
    assert (one["predicted_per_second"], one["predicted_per_token_ms"]) == (0.0, 0.0)
    many = post(http, "/completion", prompt="I believe", n_predict=16, ignore_eos=True)["timings"]
    assert many["predicted_per_second"] == pytest.approx(15 / many["predicted_ms"] * 1000)
    assert all(value >= 0 for value in many.values())


def test_hints_for_drafts_are_taken(http: httpx.Client) -> None:
    asked: Any = {"prompt": "Hello", "n_predict": 4, "temperature": 0}
    plain = post(http, "/completion", **asked)["content"]
    hinted = {"speculative.p_min": 0.0, "speculative.n_max": 4}
    assert post(http, "/completion", **asked, **hinted)["content"] == plain


def test_responses_without_a_version_in_the_path(http: httpx.Client) -> None:
    told = events(http, "/responses", input="Hello", max_output_tokens=6, timings_per_token=True)
    assert [each["type"] for each in told[:2]] == ["response.created", "response.in_progress"]
    deltas = [each for each in told if "delta" in each]
    assert all("predicted_per_second" in each["timings"] for each in deltas)
    assert "prompt_per_second" in told[-1]["timings"]
    assert post(http, "/responses/input_tokens", input="Hello")["input_tokens"] > 1


def test_progress_of_prompts_is_told() -> None:
    long = "the quick brown fox jumps over the lazy dog " * 20
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/chat/completions", {"messages": [{"role": "user", "content": long}], "max_tokens": 2}),
        ("/v1/completions", {"prompt": long, "max_tokens": 2}),
        ("/completion", {"prompt": long, "n_predict": 2}),
        ("/responses", {"input": long, "max_output_tokens": 2}),
    ]
    with (
        Fleet.start(agents=1, model=None) as fleet,
        httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=30) as http,
    ):
        fleet.desire(BUNDLED_MODEL, context_size=4096, n_batch=64)
        fleet.wait_serving()
        for path, body in asked:
            wishes = {"return_progress": True, "timings_per_token": True, "cache_prompt": False}
            told = events(http, path, **body, **wishes)
            reports = [each for each in told if "prompt_progress" in each]
            progress = [each["prompt_progress"] for each in reports]
            assert len(progress) > 1
            first, last = progress[0], progress[-1]
            assert first["processed"] == first["cache"] == 0
            assert last["processed"] == last["total"] > 100
            counts = [each["processed"] for each in progress]
            assert counts == sorted(set(counts))
            timings = reports[0]["timings"]
            assert (timings["prompt_n"], timings["prompt_ms"], timings["predicted_n"]) == (0, 0, 0)
            assert not any("prompt_progress" in each for each in events(http, path, **body))


def test_several_choices_and_a_slot_that_is_only_a_hint(http: httpx.Client) -> None:
    for _ in range(2):
        body = post(http, "/chat/completions", max_tokens=4, n=2, messages=BOOK, id_slot=0)
        assert len(body["choices"]) == 2
        assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}


def test_tokens_of_a_conversation_are_counted(http: httpx.Client) -> None:
    counted = post(http, "/chat/completions/input_tokens", messages=BOOK)["input_tokens"]
    body = post(http, "/v1/chat/completions", messages=BOOK, max_tokens=1)
    assert body["usage"]["prompt_tokens"] == counted > 5


def test_cached_tokens_are_told(http: httpx.Client) -> None:
    wishes: Any = {"max_tokens": 4, "messages": [{"role": "user", "content": "1 2 3 4 5 6 7 8"}]}
    post(http, "/chat/completions", **wishes)
    again = post(http, "/chat/completions", **wishes)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["timings"]["cache_n"] > 0
    assert again["timings"]["prompt_n"] + cached == again["usage"]["prompt_tokens"]
    fresh = post(http, "/chat/completions", **wishes, cache_prompt=False)
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("tools", [None, [], [{"type": "function", "function": {"name": "f"}}]])
def test_templates_are_applied(http: httpx.Client, tools: object) -> None:
    body = post(http, "/apply-template", messages=HELLO, tools=tools)
    assert body["prompt"].endswith("<|im_start|>assistant\n")
    without = post(http, "/apply-template", messages=HELLO, add_generation_prompt=False)
    assert not without["prompt"].endswith("assistant\n")


def test_the_final_message_can_be_continued(http: httpx.Client) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Whill"}]
    body = post(
        http,
        "/apply-template",
        messages=messages,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert body["prompt"].endswith("Whill")
    refused(
        http,
        "/chat/completions",
        messages=messages,
        add_generation_prompt=True,
        continue_final_message=True,
    )


# --------------------------------------------------------------------------------- completions


def test_a_completion_in_llama_servers_dialect(http: httpx.Client) -> None:
    body = post(http, "/completion", n_predict=8, prompt="Once upon", return_tokens=True)
    assert body["timings"]["predicted_n"] == body["tokens_predicted"] == 8
    assert body["timings"]["prompt_n"] + body["timings"]["cache_n"] == body["tokens_evaluated"]
    assert (body["stop"], body["stop_type"], body["truncated"]) == (True, "limit", False)
    assert type(body["has_new_line"]) is bool
    assert len(body["tokens"]) == 8
    settings = body["generation_settings"]
    assert settings["n_predict"] == 8
    assert (settings["seed"], settings["logit_bias"]) == (2**32 - 1, [])
    assert {"adaptive_target", "adaptive_decay", "samplers", "temperature"} <= set(settings)
    assert post(http, "/completions", n_predict=2, prompt="Once upon")["tokens"] == []


def test_a_stream_of_it_says_the_same(http: httpx.Client) -> None:
    wishes: Any = {"n_predict": 8, "prompt": "Once upon", "temperature": 0}
    whole = post(http, "/completion", **wishes)
    *told, last = events(http, "/completion", **wishes)
    assert all(event["stop"] is False and event["tokens"] for event in told)
    assert last["stop"] is True
    assert last["stop_type"] == "limit"
    assert "".join(event["content"] for event in told) == whole["content"]


def test_seeds(http: httpx.Client) -> None:
    wishes: Any = {"prompt": "Tell me", "n_predict": 24, "temperature": 2.0, "min_p": 0, "top_p": 1}
    told = [post(http, "/completion", seed=seed, **wishes)["content"] for seed in (1, 2, 3, 1)]
    assert len(set(told)) == 3
    assert told[0] == told[3]


def test_prompts_have_many_forms(http: httpx.Client) -> None:
    text = "Once upon a time"
    tokens = post(http, "/tokenize", content=text, add_special=True)["tokens"]
    wishes: Any = {"n_predict": 4, "temperature": 0}
    assert isinstance(post(http, "/completion", prompt=tokens, **wishes)["content"], str)
    for prompt in ([tokens, tokens], [tokens, text], [tokens, {"prompt_string": text}]):
        first, second = post(http, "/completion", prompt=prompt, **wishes)
        assert first["content"] == second["content"]
    mixed = post(http, "/completion", prompt=[1, 2, 3, text, 7, text], **wishes)
    assert isinstance(mixed["content"], str)
    with_image = {"prompt_string": text, "multimodal_data": "AAAA"}
    assert refused(http, "/completion", prompt=with_image)["param"] == "prompt.multimodal_data"


def test_response_fields(http: httpx.Client) -> None:
    fields = ["content", "generation_settings/n_predict", "prompt"]
    body = post(http, "/completion", prompt="Once", n_predict=3, response_fields=fields)
    assert set(body) == set(fields)
    assert body["generation_settings/n_predict"] == 3


def test_probabilities(http: httpx.Client) -> None:
    wishes: Any = {"prompt": "Once upon", "n_probs": 10, "temperature": 0, "n_predict": 5}
    entries = post(http, "/completion", **wishes)["completion_probabilities"]
    assert len(entries) == 5
    for entry in entries:
        assert isinstance(entry["id"], int)
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 10
        assert all(isinstance(other["id"], int) for other in entry["top_logprobs"])
    *told, _ = events(http, "/completion", **wishes)
    assert all(len(event["completion_probabilities"]) == 1 for event in told)


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_biases_have_many_forms(http: httpx.Client, *, as_map: bool, as_tokens: bool) -> None:
    wishes: Any = {"n_predict": 8, "prompt": "Once upon", "temperature": 0}
    banned = post(http, "/completion", **wishes)["content"][:2]
    entries: list[list[Any]] = [[banned, -100]]
    if as_tokens:
        tokens = post(http, "/tokenize", content=banned)["tokens"]
        entries = [[token, -100] for token in tokens]
    bias = {str(entry[0]): entry[1] for entry in entries} if as_map else entries
    told = post(http, "/completion", logit_bias=bias, **wishes)["content"]
    assert not told.startswith(banned)


# ------------------------------------------------------------------------------- tokens, others


def test_tokenize_and_back(http: httpx.Client) -> None:
    text = "What is the capital of France ?"
    tokens = post(http, "/tokenize", content=text)["tokens"]
    assert post(http, "/detokenize", tokens=tokens)["content"].strip() == text
    for entry in post(http, "/tokenize", content="媽 and 🤗", with_pieces=True)["tokens"]:
        assert isinstance(entry["id"], int)
        assert len(entry["piece"]) > 0


def test_what_is_served(http: httpx.Client, fleet: Fleet) -> None:
    assert http.get("/v1/health").json() == {"status": "ok"}
    assert http.get("/health").text == "OK"
    (model,) = http.get("/models").json()["data"]
    assert model["id"] == "paddler-demo"
    props = http.get("/props").json()
    assert ".gguf" in props["model_path"]
    assert "/" not in props["model_path"], "where it lies is nobody's business"
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["seed"] == 2**32 - 1
    assert props["modalities"] == {"vision": False, "video": False, "audio": False}
    slots = http.get("/slots").json()
    assert [slot["is_processing"] for slot in slots] == [False] * 4
    assert [(slot["id"], slot["n_ctx"]) for slot in slots] == [(each, 1024) for each in range(4)]
    assert {slot["n_prompt_tokens"] for slot in slots} == {0}
    assert {slot["next_token"][0]["has_next_token"] for slot in slots} == {False}
    caps = props["chat_template_caps"]
    assert caps["supports_tools"] is caps["supports_system_role"] is True
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200
    (listed,) = http.get("/v1/models").json()["models"]
    assert (listed["name"], listed["capabilities"]) == ("paddler-demo", ["completion"])
    assert (model["aliases"], model["tags"]) == (["paddler-demo.gguf"], [])
    assert http.get("/models/paddler-demo").json()["id"] == "paddler-demo"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/props"),
        ("POST", "/slots/1?action=save"),
        ("POST", "/lora-adapters"),
        ("GET", "/metrics"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/audio/transcriptions"),
        ("POST", "/v1/chat/completions/control"),
    ],
)
def test_what_a_fleet_has_not_is_said_by_name(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["type"] == "not_supported_error"
    assert error["message"].startswith(f"{method} {path.split('?')[0].removesuffix('/1')} is not")


def test_a_slot_tells_how_far_its_request_is(http: httpx.Client) -> None:
    body = {"prompt": "Once", "n_predict": 2000, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/completion", json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(40):
            next(lines)
        slot = next(each for each in http.get("/slots").json() if each["is_processing"])
    assert slot["id_task"] >= 0
    assert slot["n_prompt_tokens"] >= slot["n_prompt_tokens_cache"] >= 0
    assert slot["n_prompt_tokens"] > 0
    assert slot["next_token"][0]["n_decoded"] >= 10


def test_the_last_chunk_of_a_completion_has_its_usage(http: httpx.Client) -> None:
    told = events(http, "/v1/completions", prompt=["A", "B"], max_tokens=3)
    ends = [each for each in told if each["choices"][0]["finish_reason"]]
    assert [each["usage"]["completion_tokens"] for each in ends] == [3, 3]
    assert all("usage" not in each for each in told if each not in ends)


def test_a_front_end_for_role_play_is_answered_and_told_what_is_missing(
    http: httpx.Client,
) -> None:
    body = {
        "prompt": "Once",
        "n_predict": 4,
        "temperature": 4,
        "tfs_z": 1,
        "typical_p": 1,
        "repetition_penalty": 1.1,
        "repeat_penalty": 1.1,
        "adaptive_target": -0.01,
        "dry_sequence_breakers": [],
        "samplers": ["penalties", "top-k", "tfs_z", "typical_p", "temp", "adaptive_p"],
        "stop": [""],
    }
    answer = http.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.headers["x-paddler-ignored-fields"].split(", ")
    assert {*told} == {"tfs_z", "samplers.tfs_z"}
    settings = answer.json()["generation_settings"]
    assert settings["samplers"] == ["penalties", "top_k", "typ_p", "temperature", "adaptive_p"]
    assert (settings["temperature"], settings["repeat_last_n"]) == (4, 64)
    assert http.post("/completion", json={**body, "samplers": []}).status_code == 200


def test_probabilities_behind_the_samplers(http: httpx.Client) -> None:
    asked: Any = {"prompt": "I", "n_predict": 4, "n_probs": 8, "post_sampling_probs": True}
    chain: Any = {"top_k": 4, "top_p": 1, "min_p": 0, "temperature": 1.5, "seed": 3}
    body = post(http, "/completion", **asked, **chain)
    *told, _ = events(http, "/completion", **asked, **chain)
    entries = body["completion_probabilities"]
    assert entries == [each["completion_probabilities"][0] for each in told]
    for entry in entries:
        shares = [each["prob"] for each in entry["top_probs"]]
        assert len(shares) == 4
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert entry["prob"] in shares
        assert "logprob" not in entry
    (sure,) = post(http, "/completion", **{**asked, "n_predict": 1}, temperature=0)[
        "completion_probabilities"
    ]
    assert [each["prob"] for each in sure["top_probs"]] == [sure["prob"]] == [1.0]
    bound = post(http, "/completion", **asked, **chain, grammar='root ::= "I" | "am"')
    assert all(each["top_probs"] for each in bound["completion_probabilities"])


def test_the_adaptive_sampler_keeps_near_its_target(http: httpx.Client) -> None:
    asked: Any = {"prompt": "I", "n_predict": 24, "n_probs": 1, "temperature": 1, "seed": 5}
    free: Any = {"top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True}
    means = []
    for target in (0.05, 0.9):
        wishes: Any = {"adaptive_target": target, "samplers": ["adaptive_p"]}
        body = post(http, "/completion", **asked, **free, **wishes)
        assert body["generation_settings"]["samplers"] == ["adaptive_p"]
        assert body == post(http, "/completion", **asked, **free, **wishes) | {
            name: body[name] for name in ("timings", "tokens_cached")
        }
        chances = [math.exp(each["logprob"]) for each in body["completion_probabilities"]]
        means.append(sum(chances) / len(chances))
    assert means[0] + 0.2 < means[1]
    usual = post(http, "/completion", **asked, **free)
    assert usual == post(http, "/completion", **asked, **free, adaptive_target=0.05) | {
        name: usual[name] for name in ("timings", "tokens_cached", "generation_settings")
    }


def test_an_empty_prompt_begins_a_text(http: httpx.Client) -> None:
    one = post(http, "/completion", prompt=[""], n_predict=4, temperature=0)
    assert one["tokens_evaluated"] == 1
    assert one["tokens_predicted"] == 4


def test_control_tokens_are_no_text_unless_they_are_asked_for(http: httpx.Client) -> None:
    (mark,) = post(http, "/tokenize", content="<|im_start|>")["tokens"]
    wishes: Any = {"n_predict": 3, "return_tokens": True, "logit_bias": [[mark, 1000]]}
    for path in ("/completion", "/v1/completions"):
        wishes = wishes if path == "/completion" else {**wishes, "return_tokens": None}
        body = post(http, path, prompt="Once", **wishes)
        assert body.get("content", body.get("choices", [{}])[0].get("text")) == ""
    body = post(http, "/completion", prompt="Once", n_predict=3, logit_bias=[[mark, 1000]])
    assert body["tokens_predicted"] == 3
    body = post(http, "/completion", prompt="Once", stop=["<|im_start|>"], **wishes)
    assert (body["stopping_word"], body["tokens_predicted"]) == ("<|im_start|>", 1)


def test_penalties_see_the_prompt(http: httpx.Client) -> None:
    story = "Once upon a time there was a cat. The cat sat on the mat. The cat sat on the"
    wishes: Any = {"prompt": story, "n_predict": 8, "temperature": 0, "repeat_penalty": 1.8}
    seeing = post(http, "/completion", **wishes)["content"]
    assert seeing != post(http, "/completion", penalize_prompt=False, **wishes)["content"]


def test_no_slot_is_free_where_there_is_none(lonely: Fleet) -> None:
    with httpx.Client(base_url=lonely.inference_url, trust_env=False, timeout=60) as nobody:
        assert nobody.get("/slots").json() == []
        answer = nobody.get("/slots?fail_on_no_slot=1")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert nobody.get("/props").json()["total_slots"] == 0


def test_adapters_are_the_operators() -> None:
    adapters = [
        {"name": "sql", "source": {"LocalToAgent": "/where/three.gguf"}, "scale": 0.25},
        {"name": "poems", "source": {"Url": {"url": "https://user@hub.example/a/four.gguf"}}},
    ]
    lora = ["/where/one.gguf", "/where/two.gguf=0.5"]
    with Fleet.start(agents=0, model=None) as fleet:
        url = f"{fleet.management_url}/api/v2/balancer_desired_state"
        with httpx.Client(trust_env=False, timeout=10) as management:
            both = management.get(url).json()
            both["extras"] = {"engine": {"lora": lora}, "adapters": adapters}
            management.put(url, json=both).raise_for_status()
            told = management.get(f"{fleet.inference_url}/lora-adapters").json()
    assert {(each["task_name"], each["prompt_prefix"]) for each in told} == {("", "")}
    names = ("id", "name", "path", "scale", "is_applied")
    assert [tuple(each[name] for name in names) for each in told] == [
        (0, "sql", "three.gguf", 0.25, False),
        (1, "poems", "four.gguf", 1.0, False),
        (2, "one", "one.gguf", 1.0, True),
        (3, "two", "two.gguf", 0.5, True),
    ]


def test_pages_of_allowed_origins_may_use_it() -> None:
    page = "http://page.example"
    options = [f"--inference-cors-allowed-host={page}", "--compat-openai-addr=127.0.0.1:0"]
    asking = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-stainless-os",
    }
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        compat = fleet.balancer.wait_for_log("balancer up")["compat_openai"]
        assert isinstance(compat, list)
        for base in (fleet.inference_url, f"http://{compat[0]}"):
            with httpx.Client(base_url=base, trust_env=False, timeout=60) as http:
                good = http.options("/v1/chat/completions", headers={"Origin": page, **asking})
                bad = http.options("/v1/chat/completions", headers={"Origin": "http://x", **asking})
                read = http.get("/v1/models", headers={"Origin": page})
                assert http.get("/health").text == "OK"
            assert (good.status_code, bad.status_code) == (200, 200)
            assert good.headers["access-control-allow-origin"] == page
            assert good.headers["access-control-allow-credentials"] == "true"
            assert good.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
            assert good.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
            assert "access-control-allow-origin" not in bad.headers
            assert read.headers["access-control-allow-origin"] == page
            assert (read.json()["object"], read.json()["data"]) == ("list", [])
            assert "Access-Control-Allow-Origin" in {name.decode() for name, _ in good.headers.raw}


# -------------------------------------------------------------------------- bodies and their limits


def test_bodies_that_are_none(http: httpx.Client) -> None:
    path = "/v1/chat/completions"
    as_json = {"content-type": "application/json"}
    for body, headers, status in (
        (b"{", {"content-type": "text/plain"}, 415),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"{", as_json, 400),
        (b"[]", as_json, 400),
        (b'{"messages": [], "messages": []}', as_json, 400),
        (b'{"a":' + b"[" * 90 + b"]" * 90 + b"}", as_json, 400),
        (b"\x1f\x8b", {**as_json, "content-encoding": "gzip"}, 400),
    ):
        answer = http.post(path, content=body, headers=headers)
        assert answer.status_code == status, (body, answer.text)
        assert answer.json()["error"]["message"]
        assert answer.headers["x-request-id"]


@pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "text/plain", None])
def test_json_is_taken_however_it_is_called_but_not_from_a_page(
    http: httpx.Client, media_type: str | None
) -> None:
    body = json.dumps({"content": "Hello"}).encode()
    headers = {"content-type": media_type} if media_type else {}
    answer = http.post("/tokenize", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    for page in ({"origin": "http://page.example"}, {"sec-fetch-site": "cross-site"}):
        answer = http.post("/tokenize", content=body, headers=headers | page)
        assert answer.status_code == 403, answer.text


def test_also_where_unknown_fields_are_refused_a_program_need_not_say_what_it_sends() -> None:
    options = ["--strict-openai-fields"]
    with (
        Fleet.start(agents=0, model=None, balancer_options=options) as fleet,
        httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http,
    ):
        kind = {"content-type": "application/x-www-form-urlencoded"}
        page = {"sec-fetch-site": "same-origin"}
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"):
            read = http.post(path, content=b'{"novelty": 1}', headers=kind)
            assert (read.status_code, "novelty" in read.text) == (400, True)
            assert http.post(path, content=b"{}", headers=kind | page).status_code == 415


def test_limits_are_the_operators_and_named() -> None:
    limits = ["max_body_bytes=5000", "max_messages=3", "max_stop_texts=1", "max_choices=2"]
    options = [f"--openai-limit={limit}" for limit in limits]
    with (
        Fleet.start(agents=0, model=None, balancer_options=options) as fleet,
        httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http,
    ):
        path = "/v1/chat/completions"
        large = http.post(path, json={"messages": [{"role": "user", "content": "x" * 6000}]})
        assert large.status_code == 413
        assert "max_body_bytes" in large.json()["error"]["message"]
        assert "max_messages is 3" in refused(http, path, messages=HELLO * 4)["message"]
        stops = refused(http, path, messages=HELLO, stop=["a", "b"])
        assert "max_stop_texts is 1" in stops["message"]
        assert refused(http, path, messages=HELLO, n=3)["param"] == "n"


# ------------------------------------------------------------------------------------- images


class ImageHost(BaseHTTPRequestHandler):
    """Serves an image, something that is none, something large, and the way to another host."""

    def do_GET(self) -> None:
        kind = {"/text": "text/html"}.get(self.path, "image/png")
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("content-type", kind)
        if self.path == "/moved":
            self.send_header("location", "http://localhost/")
        self.end_headers()
        image = encoded(picture((9, 9, 9), width=8, height=8))
        self.wfile.write(b"x" * 5000 if self.path == "/large" else image)

    def log_message(self, *words: object) -> None:
        """Nothing."""


def test_images_are_fetched_from_allowed_hosts_only(http: httpx.Client) -> None:
    def wish(url: str) -> Any:
        parts = [{"type": "image_url", "image_url": {"url": url}}]
        return {"messages": [{"role": "user", "content": parts}]}

    with ThreadingHTTPServer(("127.0.0.1", 0), ImageHost) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{host.server_port}"
        path = "/v1/chat/completions"
        try:
            options = [f"--image-host=127.0.0.1:{host.server_port}"]
            options.append("--openai-limit=max_image_bytes=2000")
            with (
                Fleet.start(agents=1, balancer_options=options) as fleet,
                httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as allowed,
            ):
                seen = refused(allowed, path, **wish(f"{base}/image"))
                large = refused(allowed, path, **wish(f"{base}/large"))
                text = refused(allowed, path, **wish(f"{base}/text"))
                moved = refused(allowed, path, **wish(f"{base}/moved"))
        finally:
            host.shutdown()
        assert seen["code"] == "images_not_supported", "it was fetched; the model is blind"
        assert "max_image_bytes of 2000" in large["message"]
        assert "the host sent text/html" in text["message"]
        assert "the host answered 302" in moved["message"]
        assert text["param"] == "messages[0].content[0].image_url.url"
        error = refused(http, path, **wish(f"{base}/image"))
        assert error["code"] == "image_host_not_allowed"
    for url in ("file:///etc/passwd", "ftp://x/y", "http://[", "nonsense"):
        refused(http, "/v1/chat/completions", **wish(url))
    broken = refused(http, "/v1/chat/completions", **wish("data:image/png;base64,AAAA"))
    assert broken["code"] == "invalid_image"
    image = data_uri(encoded(picture((9, 9, 9))))
    blind = refused(http, "/v1/chat/completions", **wish(image))
    assert blind["code"] == "images_not_supported"


# ------------------------------------------------- every field of sampling, down to the engine

STORY: Any = [{"role": "user", "content": "Tell me a long story."}]
HOT: Any = {
    "messages": STORY,
    "max_tokens": 40,
    "temperature": 1.6,
    "seed": 7,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    **NO_THINKING,
}
WISHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # what both requests have, and what the second has more
    ({}, {"temperature": 0.2}),
    ({}, {"top_p": 0.1}),
    ({}, {"top_k": 2}),
    ({}, {"min_p": 0.5}),
    ({}, {"typical_p": 0.1}),
    ({}, {"top_n_sigma": 0.5}),
    ({}, {"dynatemp_range": 1.5}),
    ({"dynatemp_range": 1.5}, {"dynatemp_exponent": 4}),
    ({}, {"xtc_probability": 1, "xtc_threshold": 0.05}),
    ({"xtc_probability": 1, "xtc_threshold": 0.05}, {"xtc_threshold": 0.4}),
    ({}, {"mirostat": 1}),
    ({}, {"mirostat": 2}),
    ({"mirostat": 2}, {"mirostat_tau": 0.5}),
    ({"mirostat": 2}, {"mirostat_eta": 0.9}),
    ({}, {"repeat_penalty": 1.8}),
    ({"repeat_penalty": 1.8}, {"repeat_last_n": 1}),
    ({}, {"frequency_penalty": 2}),
    ({}, {"presence_penalty": 2}),
    ({}, {"seed": 8}),
    ({}, {"samplers": ["top_k"], "top_k": 1}),
    (
        {"samplers": ["min_p", "temperature"], "min_p": 1, "temperature": 2},
        {"min_keep": 200},
    ),
    ({}, {"stop": ["e"]}),
    ({}, {"max_tokens": 4}),
]


def told(http: httpx.Client, wishes: dict[str, Any]) -> str:
    body = post(http, "/v1/chat/completions", **wishes, cache_prompt=False)
    content = body["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def test_the_same_request_is_answered_the_same(http: httpx.Client) -> None:
    assert told(http, HOT) == told(http, HOT)


@pytest.mark.parametrize(("both", "wish"), WISHES, ids=str)
def test_a_wish_reaches_the_engine(
    http: httpx.Client, both: dict[str, Any], wish: dict[str, Any]
) -> None:
    assert told(http, HOT | both | wish) != told(http, HOT | both)


def test_repetition_is_punished_by_dry(http: httpx.Client) -> None:
    chorus: Any = {
        "prompt": "red green blue. " * 12 + "red green",
        "n_predict": 12,
        "temperature": 0,
        "repeat_penalty": 1,
        "presence_penalty": 0,
        "cache_prompt": False,
    }
    plain = post(http, "/completion", **chorus)["content"]
    dry = {"dry_multiplier": 50, "dry_base": 4, "dry_allowed_length": 1, "dry_penalty_last_n": -1}
    punished = post(http, "/completion", **chorus, **dry, dry_sequence_breakers=["\u2603"])
    assert punished["content"] != plain
    spared = post(http, "/completion", **chorus, **dry | {"dry_allowed_length": 1000})
    assert spared["content"] == plain


def test_what_is_told_of_an_answer(http: httpx.Client) -> None:
    path, asked = "/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 40}

    def message(**wish: Any) -> Any:
        return post(http, path, **asked, **wish)["choices"][0]["message"]

    with_reasoning = message()
    assert with_reasoning["reasoning_content"]
    assert "reasoning_content" not in message(include_reasoning=False)
    assert "reasoning_content" not in message(thinking={"type": "disabled"})
    assert "reasoning_content" not in message(chat_template_kwargs={"enable_thinking": False})
    inline = message(reasoning_format="none")["content"]
    apart = f"<think> {with_reasoning['reasoning_content']} </think> {with_reasoning['content']}"
    for mark in ("<think>", "</think>"):
        inline = inline.replace(mark, f" {mark} ")
    assert inline.split() == apart.split(), "but for the blanks between them"
    tool = {
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
    weather: Any = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "temperature": 0,
        "max_tokens": 80,
        "tools": [tool],
        **NO_THINKING,
    }
    parsed = post(http, path, **weather)["choices"][0]["message"]
    assert parsed["tool_calls"]
    raw = post(http, path, **weather, parse_tool_calls=False)["choices"][0]["message"]
    assert "tool_calls" not in raw
    assert "get_weather" in raw["content"]


def test_a_salt_keeps_prompts_apart(http: httpx.Client) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "a b c d e f g h"}], "max_tokens": 1}

    def cached(**wish: Any) -> int:
        body = post(http, "/v1/chat/completions", **asked, **wish)
        number = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(number, int)
        return number

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one") > 0
    assert cached(cache_salt="two") == 0
