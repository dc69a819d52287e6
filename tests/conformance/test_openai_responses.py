"""The Responses API with OpenAI's own SDK: whole, streamed, parsed, stored and gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fleet import Fleet
from pydantic import BaseModel

MODEL = "paddler-demo"
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


PLAIN: Any = {"effort": "none"}
"""The bundled model thinks unless it is told not to."""


class Person(BaseModel):
    name: str
    is_old: bool


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{fleet.inference_url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as made:
        yield made


def post(fleet: Fleet, **body: object) -> httpx.Response:
    return httpx.post(
        f"{fleet.inference_url}/v1/responses",
        json={
            "model": MODEL,
            "input": "What is a slot?",
            "max_output_tokens": 24,
            "reasoning": PLAIN,
            **body,
        },
        trust_env=False,
        timeout=60,
    )


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [block for block in text.split("\n\n") if block.startswith("event: ")]
    events = [json.loads(block.split("\ndata: ", 1)[1]) for block in blocks]
    for block, event in zip(blocks, events, strict=True):
        assert block.startswith(f"event: {event['type']}\n")
    return events


def test_a_text_is_answered(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="What is a slot?",
        instructions="Be terse.",
        max_output_tokens=24,
        metadata={"ticket": "7"},
        reasoning=PLAIN,
    )
    assert response.id.startswith("resp_")
    assert response.output_text
    assert response.model == MODEL
    assert response.instructions == "Be terse."
    assert response.metadata == {"ticket": "7"}
    assert response.usage is not None
    assert response.usage.output_tokens <= 24
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.status in ("completed", "incomplete")
    (item,) = response.output
    assert (item.type, item.role) == ("message", "assistant")


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Tell a story.", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_events_come_in_order_without_a_gap_and_end_with_the_response(fleet: Fleet) -> None:
    whole = post(fleet).json()
    answer = post(fleet, stream=True)
    events = events_of(answer.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole['status']}",
    ]
    assert "[DONE]" not in answer.text
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    assert text == whole["output"][0]["content"][0]["text"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert events[0]["response"]["output"] == []


def test_the_sdk_follows_a_stream_with_reasoning_to_its_final_response(
    client: openai.OpenAI,
) -> None:
    with client.responses.stream(
        model=MODEL, input="What is 2 + 3?", reasoning={"effort": "low"}, max_output_tokens=300
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds
    assert [item.type for item in final.output][:1] == ["reasoning"]
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens > 0
    silent = client.responses.create(
        model=MODEL, input="What is 2 + 3?", reasoning=PLAIN, max_output_tokens=100
    )
    assert [item.type for item in silent.output] == ["message"]


def test_reasoning_is_told_as_its_summary_if_one_is_asked_for(client: openai.OpenAI) -> None:
    """Most clients show nothing else of it."""
    asked: Any = {"model": MODEL, "input": "What is 2 + 3?", "max_output_tokens": 300}
    plain = client.responses.create(**asked, reasoning={"effort": "low"})
    with client.responses.stream(**asked, reasoning={"effort": "low", "summary": "auto"}) as stream:
        events = list(stream)
        final = stream.get_final_response()
    about = [event for event in events if "reasoning" in event.type]
    deltas = [
        event.delta for event in about if event.type == "response.reasoning_summary_text.delta"
    ]
    assert [event.type for event in about] == [
        "response.reasoning_summary_part.added",
        *["response.reasoning_summary_text.delta"] * len(deltas),
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    thought, said = final.output[0], plain.output[0]
    assert thought.type == said.type == "reasoning"
    assert [said.summary, thought.content] == [[], []]
    assert said.content is not None
    assert [part.text for part in thought.summary] == [said.content[0].text] == ["".join(deltas)]
    assert final.output_text == plain.output_text
    by_hand: Any = [{"role": "user", "content": asked["input"]}]
    tokens = [
        client.responses.input_tokens.count(
            model=MODEL,
            input=[*by_hand, *(each.to_dict() for each in output), *by_hand],
        ).input_tokens
        for output in (plain.output, final.output)
    ]
    assert tokens[0] == tokens[1], "sent back it is the same to the model"


def test_a_function_is_called_and_its_output_answered(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "name": "get_weather"}
    asked = client.responses.create(
        model=MODEL,
        input="What is the weather in Paris?",
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice=choice,
        parallel_tool_calls=False,
        max_output_tokens=120,
    )
    (call,) = [item for item in asked.output if item.type == "function_call"]
    assert call.name == "get_weather"
    assert set(json.loads(call.arguments)) == {"city"}
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    question: Any = {"role": "user", "content": "What is the weather in Paris?"}
    sent_back = client.responses.create(
        model=MODEL,
        input=[question, *asked.output, output],  # type: ignore[list-item]
        tools=[TOOL],  # type: ignore[list-item]
        max_output_tokens=24,
    )
    gone_on = client.responses.create(
        model=MODEL,
        previous_response_id=asked.id,
        input=[output],
        tools=[TOOL],  # type: ignore[list-item]
        max_output_tokens=24,
    )
    assert sent_back.usage is not None
    assert gone_on.usage is not None
    assert gone_on.usage.input_tokens == sent_back.usage.input_tokens
    assert gone_on.output_text == sent_back.output_text


def test_a_streamed_call_has_its_own_events(fleet: Fleet) -> None:
    answer = post(
        fleet,
        input="What is the weather in Rome?",
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=120,
        stream=True,
    )
    events = events_of(answer.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert "".join(event["delta"] for event in deltas) == done["arguments"]
    item = events[-1]["response"]["output"][done["output_index"]]
    assert item["arguments"] == done["arguments"]
    assert (item["id"], item["name"]) == (done["item_id"], "get_weather")


def test_answers_are_parsed_into_the_callers_class(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL, input="Who?", text_format=Person, max_output_tokens=200
    )
    if response.status == "completed":
        assert isinstance(response.output_parsed, Person)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}},
        "required": ["name"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    short = client.responses.create(model=MODEL, input="Who?", text=form, max_output_tokens=80)
    assert set(json.loads(short.output_text)) == {"name"}


def test_log_probabilities_belong_to_their_text(fleet: Fleet) -> None:
    answer = post(fleet, top_logprobs=2, include=["message.output_text.logprobs"]).json()
    part = answer["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    plain = post(fleet).json()
    assert plain["output"][0]["content"][0]["logprobs"] == []


def test_what_is_stored_can_be_asked_for_listed_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="What is an agent?", max_output_tokens=8)
    again = client.responses.retrieve(made.id)
    assert again.output_text == made.output_text
    (item,) = client.responses.input_items.list(made.id).data
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model=MODEL, input="And?", previous_response_id=made.id)
    assert gone.value.param == "previous_response_id"
    assert gone.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.cancel(made.id)
    assert unknown.value.code == "unknown_url"
    unkept = client.responses.create(model=MODEL, input="Hi", max_output_tokens=2, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_response_goes_on_after_its_predecessors_but_not_their_instructions(
    client: openai.OpenAI,
) -> None:
    first = client.responses.create(
        model=MODEL,
        input="What is a slot?",
        instructions="Be terse.",
        max_output_tokens=8,
        reasoning=PLAIN,
    )
    second = client.responses.create(
        model=MODEL,
        input="And an agent?",
        previous_response_id=first.id,
        max_output_tokens=8,
        reasoning=PLAIN,
    )
    by_hand: Any = [
        {"role": "user", "content": "What is a slot?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And an agent?"},
    ]
    same = client.responses.create(model=MODEL, input=by_hand, max_output_tokens=8, reasoning=PLAIN)
    assert same.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens
    assert second.output_text == same.output_text
    counted = client.responses.input_tokens.count(model=MODEL, input=by_hand, reasoning=PLAIN)
    assert counted.input_tokens == same.usage.input_tokens
    after = client.responses.input_tokens.count(
        model=MODEL, input="And an agent?", previous_response_id=first.id, reasoning=PLAIN
    )
    assert after.input_tokens == same.usage.input_tokens


def test_items_of_stored_responses_are_referred_to(client: openai.OpenAI) -> None:
    asked: Any = {"role": "user", "content": "What is the weather in Paris?"}
    called = client.responses.create(
        model=MODEL, input=[asked], tools=[TOOL], tool_choice="required", max_output_tokens=200
    )
    call = called.output[-1]
    assert call.type == "function_call"
    answered: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rainy"}
    referred: Any = [{"type": "item_reference", "id": item.id} for item in called.output]
    said: Any = [item.to_dict() for item in called.output]
    in_words = client.responses.input_tokens.count(model=MODEL, input=[asked, *said, answered])
    by_names = client.responses.input_tokens.count(model=MODEL, input=[asked, *referred, answered])
    assert by_names.input_tokens == in_words.input_tokens
    told = client.responses.create(
        model=MODEL, input=[asked, *referred, answered], max_output_tokens=8
    )
    listed = client.responses.input_items.list(told.id, order="asc").data
    assert [item.type for item in listed] == [
        "message",
        *(item.type for item in called.output),
        "function_call_output",
    ]
    with pytest.raises(openai.BadRequestError) as twice:
        client.responses.create(model=MODEL, input=[asked, *referred, answered, referred[0]])
    assert twice.value.param == f"input[{len(referred) + 2}].id"
    for after in (called.id, told.id):
        with pytest.raises(openai.BadRequestError) as known:
            client.responses.input_tokens.count(
                model=MODEL, input=[answered, referred[0]], previous_response_id=after
            )
        assert known.value.param == "input[1].id"
    client.responses.delete(called.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model=MODEL, input=[asked, *referred, answered])
    assert (gone.value.code, gone.value.param) == ("item_not_found", "input[1].id")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["everything"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": 5}]}]}, "type"),
        ({"input": None}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    fleet: Fleet, more: dict[str, object], param: str
) -> None:
    answer = post(fleet, **more)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].endswith(param)


def test_an_error_after_the_stream_began_is_an_event_and_the_end(fleet: Fleet) -> None:
    long = "word " * 6000
    refused = post(fleet, input=long)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    streamed = post(fleet, input=long, stream=True)
    assert streamed.status_code == 400 or events_of(streamed.text)[-1]["type"] == "error"
