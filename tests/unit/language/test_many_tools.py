"""Long lists of tools, as clients of MCP servers send them, become a grammar in time."""

from __future__ import annotations

import json
import random
import time

import pytest
from grammar_engine import engine_of
from test_call_grammars import format_named, grammar_for

from paddler_trio.language.vocabulary import Vocabulary

pytestmark = pytest.mark.thorough

WORDS = [
    "path", "query", "owner", "repository", "branch", "title", "body", "labels", "limit", "cursor",
    "since", "filter", "mode",
]  # fmt: skip
SAYING = "What this argument is for, in a sentence that takes the room it takes in real lists. "
SHAPES: tuple[dict[str, object], ...] = (
    {"type": "string"},
    {"type": "string", "minLength": 1, "maxLength": 255},
    {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uri"},
    {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
    {"type": "integer", "minimum": 1, "maximum": 100, "default": 30},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    {"type": "number"},
    {"type": "boolean", "default": False},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 20},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"type": ["string", "null"]},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {}, "additionalProperties": True},
    {"$ref": "#/$defs/place"},
    {"allOf": [{"$ref": "#/$defs/place"}], "description": "Where."},
    {},
)
PLACE = {
    "type": "object",
    "properties": {
        "file": {"type": "string"},
        "line": {"type": "integer", "minimum": 0},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["file"],
    "additionalProperties": False,
}


def tools_of(number: int, dice: random.Random) -> tuple[dict[str, object], ...]:
    """As many tools, each with three to eight arguments of these shapes."""
    tools = []
    for place in range(number):
        names = dice.sample(WORDS, dice.randrange(3, 9))
        parameters = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                name: {**dice.choice(SHAPES), "description": SAYING * 3} for name in names
            },
            "required": names[: dice.randrange(len(names))],
            "additionalProperties": False,
            "$defs": {"place": PLACE},
        }
        function = {"name": f"server_{place % 5}__tool_{place}", "parameters": parameters}
        tools.append({"type": "function", "function": {**function, "description": SAYING}})
    return tuple(tools)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("number", [60, 120])
@pytest.mark.parametrize("name", ["hermes", "qwen-coder", "gpt-oss", "gemma-4", "lfm2"])
def test_many_tools_become_one_grammar_that_holds_their_arguments(
    vocabulary: Vocabulary, name: str, number: int, choice: str
) -> None:
    tools = tools_of(number, random.Random(number))
    assert 100_000 <= len(json.dumps(tools)) <= 300_000
    began_s = time.thread_time()
    grammar = grammar_for(format_named(name), vocabulary, tools=tools, tool_choice=choice)
    assert grammar is not None
    assert time.thread_time() - began_s < 1.0
    assert '"maximum": 9007199254740991' in grammar.lark or "255" in grammar.lark


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_each_shape_of_an_argument_is_held(vocabulary: Vocabulary, place: int) -> None:
    shape = SHAPES[place]
    parameters = {"type": "object", "properties": {"v": shape}, "$defs": {"place": PLACE}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    grammar = grammar_for(format_named("hermes"), vocabulary, tools=(tool,), tool_choice="required")
    assert grammar is not None
    engine = engine_of(vocabulary, grammar)
    call = '<tool_call>\n{"name": "f", "arguments": {"v": %s}}\n</tool_call>'
    values = ['"open"', '"2024-05-01T12:00:00Z"', '"https://example.org/a"', "7", "0.5", "true",
              '["a"]', "null", '{"a": "b"}', '{"file": "a", "line": 1}']  # fmt: skip
    taken = [value for value in values if engine.accepts(call % value)]
    assert taken
    assert shape == {} or len(taken) < len(values)
