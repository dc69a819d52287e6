"""Sessions that began with a hosted model go on here: what they contain is taken and told.

The bundled model is held to calls by ``tool_choice``; the judges are the official packages' types.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from fleet import Fleet
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

AROUND: Any = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "carry on"}],
}
PLAIN = {"effort": "none"}
ITEMS: list[dict[str, Any]] = [
    {"type": "compaction", "id": "c_1", "encrypted_content": "AAAA"},
    {"type": "custom_tool_call", "call_id": "k1", "name": "patcher", "input": "+ a line"},
    {"type": "custom_tool_call_output", "call_id": "k1", "output": "fine"},
    {
        "type": "tool_search_call",
        "call_id": "k2",
        "execution": "client",
        "status": "completed",
        "arguments": {"query": "mail"},
    },
    {"type": "tool_search_output", "call_id": "k2", "execution": "client", "tools": []},
    {
        "type": "local_shell_call",
        "call_id": "k3",
        "status": "completed",
        "action": {"type": "exec", "command": ["pwd"], "env": {}},
    },
    {
        "type": "web_search_call",
        "id": "w1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    },
    {
        "type": "mcp_call",
        "id": "m1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
        "output": "o",
    },
    {
        "type": "shell_call",
        "call_id": "k4",
        "action": {"commands": ["pwd"]},
        "status": "completed",
    },
    {"type": "something_of_next_year", "id": "q"},
]
LEFT_OUT = {"compaction", "web_search_call", "something_of_next_year"}


def post(fleet: Fleet, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["type"])
def test_an_item_of_a_hosted_session_is_taken(fleet: Fleet, item: dict[str, Any]) -> None:
    body = {"input": [AROUND, item, AROUND], "max_output_tokens": 4, "store": False}
    told = post(fleet, "/v1/responses", body).headers.get("x-paddler-ignored-fields", "")
    assert (item["type"] in told) is (item["type"] in LEFT_OUT)


def test_all_of_them_at_once_and_stored_are_gone_on_with(fleet: Fleet) -> None:
    body: dict[str, Any] = {"input": [AROUND, *ITEMS, AROUND], "max_output_tokens": 4}
    first = post(fleet, "/v1/responses", body).json()
    then = {"input": "more", "previous_response_id": first["id"], "max_output_tokens": 4}
    assert post(fleet, "/v1/responses", then).json()["status"] == "incomplete"


CUSTOM: Any = {
    "type": "custom",
    "name": "say",
    "description": "Says a text.",
    "format": {"type": "grammar", "syntax": "regex", "definition": ".*"},
}
SPACE: Any = {
    "type": "namespace",
    "name": "mail",
    "description": "Mails.",
    "tools": [
        {
            "type": "function",
            "name": "send",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string", "enum": ["a", "b"]}},
                "required": ["to"],
            },
        }
    ],
}


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{fleet.inference_url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def test_a_custom_tool_is_called_with_text_whole_and_streamed(
    fleet: Fleet, client: openai.OpenAI
) -> None:
    body: dict[str, Any] = {
        "model": "m",
        "input": "say hello",
        "tools": [CUSTOM],
        "tool_choice": {"type": "custom", "name": "say"},
        "reasoning": PLAIN,
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    whole = client.responses.create(**body)
    (call,) = [item for item in whole.output if item.type == "custom_tool_call"]
    assert call.name == "say"
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = [adapter.validate_python(event.to_dict()) for event in client.responses.create(
        **body, stream=True
    )]  # fmt: skip
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == call.input
    assert len(deltas) > 1 or len(call.input) < 2, "it is told while it is written"
    # its result is taken, and what was called stands in the conversation
    back = [
        AROUND,
        call.to_dict(),
        {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "said"},
    ]
    assert client.responses.create(**{**body, "input": back, "tool_choice": "auto"}).output


def test_a_tool_of_a_namespace_is_called_by_its_own_name(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m",
        input="mail a",
        tools=[SPACE],
        tool_choice="required",
        reasoning=PLAIN,  # type: ignore[arg-type]
        max_output_tokens=200,
        parallel_tool_calls=False,
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, call.namespace) == ("send", "mail")
    assert json.loads(call.arguments)["to"] in ("a", "b")
    assert answer.tools[0].type == "namespace"


def test_a_shell_is_called_as_an_item_of_its_own(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m",
        input="where am I",
        tools=[{"type": "local_shell"}],
        tool_choice="required",
        reasoning=PLAIN,  # type: ignore[arg-type]
        max_output_tokens=300,
        parallel_tool_calls=False,
    )
    assert any(item.type == "local_shell_call" for item in answer.output), answer.output


def test_a_custom_tool_of_a_chat(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "say hello"}],
        "tools": [{"type": "custom", "custom": {"name": "say", "description": "Says."}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "none",
        "max_tokens": 200,
    }
    (call,) = client.chat.completions.create(**body).choices[0].message.tool_calls or []
    assert call.type == "custom"
    text = ""
    for chunk in client.chat.completions.create(**body, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            text += delta.to_dict()["custom"]["input"]  # type: ignore[index]
    assert text == call.custom.input


def test_blocks_of_a_hosted_session_are_taken(fleet: Fleet) -> None:
    search = {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "A"}
    body = {
        "max_tokens": 4,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
                    },
                    {"type": "container_upload", "file_id": "f"},
                    {"type": "something_of_next_year"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "AA"},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [search]},
                    {"type": "text", "text": "There."},
                ],
            },
            {"role": "user", "content": "go on"},
        ],
    }
    answer = post(fleet, "/v1/messages", body)
    told = answer.headers["x-paddler-ignored-fields"]
    assert "something_of_next_year" in told
    assert "messages[].content[].source.data" in told
