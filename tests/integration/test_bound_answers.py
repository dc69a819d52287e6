"""Answers that have to have a form, and calls that have to be made: through a real fleet.

The demo model is tiny and is made to answer hotly, so what holds here holds by construction.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

import pytest
from fleet import Fleet
from test_generate import WEATHER, finish_of, generate, post, text_in

Json: TypeAlias = Any

HOT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PLACES = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "degrees": {"type": "integer", "minimum": -40, "maximum": 50},
        "sky": {"enum": ["clear", "grey"]},
    },
    "required": ["city", "degrees", "sky"],
}
CLOCK = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def asked(text: str, **fields: Json) -> Json:
    return {"Conversation": {"messages": [{"role": "user", "content": text}], **fields}}


def content_in(results: list[Json]) -> str:
    return "".join(result.get("ContentToken", "") for result in results).strip()


def reasoning_in(results: list[Json]) -> str:
    return "".join(result.get("ReasoningToken", "") for result in results)


def calls_in(results: list[Json]) -> list[Json]:
    assert not [result for result in results if "ToolCallValidationFailed" in result]
    assert not [result for result in results if "UnrecognizedToolCallFormat" in result]
    return [call for result in results for call in result.get("ToolCallParsed", ())]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_answer_fits_its_schema_with_thinking_and_without(
    shared_fleet: Fleet, thinking: bool, seed: int
) -> None:
    results = generate(
        shared_fleet,
        asked("What is the weather in Rome?", thinking=thinking, max_reasoning_tokens=20),
        constraint={"type": "json_schema", "schema": json.dumps(PLACES)},
        sampling={**HOT, "seed": seed},
        max_tokens=400,
    )
    assert finish_of(results) == ("stop", None)
    answer = json.loads(content_in(results))
    assert answer.keys() == {"city", "degrees", "sky"}
    assert -40 <= answer["degrees"] <= 50
    assert answer["sky"] in ("clear", "grey")
    assert bool(reasoning_in(results)) is thinking


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"type": "regex", "pattern": "(yes|no), [a-z]{3,5}!"}, "(yes|no), [a-z]{3,5}!"),
        ({"type": "choice", "choices": ["left", "right"]}, "left|right"),
        ({"type": "json_object"}, r"(?s)\{.*\}"),
        ({"type": "gbnf", "grammar": 'root ::= "a" [0-9]{4}', "root": "root"}, "a[0-9]{4}"),
    ],
)
@pytest.mark.parametrize("thinking", [False, True])
def test_every_kind_of_form_binds_the_answer_after_the_reasoning(
    shared_fleet: Fleet, constraint: Json, fits: str, thinking: bool
) -> None:
    results = generate(
        shared_fleet,
        asked("Go on.", thinking=thinking, max_reasoning_tokens=5),
        constraint=constraint,
        sampling={**HOT, "seed": 4},
        max_tokens=300,
    )
    if finish_of(results)[0] == "stop":
        assert re.fullmatch(fits, content_in(results))
    else:
        assert constraint["type"] == "json_object"


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_required_call_is_made_and_valid(shared_fleet: Fleet, thinking: bool, seed: int) -> None:
    prompt = asked(
        "Tell me a story.",
        thinking=thinking,
        max_reasoning_tokens=10,
        tools=[WEATHER, CLOCK],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    results = generate(shared_fleet, prompt, sampling={**HOT, "seed": seed}, max_tokens=600)
    if finish_of(results)[0] == "stop":
        (call,) = calls_in(results)
        assert call["name"] in ("get_weather", "now")
        assert not content_in(results)


def test_a_call_that_was_begun_freely_is_valid_however_hot(shared_fleet: Fleet) -> None:
    prompt = asked("What is the weather in Rome?", thinking=False, tools=[WEATHER])
    num_calls = 0
    for seed in range(6):
        sampling = {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed}
        results = generate(shared_fleet, prompt, sampling=sampling, max_tokens=300)
        if finish_of(results)[0] == "stop":
            num_calls += len(calls_in(results))
    assert num_calls


def test_the_named_tool_is_called(shared_fleet: Fleet) -> None:
    prompt = asked(
        "What is the weather in Rome?",
        thinking=False,
        tools=[CLOCK, WEATHER],
        tool_choice="function",
        tool_name="get_weather",
        parallel_tool_calls=False,
    )
    results = generate(shared_fleet, prompt, max_tokens=200)
    assert [call["name"] for call in calls_in(results)] == ["get_weather"]


@pytest.mark.parametrize(
    ("fields", "constraint", "tag", "words"),
    [
        (
            {},
            {"type": "json_schema", "schema": '{"items": '},
            "GrammarSyntaxError",
            "JSON",
        ),
        ({}, {"type": "regex", "pattern": "a(?=b)"}, "GrammarSyntaxError", "look-around"),
        (
            {},
            {"type": "gbnf", "grammar": "root ::= missing", "root": "root"},
            "GrammarInitializationFailed",
            "no rule",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"type": "object", "not": {}},
                        },
                    }
                ],
                "tool_choice": "required",
            },
            None,
            "ToolSchemaInvalid",
            "tool 'f': $: not",
        ),
    ],
)
def test_what_cannot_be_bound_is_refused_by_name(
    shared_fleet: Fleet, fields: Json, constraint: Json, tag: str, words: str
) -> None:
    body = {"prompt": asked("Hello", **fields), "constraint": constraint, "max_tokens": 5}
    answer = post(shared_fleet, "/api/v2/generate", body)
    assert tag in answer.text
    assert words in answer.text.replace('\\"', '"')


def test_reasoning_ends_with_its_budget(shared_fleet: Fleet) -> None:
    results = generate(
        shared_fleet, asked("Why?", thinking=True, max_reasoning_tokens=3), max_tokens=60
    )
    assert results[-1]["Done"]["usage"]["reasoning_tokens"] <= 3 + 5
    assert text_in(results)
