"""Long lists of tools, as clients of MCP servers send them, become a grammar in time."""

from __future__ import annotations

import json
import random
import time

import pytest
from grammar_engine import engine_of
from jsonschema import Draft202012Validator
from test_call_grammars import format_named, grammar_for
from tools_of_servers import TOOLS

from paddler_trio.language.answer_grammar import grammar_of_answer
from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.grammars.lark import Unbound
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.json_schema import TOOL_SCHEMA
from paddler_trio.wire.trio.work import ConversationPrompt

pytestmark = pytest.mark.thorough

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


FAMILIES = ["hermes", "qwen-coder", "gpt-oss", "gemma-4", "lfm2"]
UNBOUND = {
    "mail__send": {"to.items.pattern", "cc.items.pattern"},
    "maps__bounding_box": {"tags.uniqueItems"},
}
"""What no grammar holds of them."""


def described(schema: object) -> object:
    """The same schema, in which each argument says what it is for."""
    if isinstance(schema, list):
        return [described(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: described(each) for key, each in schema.items()}
    if isinstance(properties := made.get("properties"), dict):
        made["properties"] = {
            name: {"description": SAYING * 2, **each} if isinstance(each, dict) else each
            for name, each in properties.items()
        }
    return made


def tools_of(number: int) -> tuple[dict[str, object], ...]:
    """As many tools; beyond a hundred those of a second account of the same servers."""
    schemas = list(TOOLS.items())
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name if place < len(TOOLS) else f"other_{name}",
                "description": SAYING * (12 if number < len(TOOLS) else 2),
                "parameters": described(parameters) if number <= len(TOOLS) else parameters,
            },
        }
        for place in range(number)
        for name, parameters in [schemas[place % len(TOOLS)]]
    )


@pytest.mark.parametrize(("number", "choice"), [(60, "required"), (200, "auto"), (200, "required")])
@pytest.mark.parametrize("name", FAMILIES)
def test_many_tools_become_one_grammar_that_holds_their_arguments(
    vocabulary: Vocabulary, name: str, number: int, choice: str
) -> None:
    tools = tools_of(number)
    assert 100_000 <= len(json.dumps(tools)) <= 300_000
    began_s = time.thread_time()
    grammar = grammar_for(format_named(name), vocabulary, tools=tools, tool_choice=choice)
    assert grammar is not None
    grammar.compiled()
    assert time.thread_time() - began_s < 1.0
    assert "read_text_file" in grammar.lark
    assert "confirm" in grammar.lark or "nextThoughtNeeded" in grammar.lark or number == 60


@pytest.mark.parametrize("name", TOOLS)
def test_calls_of_a_tool_of_a_server_fit_its_schema(vocabulary: Vocabulary, name: str) -> None:
    parameters = TOOLS[name]
    tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
    conversation = ConversationPrompt(
        messages=(), tools=(tool,), tool_choice="required", thinking=False
    )
    unbound: Unbound = {}
    start = AnswerStart(format_named("hermes"), "", TokenClass.CONTENT)
    grammar = grammar_of_answer(None, conversation, start, vocabulary, unbound)
    assert grammar is not None
    places = {place.removeprefix(f"{TOOL_SCHEMA}.") for place in unbound}
    assert places == UNBOUND.get(name, set())
    engine, judge = engine_of(vocabulary, grammar), Draft202012Validator(parameters)
    dice, texts = random.Random(name), list[str]()
    while len(texts) < 5:
        text = engine.random_text(dice, 400, closers=['"', "}", "]", "\n</tool_call>"])
        if text is not None:
            texts.append(text)
    for rest in texts:
        while rest:
            rest = rest.lstrip().removeprefix("<tool_call>").lstrip()
            value, end = json.JSONDecoder().raw_decode(rest)
            rest = rest[end:].lstrip().removeprefix("</tool_call>").lstrip()
            assert value["name"] == name
            problems = list(judge.iter_errors(value["arguments"]))
            assert all(
                f"{'.'.join(str(step) for step in problem.schema_path if step != 'properties')}"
                in UNBOUND.get(name, ())
                for problem in problems
            ), problems


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
