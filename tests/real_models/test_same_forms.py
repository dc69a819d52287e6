"""Answers that are bound to a form, by a model that would say something else: schemas, grammars and
calls. Where a form leaves one text, it is llama-server's; where it leaves layout, what it means is.

Schemas are given to ``/completion``: in conversations llama-server lets the model write a fence
around JSON first, and text before a call that is required. A fleet begins with what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from side_by_side import Pair, require, side_by_side
from trained_models import SMOLLM2

from llama_source import template_text

ASK = [{"role": "user", "content": "What is the weather like in Paris today? Answer as JSON."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 96}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name."}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "set_alarm",
            "description": "Rings at an hour.",
            "parameters": {
                "type": "object",
                "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
                "required": ["hour"],
            },
        },
    },
]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """With a template that knows tools and has the control tokens that this model was taught."""
    template = template_text("Qwen-Qwen2.5-7B-Instruct.jinja")
    with side_by_side(require(SMOLLM2), template=template) as pair:
        yield pair


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "rainy"},
        {"enum": ["sunny", "rainy", "cloudy"]},
        {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": 40},
        {"type": "string", "maxLength": 12},
        {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    ],
    ids=json.dumps,
)
def test_a_value_that_has_one_layout_is_the_same(pair: Pair, schema: dict[str, Any]) -> None:
    texts = answers(pair, json_schema=schema)
    for text in texts:
        Draft202012Validator(schema).validate(json.loads(text))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "rains": {"type": "boolean"},
            },
            "required": ["city", "rains"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"enum": ["sun", "rain"]}, "minItems": 2, "maxItems": 3},
    ],
    ids=["object", "array"],
)
def test_a_value_with_layout_means_the_same(pair: Pair, schema: dict[str, Any]) -> None:
    ours, theirs = map(json.loads, answers(pair, json_schema=schema))
    Draft202012Validator(schema).validate(ours)
    assert ours == theirs


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "yes" | "no"',
        'root ::= [A-Z] [a-z]{3,9} (" " [a-z]+){0,2} "."',
        'root ::= item+\nitem ::= "- " [a-z ]{3,12} "\\n"',
    ],
)
def test_a_grammar_leaves_the_same(pair: Pair, grammar: str) -> None:
    ours, theirs = answers(pair, grammar=grammar)
    assert ours == theirs


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools_are_told_alike(pair: Pair, choice: str) -> None:
    ours, theirs = pair.ask("/apply-template", messages=ASK, tools=TOOLS)
    assert ours["prompt"] == theirs["prompt"]
    wishes: dict[str, Any] = {"messages": ASK, "tools": TOOLS, "tool_choice": choice}
    ours, theirs = pair.ask("/v1/chat/completions", **wishes, temperature=0, max_tokens=4)
    assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]


def test_a_call_that_is_required_fits_its_tool(pair: Pair) -> None:
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
    for tool in (None, *schemas):
        choice = "required" if tool is None else {"type": "function", "function": {"name": tool}}
        wishes: dict[str, Any] = {"messages": ASK, "tools": TOOLS, "tool_choice": choice}
        answer = pair.ours.post("/v1/chat/completions", json=wishes | GREEDY).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        for call in answer["message"]["tool_calls"]:
            function = call["function"]
            assert tool in (None, function["name"])
            arguments = json.loads(function["arguments"])
            Draft202012Validator(schemas[function["name"]]).validate(arguments)


def test_calls_and_results_are_told_alike(pair: Pair) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
    ]
    ours, theirs = pair.ask("/apply-template", messages=messages, tools=TOOLS)
    assert ours["prompt"] == theirs["prompt"]
    wishes: dict[str, Any] = {"messages": messages, "tools": TOOLS, "temperature": 0}
    mine, other = pair.ask("/v1/chat/completions", **wishes, max_tokens=24)
    assert mine["choices"][0]["message"]["content"] == other["choices"][0]["message"]["content"]


def answers(pair: Pair, **form: Any) -> list[str]:
    (prompt, _) = pair.ask("/apply-template", messages=ASK)
    asked = {"prompt": prompt["prompt"], "temperature": 0, "n_predict": 96, **form}
    return [body["content"] for body in pair.ask("/completion", **asked)]
