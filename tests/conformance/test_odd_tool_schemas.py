"""One tool with an odd schema among others: the request is answered, the others stay callable."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fleet import Fleet

PING: dict[str, Any] = {
    "name": "ping",
    "description": "Does what its name says.",
    "parameters": {"type": "object", "properties": {}, "required": []},
}
ADDRESS = "https://s.example/a.json"


def of_v(rules: object, **more: object) -> dict[str, object]:
    return {"type": "object", "properties": {"v": rules}, **more}


ODD: dict[str, tuple[dict[str, object], str]] = {
    "bound of draft 4": (of_v({"type": "integer", "minimum": 3, "exclusiveMinimum": True}), ""),
    "list of items": (of_v({"type": "array", "items": [{"type": "integer"}]}), ""),
    "required inside": (of_v({"type": "string", "required": True}), ""),
    "any": (of_v({"type": "any"}), ""),
    "required null": ({"type": "object", "properties": {}, "required": None}, ""),
    "properties null": ({"type": "object", "properties": None}, ""),
    "enum null": (of_v({"type": "string", "enum": None, "default": None}), ""),
    "title null": ({"type": "object", "title": None}, ""),
    "https draft": (
        of_v({"type": "string"}, **{"$schema": "https://json-schema.org/draft-07/"}),
        "",
    ),
    "no draft": (of_v({"type": "string"}, **{"$schema": "http://json-schema.org/schema#"}), ""),
    "draft inside": (of_v({"$schema": "http://json-schema.org/draft-07/schema#"}), ""),
    "own address": (
        of_v({"$ref": f"{ADDRESS}#/$defs/k"}, **{"$id": ADDRESS, "$defs": {"k": {}}}),
        "",
    ),
    "format": (of_v({"type": "string", "format": "color"}), "v.format"),
    "long bound": (of_v({"type": "integer", "maximum": 10**25, "minimum": -(10**25)}), ""),
    "reference to nothing": (of_v({"$ref": "#/$defs/none"}), "v.$ref".replace("$", "?")),
    "endless reference": ({"$ref": "#"}, "?ref"),
    "pattern": (of_v({"type": "string", "pattern": "(?<=a)b("}), "v.pattern"),
    "not": (of_v({"not": {"type": "string"}}), "v.not"),
    "contradiction": (of_v({"enum": []}, required=["v"]), "v.enum"),
    "type": (of_v({"type": ["widget", 5]}), "v.type"),
    "what only the agent finds": (
        of_v({"allOf": [{"oneOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"minimum": 2}]}]}),
        "tools[].function.parameters.v.allOf",
    ),
    "a pattern of names that is none": (
        of_v({"type": "string"}, patternProperties={"(": {"type": "integer"}}),
        "patternProperties",
    ),
    "nonsense": ({"type": 5, "properties": [1], "required": {"a": 1}, "anyOf": "x"}, "type"),
}


def bodies(parameters: dict[str, object], choice: str) -> dict[str, dict[str, Any]]:
    tools = [PING, {"name": "odd", "parameters": parameters}]
    messages = [{"role": "user", "content": "go"}]
    return {
        "/v1/chat/completions": {
            "messages": messages,
            "max_tokens": 40,
            "tool_choice": choice,
            "tools": [{"type": "function", "function": tool} for tool in tools],
        },
        "/v1/responses": {
            "input": "go",
            "max_output_tokens": 40,
            "store": False,
            "tool_choice": choice,
            "tools": [{"type": "function", **tool} for tool in tools],
        },
        "/v1/messages": {
            "messages": messages,
            "max_tokens": 40,
            "tool_choice": {"type": "any" if choice == "required" else "auto"},
            "tools": [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools],
        },
    }


def post(fleet: Fleet, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=120)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", ODD)
def test_the_request_is_answered_and_what_is_lost_is_reported(
    fleet: Fleet, name: str, choice: str
) -> None:
    parameters, reported = ODD[name]
    for path, body in bodies(parameters, choice).items():
        answer = post(fleet, path, body)
        assert answer.status_code == 200, answer.text
        told = answer.headers.get("x-paddler-ignored-fields", "")
        assert reported in told if reported else not told, told


def test_the_other_tool_stays_callable(fleet: Fleet) -> None:
    body = bodies(ODD["nonsense"][0], "auto")["/v1/chat/completions"]
    body["tool_choice"] = {"type": "function", "function": {"name": "ping"}}
    body["parallel_tool_calls"] = False
    body["max_tokens"] = 400
    (call,) = post(fleet, "/v1/chat/completions", body).json()["choices"][0]["message"][
        "tool_calls"
    ]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("ping", {})


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_form_that_cannot_be_expressed_is_refused_only_if_it_is_strict(
    fleet: Fleet, is_strict: bool
) -> None:
    schema = of_v({"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 5}})
    wanted = {"name": "n", "schema": {**schema, "required": ["v"]}, "strict": is_strict}
    body = {
        "messages": [{"role": "user", "content": "a number"}],
        "max_tokens": 60,
        "reasoning_effort": "none",
        "response_format": {"type": "json_schema", "json_schema": wanted},
    }
    answer = post(fleet, "/v1/chat/completions", body)
    if is_strict:
        assert answer.status_code == 400
        assert "$.v: not" in answer.json()["error"]["message"]
    else:
        assert answer.status_code == 200, answer.text
        told = answer.headers["x-paddler-ignored-fields"]
        assert told == "response_format.json_schema.schema.properties.v.not"
        assert json.loads(answer.json()["choices"][0]["message"]["content"])["v"] in range(10)


def test_a_form_of_no_type_is_refused_since_the_answer_would_be_another(fleet: Fleet) -> None:
    wanted = {"type": "json_object", "schema": of_v({"type": "widget"})}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": wanted}
    answer = post(fleet, "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.schema.properties.v.type"
