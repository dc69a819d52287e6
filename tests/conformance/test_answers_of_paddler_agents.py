"""What Paddler's agents do not say, on every surface: that an answer was cut off, and that what
looks like a call cannot be one."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
import trio
from native_client import Json, RunningBalancer, running_balancer
from paddler_agent import serving_agent

SAID = [{"role": "user", "content": "hi"}]
MOST = 3
TOKENS = [{"ContentToken": "a"}, {"ToolCallToken": "<b>"}, {"ContentToken": "c"}]
TEXT = "a<b>c"


def usage(**more: int) -> Json:
    names = ("prompt", "cached_prompt", "input_image", "input_audio", "reasoning", "undeterminable")
    return {**{f"{name}_tokens": 0 for name in names}, **more}


async def asked(balancer: RunningBalancer, path: str, body: Json) -> httpx.Response:
    """The answer to one request, by an agent that counts three tokens."""
    answers: list[httpx.Response] = []

    async def ask() -> None:
        url = balancer.inference_url(path)
        answers.append(await balancer.http.post(url, json=body))

    async with (
        serving_agent(balancer.management, "a0") as agent,
        trio.open_nursery() as nursery,
    ):
        await balancer.wait_slots(0)
        nursery.start_soon(ask)
        request_id, _ = await agent.next_request()
        for token in TOKENS:
            await agent.respond(request_id, {"GeneratedToken": token})
        counted = usage(content_tokens=2, tool_call_tokens=1)
        await agent.respond(request_id, {"GeneratedToken": {"Done": {"usage": counted}}})
    (answer,) = answers
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: httpx.Response) -> list[Json]:
    lines = answer.text.splitlines()
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in found if each != "[DONE]"]


SURFACES: dict[str, tuple[Json, str, Callable[[Json], Json], Json, Json]] = {
    "/v1/chat/completions": (
        {"messages": SAID},
        "max_completion_tokens",
        lambda body: (
            body["choices"][0]["message"]["content"],
            body["choices"][0]["finish_reason"],
        ),
        "length",
        "stop",
    ),
    "/v1/completions": (
        {"prompt": "hi"},
        "max_tokens",
        lambda body: (body["choices"][0]["text"], body["choices"][0]["finish_reason"]),
        "length",
        "stop",
    ),
    "/completion": (
        {"prompt": "hi"},
        "n_predict",
        lambda body: (body["content"], body["stop_type"]),
        "limit",
        "eos",
    ),
    "/v1/messages": (
        {"messages": SAID},
        "max_tokens",
        lambda body: ("".join(each["text"] for each in body["content"]), body["stop_reason"]),
        "max_tokens",
        "end_turn",
    ),
    "/v1/responses": (
        {"input": "hi"},
        "max_output_tokens",
        lambda body: (body["output"][0]["content"][0]["text"], body["status"]),
        "incomplete",
        "completed",
    ),
}


@pytest.mark.parametrize("is_cut_off", [True, False])
@pytest.mark.parametrize("path", SURFACES)
async def test_an_answer_of_as_many_tokens_as_were_asked_for_was_cut_off(
    path: str, is_cut_off: bool
) -> None:
    body, limit, seen, cut_off, whole = SURFACES[path]
    body = {"model": "any", **body, limit: MOST if is_cut_off else MOST + 1}
    async with running_balancer() as balancer:
        answer = await asked(balancer, path, body)
    assert seen(answer.json()) == (TEXT, cut_off if is_cut_off else whole)


@pytest.mark.parametrize("is_cut_off", [True, False])
async def test_a_stream_of_anthropics_events_says_so_too_and_keeps_the_order(
    is_cut_off: bool,
) -> None:
    most = MOST if is_cut_off else MOST + 1
    body = {"model": "any", "messages": SAID, "max_tokens": most, "stream": True}
    async with running_balancer() as balancer:
        told = events(await asked(balancer, "/v1/messages", body))
    texts = [each["delta"]["text"] for each in told if each["type"] == "content_block_delta"]
    assert "".join(texts) == TEXT
    (end,) = [each["delta"] for each in told if each["type"] == "message_delta"]
    assert end["stop_reason"] == ("max_tokens" if is_cut_off else "end_turn")


async def test_a_stream_of_responses_says_so_too_and_keeps_the_order() -> None:
    body = {"model": "any", "input": "hi", "max_output_tokens": MOST, "stream": True}
    async with running_balancer() as balancer:
        told = events(await asked(balancer, "/v1/responses", body))
    texts = [each["delta"] for each in told if each["type"] == "response.output_text.delta"]
    assert "".join(texts) == TEXT
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
