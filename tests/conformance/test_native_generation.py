"""What only a real model can show on the raw wire, and the Python client has no words for."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import httpx
import pytest
import trio
from fleet import Fleet
from native_client import open_answer

from vision_models import data_uri, encoded, picture

Json: TypeAlias = Any  # answers are looked into freely; their shape is what is being tested

CHAT = "/api/v1/continue_from_conversation_history"
RAW = "/api/v1/continue_from_raw_prompt"
ENDLESS = {"type": "gbnf", "grammar": 'root ::= "la " root', "root": "root"}


def chat(content: Json, **changes: Json) -> Json:
    return {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": content}],
        "enable_thinking": False,
        "max_tokens": 100,
        **changes,
    }


def tool(parameters: Json) -> Json:
    function = {"name": "get_weather", "description": "Get the weather", "parameters": parameters}
    return {"type": "function", "function": function}


def results_of(fleet: Fleet, body: Json) -> list[Json]:
    """All generated results of a conversation."""
    answer = httpx.post(f"{fleet.inference_url}{CHAT}", json=body, trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return [line["Response"]["response"]["GeneratedToken"] for line in lines]


def test_a_tool_schema_with_a_type_that_is_none_costs_no_request(fleet: Fleet) -> None:
    odd = tool({"type": "object", "properties": {"a": {"type": "no such type"}}})
    *_, ending = results_of(fleet, chat("Hello!", tools=[odd], parse_tool_calls=True))
    assert [*ending] == ["Done"]


def test_tools_are_optional_and_a_schema_may_be_missing(fleet: Fleet) -> None:
    function = {"name": "get_weather", "description": "Get the weather"}
    for tools in ([], [{"type": "function", "function": function}], [tool({"type": "object"})]):
        results = results_of(fleet, chat("Hello!", tools=tools, parse_tool_calls=True))
        assert [*results[-1]] == ["Done"]


@pytest.mark.parametrize(
    ("url", "ending_tag"),
    [
        (data_uri(encoded(picture((9, 9, 9)))), "MultimodalNotSupported"),
        ("https://example.com/a.png", "ImageDecodingFailed"),
        ("data:image/png;base64,AAAA", "ImageDecodingFailed"),
        ("data:image/jpeg;base64,!!!not-valid-base64!!!", "ImageDecodingFailed"),
        ("data:image/jpegbase64,abc123", "ImageDecodingFailed"),
    ],
)
def test_a_model_without_eyes_says_so_unless_the_image_is_none(
    fleet: Fleet, url: str, ending_tag: str
) -> None:
    parts = [{"type": "text", "text": "Look!"}, {"type": "image_url", "image_url": {"url": url}}]
    (ending,) = results_of(fleet, chat(parts))
    assert [*ending] == [ending_tag]


def test_text_parts_are_as_good_as_a_text(fleet: Fleet) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo!"}]
    (*in_parts, done), (*at_once, also_done) = (
        results_of(fleet, chat(content)) for content in (parts, "Hello!")
    )
    assert in_parts == at_once
    del done["Done"]["usage"]["cached_prompt_tokens"]  # the second one may find the first one's
    del also_done["Done"]["usage"]["cached_prompt_tokens"]
    assert done == also_done


def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(fleet: Fleet) -> None:
    (ending,) = results_of(fleet, chat("no " * 3000))
    assert [*ending] == ["SamplerError"]
    assert "1024" in ending["SamplerError"], "one of four slots of a context of 4096"


async def test_half_closing_the_connection_stops_the_engine_before_the_limit(fleet: Fleet) -> None:
    host, _, port = fleet.inference.rpartition(":")
    body = {"raw_prompt": "Sing:", "max_tokens": 1000, "grammar": ENDLESS}
    text = json.dumps(body).encode()
    async with await trio.open_tcp_stream(host, int(port)) as client:
        await client.send_all(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (RAW.encode(), len(text), text)
        )
        await client.receive_some(65536)
        await client.send_eof()
        received = b""
        while data := await client.receive_some(65536):
            received += data
    assert b"Done" not in received
    async with open_answer(fleet.management, "GET", "/api/v1/agents/stream") as events:
        while True:
            line = await events.next_text_line()
            if line.startswith("data: "):
                (agent,) = json.loads(line.removeprefix("data: "))["agents"]
                if agent["slots_processing"] == 0:
                    break
