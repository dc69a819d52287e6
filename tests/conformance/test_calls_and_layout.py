"""Tool calls that were cut off, and the blanks around calls and reasoning, on every surface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fleet import Fleet

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather of a city", "parameters": SCHEMA}
QUESTION = "What is the weather in Paris?"
ASK = [{"role": "user", "content": QUESTION}]
CHAT = {
    "messages": ASK,
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "required",
    "enable_thinking": False,
}
RESPONSE = {
    "input": QUESTION,
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "required",
    "reasoning": {"effort": "none"},
}
MESSAGE = {
    "messages": ASK,
    "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
}


@pytest.fixture(scope="module")
def http(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as client:
        yield client


def post(http: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
    answer = http.post(path, json={**body, **more})
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 11, 12, 14, 17])
def test_a_forced_call_that_is_cut_off_ends_for_its_length(http: httpx.Client, most: int) -> None:
    (choice,) = post(http, "/v1/chat/completions", CHAT, max_tokens=most).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"], "what was written of the call is no content"
    chunks = events(post(http, "/v1/chat/completions", CHAT, max_tokens=most, stream=True))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert not [c for c in chunks if c["choices"][0]["delta"].get("content")]

    told = post(http, "/v1/responses", RESPONSE, max_output_tokens=most).json()
    assert told["status"] == "incomplete"
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}
    assert not [item for item in told["output"] if item["type"] == "message"]
    last = events(post(http, "/v1/responses", RESPONSE, max_output_tokens=most, stream=True))[-1]
    assert last["type"] == "response.incomplete"

    told = post(http, "/v1/messages", MESSAGE, max_tokens=most).json()
    assert told["stop_reason"] == "max_tokens"
    assert not [block for block in told["content"] if block["type"] == "text"]
    inputs = [block["input"] for block in told["content"] if block["type"] == "tool_use"]
    assert all(set(each) <= {"city"} for each in inputs), "no argument is invented"
    streamed = events(post(http, "/v1/messages", MESSAGE, max_tokens=most, stream=True))
    (delta,) = [event for event in streamed if event["type"] == "message_delta"]
    assert delta["delta"]["stop_reason"] == "max_tokens"


def test_a_name_that_comes_twice_is_one_whole_and_streamed(http: httpx.Client) -> None:
    variables = {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z]{1,4}$"},
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9},
        "minProperties": 1,
        "maxProperties": 2,
    }
    schema = {"type": "object", "properties": {"vars": variables}, "required": ["vars"]}
    tool = {"name": "set_env", "input_schema": {**schema, "additionalProperties": False}}
    body = {**MESSAGE, "messages": [{"role": "user", "content": "set"}], "tools": [tool]}
    told = post(http, "/v1/messages", body, max_tokens=60, temperature=0).json()
    streamed = events(post(http, "/v1/messages", body, max_tokens=60, temperature=0, stream=True))
    deltas = [e["delta"] for e in streamed if e["type"] == "content_block_delta"]
    text = "".join(delta.get("partial_json", "") for delta in deltas)
    (block,) = [block for block in told["content"] if block["type"] == "tool_use"]
    assert block["input"] == json.loads(text)
    assert set(block["input"]) == {"vars"}


@pytest.mark.parametrize("most", [3, 8, 12, 17])
@pytest.mark.parametrize("path", ["/api/v2/generate", "/api/v1/continue_from_conversation_history"])
def test_nothing_that_was_cut_off_is_called_unrecognized(
    http: httpx.Client, path: str, most: int
) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    if "v2" in path:
        prompt = {"messages": ASK, "tools": tools, "tool_choice": "required", "thinking": False}
        body: dict[str, Any] = {"prompt": {"Conversation": prompt}}
    else:
        body = {
            "add_generation_prompt": True,
            "conversation_history": ASK,
            "enable_thinking": False,
            "parse_tool_calls": True,
            "tools": tools,
        }
    lines = [json.loads(line) for line in post(http, path, body, max_tokens=most).text.splitlines()]
    results = [line["Response"]["response"]["GeneratedToken"] for line in lines]
    tags = [tag for result in results for tag in result]
    assert tags[-1] == "Done"
    assert "ToolCallToken" in tags
    assert not {"UnrecognizedToolCallFormat", "ToolCallParseFailed"} & set(tags)


def test_blanks_around_reasoning_and_calls_are_told_nowhere(http: httpx.Client) -> None:
    thinking = {**CHAT, "enable_thinking": True, "tool_choice": "auto", "max_tokens": 300}
    for body in (thinking, {**thinking, "tools": [], "messages": [{**ASK[0], "content": "Hi"}]}):
        (choice,) = post(http, "/v1/chat/completions", body).json()["choices"]
        deltas = [
            chunk["choices"][0]["delta"]
            for chunk in events(post(http, "/v1/chat/completions", body, stream=True))
        ]
        content = "".join(delta.get("content") or "" for delta in deltas)
        reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        message = choice["message"]
        assert reasoning == message["reasoning_content"] == reasoning.strip() != ""
        assert content == (message["content"] or "") == content.lstrip()
        assert bool(content) is not bool(message.get("tool_calls"))
