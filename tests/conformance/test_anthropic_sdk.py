"""Anthropic's own SDK against real daemons: messages, streams, tools, thinking, counts, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from fleet import Fleet
from pydantic import BaseModel

if TYPE_CHECKING:
    import anthropic

TOOL: anthropic.types.ToolParam = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
MODEL = "paddler-demo"


def client_of(fleet: Fleet, api_key: str = "none") -> anthropic.Anthropic:
    import anthropic  # slow: not while tests are collected

    return anthropic.Anthropic(
        base_url=fleet.inference_url,
        api_key=api_key,
        max_retries=0,
        timeout=60,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    )


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[anthropic.Anthropic]:
    with client_of(fleet) as made:
        yield made


def post(fleet: Fleet, body: object, path: str = "/v1/messages") -> httpx.Response:
    return httpx.post(f"{fleet.inference_url}{path}", json=body, trust_env=False, timeout=60)


def hello(text: str = "What is a slot?", **more: object) -> dict[str, object]:
    return {
        "model": MODEL,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model=MODEL,
        max_tokens=24,
        system="You are terse.",
        messages=[{"role": "user", "content": "What is a slot?"}],
    )
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    (block,) = message.content
    assert block.type == "text"
    assert block.text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens <= 24
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 10


def test_a_stream_says_the_same_as_a_whole_answer(client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is an agent?"}],
    }
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == whole.content[0].text
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_events_come_in_order_and_blocks_are_opened_and_closed(fleet: Fleet) -> None:
    answer = post(fleet, hello(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [
        (block.split("\n")[0], json.loads(block.split("\ndata: ")[1]))
        for block in answer.text.split("\n\n")
        if block.startswith("event: ")
    ]
    assert all(name == f"event: {event['type']}" for name, event in events)
    kinds = [event["type"] for _, event in events]
    deltas = kinds.count("content_block_delta")
    assert deltas > 1
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_limits_and_stop_sequences_are_told(client: anthropic.Anthropic) -> None:
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Tell me a story."}]
    cut = client.messages.create(model=MODEL, max_tokens=3, messages=messages)
    assert cut.stop_reason == "max_tokens"
    assert cut.usage.output_tokens == 3
    whole = client.messages.create(model=MODEL, max_tokens=40, messages=messages)
    stop = whole.content[0].text.split(" ")[3]
    stopped = client.messages.create(
        model=MODEL, max_tokens=40, messages=messages, stop_sequences=[stop]
    )
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence == stop
    assert stop not in stopped.content[0].text
    assert whole.content[0].text.startswith(stopped.content[0].text)


def test_an_answer_that_was_begun_is_gone_on_with(client: anthropic.Anthropic) -> None:
    begun = "The capital is"
    message = client.messages.create(
        model=MODEL,
        max_tokens=8,
        messages=[
            {"role": "user", "content": "Where am I?"},
            {"role": "assistant", "content": begun},
        ],
    )
    assert message.content
    assert not message.content[0].text.startswith(begun)


def test_a_tool_is_called_and_its_result_answered(client: anthropic.Anthropic) -> None:
    question: anthropic.types.MessageParam = {
        "role": "user",
        "content": "What is the weather in Paris?",
    }
    asked = client.messages.create(
        model=MODEL,
        max_tokens=120,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        messages=[question],
    )
    assert asked.stop_reason == "tool_use"
    (use,) = [block for block in asked.content if block.type == "tool_use"]
    assert use.name == "get_weather"
    assert set(use.input) == {"city"}
    answered = client.messages.create(
        model=MODEL,
        max_tokens=24,
        tools=[TOOL],
        messages=[
            question,
            {"role": "assistant", "content": asked.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": use.id, "content": "Rain, 12 degrees"},
                    {"type": "text", "text": "In one word?"},
                ],
            },
        ],
    )
    assert answered.usage.input_tokens + (answered.usage.cache_read_input_tokens or 0) > 0


def test_a_streamed_call_is_the_same_call(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model=MODEL,
        max_tokens=120,
        tools=[TOOL],
        tool_choice={"type": "any"},
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
    ) as stream:
        final = stream.get_final_message()
    uses = [block for block in final.content if block.type == "tool_use"]
    assert final.stop_reason == "tool_use"
    assert uses
    assert all(use.name == "get_weather" and set(use.input) == {"city"} for use in uses)


def test_a_tool_runner_goes_on_without_a_thread(client: anthropic.Anthropic) -> None:
    import anthropic  # slow: not while tests are collected

    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
          city: its name.
        """
        asked.append(city)
        return f"It rains in {city}."

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        max_iterations=2,
        tools=[get_weather],
        tool_choice={"type": "any"},
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    )
    replies = list(runner)
    assert replies[0].stop_reason == "tool_use"
    assert asked


def test_an_answer_is_parsed_into_the_callers_class(client: anthropic.Anthropic) -> None:
    class Count(BaseModel):
        is_much: bool

    message = client.messages.parse(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": "How much?"}],
        output_format=Count,
    )
    assert isinstance(message.parsed_output, Count)


def test_thinking_is_a_block_of_its_own(client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
    }
    plain = client.messages.create(**asked)
    assert [block.type for block in plain.content] == ["text"]
    thinking = {"type": "enabled", "budget_tokens": 100}
    thought = client.messages.create(**asked, thinking=thinking)
    assert thought.content[0].type == "thinking"
    with client.messages.stream(**asked, thinking=thinking) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in thought.content]
    assert final.content[0].thinking == thought.content[0].thinking
    hidden = client.messages.create(
        **asked, thinking={"type": "enabled", "budget_tokens": 100, "display": "omitted"}
    )
    assert (hidden.content[0].type, hidden.content[0].thinking) == ("thinking", "")


def test_an_answer_takes_the_form_that_is_asked_for(fleet: Fleet) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = post(fleet, hello("Who?", max_tokens=80, output_config=config)).json()
    assert set(json.loads(answer["content"][0]["text"])) == {"name", "old"}


def test_tokens_are_counted_as_the_answer_counts_them(client: anthropic.Anthropic) -> None:
    asked = {
        "model": MODEL,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "How many tokens are these?"}],
        "tools": [TOOL],
    }
    counted = client.messages.count_tokens(**asked)
    usage = client.messages.create(max_tokens=1, **asked).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_become_the_sdks_exceptions(client: anthropic.Anthropic, lonely: Fleet) -> None:
    import anthropic  # slow: not while tests are collected

    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(
            model=MODEL, max_tokens=0, messages=[{"role": "user", "content": "a"}]
        )
    assert bad.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "max_tokens is 0, must be a whole number from 1 to 2147483647",
        },
    }
    with client_of(lonely) as nobody, pytest.raises(anthropic.APIStatusError) as none:
        nobody.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "a"}]
        )
    assert none.value.status_code in (503, 504)


def test_every_answer_has_the_id_that_the_sdk_reports(client: anthropic.Anthropic) -> None:
    import anthropic  # slow: not while tests are collected

    asked = client.with_options(default_headers={"x-request-id": "mine"})
    assert asked.messages.create(**hello(max_tokens=1))._request_id == "mine"
    with asked.messages.stream(**hello(max_tokens=1)) as stream:
        assert stream.request_id == "mine"
    counted = asked.messages.with_raw_response.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": "a"}]
    )
    assert counted.http_response.headers["request-id"] == "mine"
    with pytest.raises(anthropic.BadRequestError) as refused:
        asked.messages.create(**hello(max_tokens=0))
    assert refused.value.request_id == "mine"


def test_a_model_that_is_not_served_is_an_error_of_anthropics(client: anthropic.Anthropic) -> None:
    import anthropic  # slow: not while tests are collected

    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("nobody")
    assert missing.value.body == {
        "type": "error",
        "error": {
            "type": "not_found_error",
            "message": "the model 'nobody' is not served; served is: paddler-demo, "
            "paddler-demo.gguf",
        },
    }
    assert missing.value.request_id is not None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"thread": {"type": "create"}}, "thread is not supported"),
        ({"messages": []}, "messages has 0 entries"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": 5}]}]}, "content[0].type"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "w"}],
                "tool_choice": {"type": "any"},
            },
            "there are no tools",
        ),
        ({"tools": [TOOL, TOOL]}, "twice"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        ({"temperature": "hot"}, "temperature is"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    fleet: Fleet, more: dict[str, object], says: str
) -> None:
    answer = post(fleet, hello(**more))
    assert answer.status_code == 400
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert says in error["error"]["message"]
