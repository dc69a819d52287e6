"""``/api/v2/generate`` and the questions beside it, through a real balancer, agent and engine."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from typing import Any, TypeAlias

import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet
from streams import Heard, listen, until_first_tokens

from no_tls import NO_TLS

Json: TypeAlias = Any  # answers are looked into freely; their shape is what is being tested

TEXTS = ("ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken")
STORY = {"messages": [{"role": "user", "content": "Tell me a long story."}], "thinking": False}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def post(fleet: Fleet, path: str, body: Json) -> httpx.Response:
    return httpx.post(
        f"{fleet.inference_url}{path}", json=body, trust_env=False, verify=NO_TLS, timeout=60
    )


def generate(fleet: Fleet, prompt: Json, **fields: Json) -> list[Json]:
    """All results, the ending last."""
    answer = post(fleet, "/api/v2/generate", {"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert all("Response" in line for line in lines), lines[-1]
    return [line["Response"]["response"]["GeneratedToken"] for line in lines]


def told(fleet: Fleet, **fields: Json) -> list[Json]:
    return generate(fleet, {"Conversation": STORY}, **{"max_tokens": 40, **fields})


def text_in(results: list[Json]) -> str:
    return "".join(result.get(tag, "") for result in results for tag in TEXTS)


def finish_of(results: list[Json]) -> tuple[str, str | None]:
    finish = results[-1]["Done"]["finish"]
    return finish["reason"], finish["stop_text"]


def written(results: list[Json]) -> int:
    """Completion tokens."""
    usage = results[-1]["Done"]["usage"]
    return sum(usage[f"{kind}_tokens"] for kind in ("content", "reasoning", "undeterminable"))


def ask(fleet: Fleet, what: str, body: Json) -> Json:
    answer = post(fleet, f"/api/v2/{what}", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answer_says_how_it_finished_and_how_long_it_took(shared_fleet: Fleet) -> None:
    results = told(shared_fleet, max_tokens=12)
    done = results[-1]["Done"]
    assert done["finish"] == {"reason": "length", "stop_text": None}
    assert written(results) == 12
    timings = done["timings"]
    assert timings["predicted_n"] == 12
    assert timings["prompt_n"] + timings["cached_n"] == done["usage"]["prompt_tokens"]


def test_without_a_limit_an_answer_ends_by_itself_or_with_the_context(shared_fleet: Fleet) -> None:
    short = {"messages": [{"role": "user", "content": "Hello!"}], "thinking": False}
    results = generate(shared_fleet, {"Conversation": short})
    assert finish_of(results) == ("stop", None)
    endless = generate(
        shared_fleet,
        {"Text": {"text": "la la"}},
        constraint={"type": "gbnf", "grammar": 'root ::= " la" root', "root": "root"},
    )
    assert finish_of(endless) == ("cells", None)


def test_a_stop_text_ends_the_answer_before_it(shared_fleet: Fleet) -> None:
    whole = text_in(told(shared_fleet))
    for length in (1, 5, 12):
        stop = whole[20 : 20 + length]
        results = told(shared_fleet, stop=["never to be seen", stop])
        text = text_in(results)
        assert finish_of(results) == ("stop_text", stop)
        assert text == whole[: whole.index(stop)]
        assert written(results) < 40


def test_a_stop_text_that_never_comes_changes_nothing(shared_fleet: Fleet) -> None:
    whole = told(shared_fleet)
    others = told(shared_fleet, stop=[text_in(whole)[-6:] + "and never this"])
    assert text_in(others) == text_in(whole)
    assert finish_of(others) == ("length", None)


def test_an_equal_seed_draws_equally_and_another_one_does_not(shared_fleet: Fleet) -> None:
    def sampled(seed: int) -> str:
        return text_in(told(shared_fleet, sampling={"temperature": 3.0, "seed": seed}))

    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in range(1, 5)}) > 1


def test_a_prompt_of_tokens_is_continued_as_its_text_is(shared_fleet: Fleet) -> None:
    text = "The weather in Paris is"
    tokens = ask(shared_fleet, "tokenize", {"text": text})["tokens"]
    as_tokens = generate(shared_fleet, {"Tokens": {"tokens": tokens}}, max_tokens=8)
    as_text = generate(shared_fleet, {"Text": {"text": text}}, max_tokens=8)
    assert text_in(as_tokens) == text_in(as_text)
    assert as_tokens[-1]["Done"]["usage"]["prompt_tokens"] == len(tokens)


def test_a_conversation_with_a_call_and_its_result_is_answered(shared_fleet: Fleet) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny and 23 degrees"},
    ]
    prompt = {"Conversation": {"messages": messages, "tools": [WEATHER]}}
    rendered = ask(shared_fleet, "render_prompt", {"prompt": prompt})
    assert "Sunny and 23 degrees" in rendered["prompt"]
    assert "Paris" in rendered["prompt"]
    results = generate(shared_fleet, prompt, max_tokens=60)
    assert results[-1]["Done"]["usage"]["prompt_tokens"] == rendered["num_tokens"]
    assert text_in(results)


def test_tools_are_called_and_with_tool_choice_none_the_model_hears_of_none(
    shared_fleet: Fleet,
) -> None:
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = {"messages": question, "tools": [WEATHER], "thinking": False}
    results = generate(shared_fleet, {"Conversation": asked}, max_tokens=100)
    calls = [call for each in results for call in each.get("ToolCallParsed", [])]
    assert [call["name"] for call in calls] == ["get_weather"]
    silent = {**asked, "tool_choice": "none"}
    rendered = ask(shared_fleet, "render_prompt", {"prompt": {"Conversation": silent}})
    assert "get_weather" not in rendered["prompt"]


def test_a_call_is_told_while_it_is_written_under_the_id_it_keeps(shared_fleet: Fleet) -> None:
    prompt = {
        "Conversation": {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [WEATHER],
            "thinking": False,
        }
    }
    results = generate(shared_fleet, prompt, max_tokens=100)
    deltas = [each["ToolCallDelta"] for each in results if "ToolCallDelta" in each]
    (call,) = next(each["ToolCallParsed"] for each in results if "ToolCallParsed" in each)
    assert (deltas[0]["index"], deltas[0]["name"]) == (0, "get_weather")
    assert (call["id"], call["name"]) == (deltas[0]["id"], "get_weather")
    assert all(delta["id"] is None and delta["name"] is None for delta in deltas[1:])
    arguments = "".join(delta["arguments"] for delta in deltas)
    assert {"ValidJson": json.loads(arguments)} == call["arguments"]


def test_calls_that_are_wanted_raw_are_not_read(shared_fleet: Fleet) -> None:
    conversation = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "thinking": False,
        "raw_tool_calls": True,
    }
    results = generate(shared_fleet, {"Conversation": conversation}, max_tokens=100)
    tags = {tag for each in results for tag in each}
    assert "ToolCallToken" in tags
    assert not tags & {"ToolCallDelta", "ToolCallParsed"}


@pytest.mark.parametrize(
    ("choice", "name"), [("required", None), ("function", "get_time"), ("function", "get_weather")]
)
def test_a_call_that_is_demanded_is_made(
    shared_fleet: Fleet, choice: str, name: str | None
) -> None:
    clock = {"type": "function", "function": {"name": "get_time", "description": "The time"}}
    conversation = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "tools": [WEATHER, clock],
        "tool_choice": choice,
        "tool_name": name,
        "parallel_tool_calls": False,
        "thinking": False,
    }
    results = generate(shared_fleet, {"Conversation": conversation}, max_tokens=200)
    calls = [call["name"] for each in results for call in each.get("ToolCallParsed", [])]
    assert len(calls) == 1, results
    assert name is None or calls == [name]


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"type": "choice", "choices": ["red", "green"]}, lambda text: text in ("red", "green")),
        (
            {"type": "regex", "pattern": "[0-9]{3}-[a-f]{2}"},
            re.compile("[0-9]{3}-[a-f]{2}").fullmatch,
        ),
        (
            {
                "type": "json_schema",
                "schema": '{"type": "object", "properties": {"a": {"type": "integer", '
                '"minimum": 5, "maximum": 9}}, "required": ["a"], "additionalProperties": false}',
            },
            lambda text: 5 <= json.loads(text)["a"] <= 9,
        ),
    ],
    ids=["choice", "regex", "json_schema"],
)
@pytest.mark.parametrize("thinking", [None, False])
def test_a_constrained_answer_fits(
    shared_fleet: Fleet, constraint: Json, fits: Json, thinking: bool | None
) -> None:
    results = generate(
        shared_fleet,
        {"Conversation": {**STORY, "thinking": thinking}},
        max_tokens=300,
        constraint=constraint,
    )
    answer = text_in([each for each in results if "ReasoningToken" not in each])
    assert finish_of(results) == ("stop", None), results
    assert fits(answer.strip()), answer


def test_an_answer_that_has_to_be_json_begins_as_an_object(shared_fleet: Fleet) -> None:
    results = told(shared_fleet, constraint={"type": "json_object"})
    assert text_in(results).lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p"),
        ({"sampling": {"mirostat": 3}}, "sampling.mirostat"),
        ({"sampling": {"samplers": ["top_k", "magic"]}}, "sampling.samplers[1]"),
        ({"sampling": {"logit_bias": [{"token": -1}]}}, "sampling.logit_bias[0].token"),
        ({"sampling": {"logit_bias": [{}]}}, "sampling.logit_bias[0]"),
        ({"stop": ["fine", ""]}, "stop[1]"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt": {"Tokens": {"tokens": [1, 99999]}}}, "prompt.tokens[1]"),
        ({"prompt": {"Tokens": {"tokens": []}}}, "prompt.tokens"),
        (
            {"prompt": {"Conversation": {**STORY, "tool_choice": "required"}}},
            "prompt.tool_choice",
        ),
    ],
)
def test_what_only_the_agent_can_judge_is_refused_by_its_field(
    shared_fleet: Fleet, fields: Json, field: str
) -> None:
    body = {"prompt": {"Conversation": STORY}, "max_tokens": 5, **fields}
    (ending,) = generate(shared_fleet, body.pop("prompt"), **body)
    assert ending["BadRequest"]["field"] == field
    assert ending["BadRequest"]["message"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": {"Text": {"text": "a"}}, "max_token": 3}, "max_token"),
        ({"prompt": {"Text": {"text": "a", "stop": []}}}, "stop"),
        ({"prompt": {"Text": {"text": "a"}}, "max_tokens": 1.5}, "$.max_tokens"),
        ({"prompt": {"Sound": {}}}, "$.prompt"),
        ({}, "$.prompt"),
        ([], "an object"),
    ],
)
def test_a_body_of_another_shape_is_answered_400_naming_the_field(
    shared_fleet: Fleet, body: Json, named: str
) -> None:
    answer = post(shared_fleet, "/api/v2/generate", body)
    assert answer.status_code == 400
    assert named in answer.text


def test_tokens_and_their_text_are_each_others_answer(shared_fleet: Fleet) -> None:
    text = "Hello, wörld! 東京 <|im_start|>"
    tokens = ask(shared_fleet, "tokenize", {"text": text})["tokens"]
    assert ask(shared_fleet, "detokenize", {"tokens": tokens})["text"] == text
    plain = ask(shared_fleet, "tokenize", {"text": text, "parse_special": False})["tokens"]
    assert len(plain) > len(tokens)
    pieces = ask(shared_fleet, "tokenize", {"text": text, "with_pieces": True})["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    raw = b"".join(
        piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
        for piece in pieces
    )
    assert raw.decode() == text


def test_a_question_that_makes_no_sense_is_answered_400(shared_fleet: Fleet) -> None:
    answer = post(shared_fleet, "/api/v2/detokenize", {"tokens": [5, 1536]})
    assert (answer.status_code, "1536" in answer.text) == (400, True)
    answer = post(shared_fleet, "/api/v2/tokenize", {"text": "a" * 4_000_001})
    assert (answer.status_code, "4000000" in answer.text) == (400, True)
    nobody_speaks = {"prompt": {"Conversation": {"messages": [{"content": "Hi"}]}}}
    answer = post(shared_fleet, "/api/v2/render_prompt", nobody_speaks)
    assert (answer.status_code, "messages[0].role" in answer.text) == (400, True)
    nobody_said = {"prompt": {"Conversation": {"messages": []}}}
    answer = post(shared_fleet, "/api/v2/render_prompt", nobody_said)
    assert answer.status_code == 200, "of an empty conversation the template decides"


def test_the_model_is_described(shared_fleet: Fleet) -> None:
    answer = httpx.get(f"{shared_fleet.inference_url}/api/v2/model", trust_env=False, timeout=60)
    model = answer.json()
    assert model["name"] == "paddler-demo"
    assert (model["n_vocab"], model["n_embd"], model["n_ctx_train"]) == (1536, 256, 2048)
    assert model["n_params"] > 4_000_000
    assert model["size_bytes"] > 4_000_000
    assert 0 < model["n_ctx"] <= 1024
    assert (model["has_thinking"], model["has_tools"], model["can_embed"]) == (True, True, False)


FREELY = {
    "temperature": 1.5,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "penalty_repeat": 1.0,
    "penalty_presence": 0.0,
    "seed": 5,
}


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": 0.0},
        {"dynatemp_range": 1.5},
        {"top_k": 1},
        {"top_p": 0.05},
        {"min_p": 0.9},
        {"typical_p": 0.05},
        {"top_n_sigma": 0.1},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"mirostat": 1, "mirostat_tau": 0.5},
        {"mirostat": 2, "mirostat_tau": 0.5, "mirostat_eta": 0.9},
        {"penalty_repeat": 3.0, "penalty_last_n": -1},
        {"penalty_frequency": 5.0},
        {"penalty_presence": 5.0},
        {"penalty_repeat": 3.0, "penalize_prompt": True},
        {"dry_multiplier": 50.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["@"]},
        {"samplers": ["top_k", "temperature"], "top_k": 1},
        {"logit_bias": [{"text": " a"}, {"text": " the"}, {"text": "."}]},
        {"seed": 6},
    ],
    ids=lambda wish: "-".join(wish),
)
def test_a_wish_about_sampling_changes_what_is_drawn(shared_fleet: Fleet, wish: Json) -> None:
    usual = text_in(told(shared_fleet, max_tokens=60, sampling=FREELY))
    assert usual == text_in(told(shared_fleet, max_tokens=60, sampling=FREELY))
    assert usual != text_in(told(shared_fleet, max_tokens=60, sampling={**FREELY, **wish}))


def test_one_candidate_is_the_most_likely_one_however_hot(shared_fleet: Fleet) -> None:
    coldly = text_in(told(shared_fleet, sampling={**FREELY, "temperature": 0.0}))
    assert coldly == text_in(told(shared_fleet, sampling={**FREELY, "top_k": 1}))


def test_a_banned_text_is_not_written(shared_fleet: Fleet) -> None:
    first = next(text for result in told(shared_fleet) if (text := result.get("ContentToken")))
    others = told(shared_fleet, sampling={"logit_bias": [{"text": first, "bias": -100.0}]})
    assert not text_in(others).startswith(first)


def test_an_answer_that_ignores_its_end_goes_on(shared_fleet: Fleet) -> None:
    short = {"Conversation": {"messages": [{"role": "user", "content": "Hi!"}], "thinking": False}}
    assert finish_of(generate(shared_fleet, short, max_tokens=200))[0] == "stop"
    results = generate(shared_fleet, short, max_tokens=200, sampling={"ignore_eos": True})
    assert finish_of(results)[0] == "length"


def test_every_shown_token_has_its_log_probability(shared_fleet: Fleet) -> None:
    plain = {"temperature": 0.0, "penalty_repeat": 1.0, "penalty_presence": 0.0}
    results = told(shared_fleet, sampling=plain, logprobs=3)
    reported = [result["Logprobs"] for result in results if "Logprobs" in result]
    assert len(reported) == written(results) == 40
    assert b"".join(bytes(each["bytes"]) for each in reported).decode() == text_in(results)
    for each in reported:
        assert len(each["top"]) == 3
        assert each["top"][0] == {key: each[key] for key in ("id", "token", "bytes", "logprob")}
        assert each["logprob"] <= 0
    alone = told(shared_fleet, logprobs=0)
    assert all(result["Logprobs"]["top"] == [] for result in alone if "Logprobs" in result)
    assert not any("Logprobs" in result for result in told(shared_fleet))


def test_the_cache_serves_only_who_may_share_it(shared_fleet: Fleet) -> None:
    prompt = {"Text": {"text": "A prompt of its own, long enough to be worth keeping in a cache."}}

    def cached(**fields: Json) -> int:
        results = generate(shared_fleet, prompt, max_tokens=2, **fields)
        return int(results[-1]["Done"]["usage"]["cached_prompt_tokens"])

    assert cached(cache_salt="red") == 0
    assert cached(cache_salt="red") > 5
    assert cached(cache_salt="blue") == 0
    assert cached(cache_salt="red", reuse_prefix=False) == 0


def test_reasoning_ends_when_its_tokens_are_used_up(shared_fleet: Fleet) -> None:
    asked = {
        "messages": [{"role": "user", "content": "What is seven times eight? Think hard."}],
        "thinking": True,
    }
    freely = generate(shared_fleet, {"Conversation": asked}, max_tokens=200)
    assert text_in([each for each in freely if "ReasoningToken" in each])
    briefly = generate(
        shared_fleet, {"Conversation": {**asked, "max_reasoning_tokens": 2}}, max_tokens=200
    )
    usage = [each[-1]["Done"]["usage"]["reasoning_tokens"] for each in (freely, briefly)]
    assert usage[1] < usage[0]
    assert usage[1] <= 5


def test_a_client_that_leaves_gives_its_slot_back(shared_fleet: Fleet) -> None:
    body = {
        "prompt": {"Conversation": STORY},
        "sampling": {"ignore_eos": True},
        "stop": ["never said, I hope"],
    }
    heard = Heard()
    trio.run(
        partial(
            listen, shared_fleet.inference, "/api/v2/generate", body, heard, leave_after_tokens=3
        )
    )
    assert heard.was_cancelled
    shared_fleet.wait_until(
        lambda view: all(agent["slots_processing"] == 0 for agent in view["agents"]),
        what="the slot is free again",
    )


def test_a_stop_text_is_found_in_an_answer_that_was_continued_elsewhere() -> None:
    greedy = {"temperature": 0.0, "penalty_repeat": 1.0, "penalty_presence": 0.0}
    with Fleet.start(agents=2, slots=1) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=2048, **greedy)
        fleet.wait_serving()
        endless = {"ignore_eos": True}
        whole = text_in(told(fleet, max_tokens=600, sampling=endless))
        # the first text of its length that occurs late, so that the answer is under way for long
        stop = next(
            whole[at : at + 24]
            for at in range(len(whole) * 2 // 3, len(whole))
            if whole.index(whole[at : at + 24]) == at
        )
        body = {
            "prompt": {"Conversation": STORY},
            "max_tokens": 600,
            "sampling": endless,
            "stop": [stop],
        }
        heard = Heard()

        async def lose_its_agent() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, fleet.inference, "/api/v2/generate", body, heard)
                await until_first_tokens([heard], 1)
                (name,) = heard.generated_by
                os.kill(fleet.agents[name].pid, signal.SIGKILL)

        trio.run(lose_its_agent)
        assert heard.endings == ["Done"], heard
        assert len(heard.generated_by) == 2
        assert heard.text == whole[: whole.index(stop)]


def test_in_embeddings_mode_text_is_generated_for_who_asks_here() -> None:
    with Fleet.start(agents=1, slots=1) as fleet:
        fleet.desire(BUNDLED_MODEL, enable_embeddings=True)
        fleet.wait_serving()
        assert text_in(told(fleet, max_tokens=5))
        old = {"raw_prompt": "Once", "max_tokens": 5}
        assert post(fleet, "/api/v1/continue_from_raw_prompt", old).status_code == 501
