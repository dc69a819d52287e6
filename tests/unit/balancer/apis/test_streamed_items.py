"""The events of a response and the blocks of a message: order, numbers, and what they add up to."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.answers.answer import Answer, AnswerReader, Step
from paddler_trio.balancer.apis.answers.kept_logprobs import MANY_NUMBERS
from paddler_trio.balancer.apis.answers.timings import Stopwatch
from paddler_trio.balancer.apis.anthropic.anthropic_routes import (
    MessageHeading,
    MessageStream,
    WholeMessage,
)
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.responses.response_output import Output
from paddler_trio.balancer.apis.responses.responses_request import read_responses
from paddler_trio.balancer.apis.responses.responses_response import ResponseHeading, ResponseStream
from paddler_trio.wire.codec import dumps

Result = dict[str, Any]

TEXT = st.text(min_size=1, max_size=5)


def usage(**counts: int) -> Result:
    names = ("prompt_tokens", "cached_prompt_tokens", "content_tokens", "reasoning_tokens")
    more = ("tool_call_tokens", "undeterminable_tokens")
    return {name: counts.get(name, 0) for name in (*names, *more)}


def done(reason: str = "stop") -> Result:
    counted = usage(prompt_tokens=9, cached_prompt_tokens=4, content_tokens=3, reasoning_tokens=2)
    finish = {"reason": reason, "stop_text": "END" if reason == "stop_text" else None}
    return {"Done": {"usage": counted, "finish": finish, "timings": {}}}


@st.composite
def answers(draw: st.DrawFn) -> list[Result]:
    """Results as an agent sends them: pieces in any order, calls one after the other, an end."""
    results: list[Result] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["said", "thought", "call"]), max_size=6)):
        pieces = draw(st.lists(TEXT, min_size=1, max_size=3))
        if kind == "call":
            delta = {"index": num_calls, "id": f"call_{num_calls}", "name": "f", "arguments": ""}
            results.append({"ToolCallDelta": delta})
            for piece in ('{"a":', json.dumps(pieces[0]), "}"):
                more = {"index": num_calls, "id": None, "name": None, "arguments": piece}
                results.append({"ToolCallDelta": more})
            num_calls += 1
        else:
            tag = "ContentToken" if kind == "said" else "ReasoningToken"
            results += [{tag: piece} for piece in pieces]
    results.append(done(draw(st.sampled_from(["stop", "length", "cells", "stop_text"]))))
    return results


def events_of(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def steps(results: Sequence[Result], size: int) -> list[Step]:
    return [Step(0, results[at : at + size]) for at in range(0, len(results), size)]


# ---------------------------------------------------------------------------------- responses


def response_stream() -> tuple[ResponseStream, Output]:
    request = read_responses({"input": "hi"}, ApiLimits())
    heading = ResponseHeading(request=request, model="m", created=1)
    output = Output(AnswerReader())
    watch = Stopwatch(itertools.count(1.0).__next__)
    return ResponseStream(heading, output, lambda: heading.finished(output, now=2), watch), output


@given(answers(), st.integers(1, 5))
def test_the_events_of_a_response_are_numbered_and_add_up_to_it(
    results: list[Result], size: int
) -> None:
    encoder, _ = response_stream()
    stream = encoder.opening()
    for step in steps(results, size):
        stream += encoder.take(step)
    events = events_of(stream + encoder.closing())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]

    grown: list[dict[str, Any]] = []
    text: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(grown)
                assert all(item["status"] == "completed" for item in grown)
                grown.append(event["item"])
                text[event["output_index"]] = ""
            case "response.output_item.done":
                assert event["output_index"] == len(grown) - 1
                assert event["item"]["id"] == grown[-1]["id"]
                grown[-1] = event["item"]
            case kind if kind.endswith(".delta"):
                assert event["item_id"] == grown[-1]["id"]
                text[event["output_index"]] += event["delta"]
    response = events[-1]["response"]
    assert response["output"] == grown
    for index, item in enumerate(grown):
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert whole == text[index]
    cut = results[-1]["Done"]["finish"]["reason"] in ("length", "cells")
    assert events[-1]["type"] == f"response.{response['status']}"
    assert response["status"] == ("incomplete" if cut else "completed")
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert response["usage"]["total_tokens"] == 9 + 5


@given(answers())
def test_a_whole_response_is_that_of_its_stream(results: list[Result]) -> None:
    def without_ids(output: Output) -> bytes:
        return dumps([{**item, "id": None} for item in output.items])

    quiet, loud = Output(AnswerReader()), Output(AnswerReader())
    for _ in quiet.take(results):
        pass
    for result in results:
        list(loud.take([result]))
    assert without_ids(quiet) == without_ids(loud)


def test_what_ends_a_text_with_much_known_of_its_tokens_is_long() -> None:
    encoder, _ = response_stream()
    encoder.output.with_logprobs = True
    token = {"ContentToken": "a"}
    known = {"token": "a", "logprob": -1.0, "bytes": [97], "top": []}

    def is_long(*results: Result) -> bool:
        return encoder.is_long([Step(0, results)] if results else ())

    encoder.opening()
    for _ in range(MANY_NUMBERS):
        encoder.take(Step(0, [{"Logprobs": known}, token]))
    assert not is_long(done())
    assert not is_long()
    encoder.take(Step(0, [{"Logprobs": known}, token]))
    assert is_long(done())
    assert is_long(token, done())
    assert is_long(), "the whole response has it, too"
    assert not is_long(token)
    start = {"ToolCallDelta": {"index": 0, "id": "c", "name": "f", "arguments": ""}}
    assert is_long(start)
    encoder.take(Step(0, [start]))
    assert not is_long(start), "a call has nothing of the kind"
    assert is_long()


def test_events_that_repeat_a_large_request_are_long() -> None:
    encoder, _ = response_stream()
    encoder.is_large = True
    assert encoder.is_long(())
    assert not encoder.is_long([Step(0, [{"Progress": {"total": 9, "cached": 4, "computed": 4}}])])
    assert not encoder.is_long([Step(0, [{"ContentToken": "a"}, done()])])


def test_an_error_is_numbered_too_and_has_what_clients_raise() -> None:
    encoder, _ = response_stream()
    stream = encoder.opening() + encoder.failed(ApiError(502, "the agent was lost"))
    last = events_of(stream)[-1]
    assert (last["type"], last["sequence_number"]) == ("error", 2)
    assert last["message"] == last["error"]["message"] == "the agent was lost"


# ----------------------------------------------------------------------------------- messages


@given(answers(), st.integers(1, 5))
def test_blocks_are_opened_and_closed_one_by_one_and_add_up_to_the_message(
    results: list[Result], size: int
) -> None:
    encoder = MessageStream(MessageHeading(model="m", id="msg_1"), AnswerReader())
    stream = encoder.opening()
    for step in steps(results, size):
        stream += encoder.take(step)
    events = events_of(stream + encoder.closing())
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "partial": ""})
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                delta = event["delta"]
                grows = {"text_delta": "text", "thinking_delta": "thinking"}
                if delta["type"] == "input_json_delta":
                    blocks[-1]["partial"] += delta["partial_json"]
                elif delta["type"] != "signature_delta":
                    name = grows[delta["type"]]
                    blocks[-1][name] += delta[name]
            case "content_block_stop":
                assert is_open
                is_open = False
    assert not is_open

    whole = WholeMessage(MessageHeading(model="m", id="msg_1"), Answer(AnswerReader()))
    whole.take(Step(0, results))
    body = whole.body()
    assert events[-2]["delta"] == {
        "stop_reason": body["stop_reason"],
        "stop_sequence": body["stop_sequence"],
    }
    assert events[-2]["usage"] == body["usage"]
    content: Any = body["content"]
    for kind, member in (("text", "text"), ("thinking", "thinking")):
        streamed = "".join(block[member] for block in blocks if block["type"] == kind)
        assert streamed == "".join(block[member] for block in content if block["type"] == kind)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [json.loads(block["partial"]) for block in calls] == [
        block["input"] for block in content if block["type"] == "tool_use"
    ]


def test_a_message_says_why_it_ended() -> None:
    for reason, told in [
        ("stop", ("end_turn", None)),
        ("length", ("max_tokens", None)),
        ("cells", ("model_context_window_exceeded", None)),
        ("stop_text", ("stop_sequence", "END")),
    ]:
        whole = WholeMessage(MessageHeading(model="m"), Answer(AnswerReader()))
        whole.take(Step(0, [{"ContentToken": "a"}, done(reason)]))
        body = whole.body()
        assert (body["stop_reason"], body["stop_sequence"]) == told
        assert body["usage"] == {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 5,
        }


def test_a_message_begins_with_what_is_known_of_the_prompt() -> None:
    encoder = MessageStream(MessageHeading(model="m"), AnswerReader())
    progress = {"Progress": {"total": 9, "cached": 4, "computed": 4}}
    (start, _) = events_of(encoder.take(Step(0, [progress])))
    assert start["message"]["usage"]["input_tokens"] == 5
    assert start["message"]["usage"]["cache_read_input_tokens"] == 4
    assert encoder.take(Step(0, [progress])) == b""
