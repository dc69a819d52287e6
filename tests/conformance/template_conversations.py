"""Conversations of every shape that OpenAI's messages have, to render templates with."""

from __future__ import annotations

from typing import Any

import attrs

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city, <b>now</b> & later: 'é', \"中\"",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "description": "How many", "default": 3},
            },
            "required": ["city"],
        },
    },
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds numbers",
        "parameters": {
            "type": "object",
            "properties": {
                "numbers": {"type": "array", "items": {"type": "number"}},
                "options": {
                    "type": "object",
                    "properties": {"exact": {"type": "boolean"}},
                    "required": ["exact"],
                },
            },
            "required": ["numbers"],
        },
    },
}
DOCUMENTS = [{"title": "On zebras", "text": "They are striped."}]
SYSTEM = {"role": "system", "content": "  You are terse.\n"}
HELLO = {"role": "user", "content": "Hello, wörld <b>&amp;</b> 'you'!"}
HI = {"role": "assistant", "content": "Hi there.\n"}
AGAIN = {"role": "user", "content": "\n And again? "}
THOUGHT = {
    "role": "assistant",
    "content": "It is 42.",
    "reasoning_content": "Let me think.\nSix times seven.",
}
ASK = {"role": "user", "content": "What is the weather in Oslo?"}


def call(name: str, arguments: object, id_: str = "callid001") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


OSLO = call("get_weather", {"city": "Oslo, 'N'", "days": 2, "unit": None, "deep": {"a": [1, "é"]}})
OSLO_TEXT = call("get_weather", '{"city": "Oslo", "days": 2}')
SUM = call("add", {"numbers": [1, 2.5], "options": {"exact": True}}, "callid002")
CALLS = {"role": "assistant", "content": "", "tool_calls": [OSLO]}
RESULT = {
    "role": "tool",
    "tool_call_id": "callid001",
    "name": "get_weather",
    "content": '{"temperature": -3}',
}
RESULT_SUM = {"role": "tool", "tool_call_id": "callid002", "name": "add", "content": "3.5"}
COLD = {"role": "assistant", "content": "It is cold."}


@attrs.frozen
class Conversation:
    """What a template is given."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = attrs.field(factory=dict)


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


PLAIN = [
    Conversation("one question", [HELLO]),
    Conversation("system and question", [SYSTEM, HELLO]),
    Conversation("many turns", [SYSTEM, HELLO, HI, AGAIN, HI, HELLO]),
    Conversation("no system, turns", [HELLO, HI, AGAIN]),
    Conversation("reasoning in history", [HELLO, THOUGHT, AGAIN]),
    Conversation(
        "reasoning inside content",
        [HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, AGAIN],
    ),
    Conversation("reasoning last", [HELLO, THOUGHT]),
    Conversation("thinking on", [SYSTEM, HELLO], kwargs={"enable_thinking": True}),
    Conversation("thinking off", [SYSTEM, HELLO], kwargs={"enable_thinking": False}),
    Conversation("thinking on, other name", [HELLO], kwargs={"thinking": True}),
    Conversation("effort", [HELLO], kwargs={"reasoning_effort": "low"}),
    Conversation("developer", [{"role": "developer", "content": "Be brief."}, HELLO]),
    Conversation("parts", [{"role": "user", "content": [part("one "), part("two")]}]),
    Conversation("system parts", [{"role": "system", "content": [part("Terse.")]}, HELLO]),
    Conversation("assistant last", [HELLO, HI]),
    Conversation("empty content", [{"role": "user", "content": ""}]),
    Conversation("named", [{"role": "user", "name": "zoe", "content": "hi"}]),
    Conversation("two questions", [HELLO, AGAIN]),
    Conversation("documents", [HELLO], documents=DOCUMENTS),
    Conversation(
        "unusual letters", [{"role": "user", "content": "a\u2028b\tc\u00a0\U0001f600\r\n"}]
    ),
]
WITH_TOOLS = [
    Conversation("tools, no call", [HELLO], [WEATHER]),
    Conversation("two tools, system", [SYSTEM, ASK], [WEATHER, ADD]),
    Conversation("call", [ASK, CALLS], [WEATHER]),
    Conversation("call and result", [SYSTEM, ASK, CALLS, RESULT], [WEATHER, ADD]),
    Conversation("call, result, answer", [ASK, CALLS, RESULT, COLD, AGAIN], [WEATHER]),
    Conversation(
        "call with null content",
        [ASK, {"role": "assistant", "content": None, "tool_calls": [OSLO]}, RESULT],
        [WEATHER],
    ),
    Conversation(
        "call with content and reasoning",
        [
            ASK,
            {**CALLS, "content": "I will look.", "reasoning_content": "I need a tool."},
            RESULT,
        ],
        [WEATHER],
    ),
    Conversation(
        "two calls at once",
        [ASK, {**CALLS, "tool_calls": [OSLO, SUM]}, RESULT, RESULT_SUM],
        [WEATHER, ADD],
    ),
    Conversation(
        "arguments as text",
        [ASK, {**CALLS, "tool_calls": [OSLO_TEXT]}, RESULT],
        [WEATHER],
    ),
    Conversation("calls without tools", [ASK, CALLS, RESULT]),
    Conversation("tools, thinking off", [ASK], [WEATHER], kwargs={"enable_thinking": False}),
    Conversation("tools, thinking on", [ASK], [WEATHER], kwargs={"enable_thinking": True}),
]
EVERY = [*PLAIN, *WITH_TOOLS]
