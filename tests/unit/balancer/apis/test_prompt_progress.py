"""How far a prompt is: from what the cache had up to the whole, and never after a token."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_values import chunks, done, readers, text_answer

from paddler_trio.balancer.apis.answers.answer import AnswerReader, Prefilled, Step
from paddler_trio.balancer.apis.answers.timings import PromptProgress, Reports, Stopwatch
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.llama_completion import CompletionEncoder
from paddler_trio.balancer.apis.openai.answer_heading import Heading
from paddler_trio.balancer.apis.openai.chat import ChatStream
from paddler_trio.balancer.apis.openai.chat_request import Delivery
from paddler_trio.balancer.apis.openai.completion_request import (
    read_completion,
    read_llama_completion,
)
from paddler_trio.balancer.apis.openai.completions import CompletionStream
from paddler_trio.balancer.apis.responses.response_output import Output
from paddler_trio.balancer.apis.responses.responses_request import read_responses
from paddler_trio.balancer.apis.responses.responses_response import ResponseHeading, ResponseStream
from paddler_trio.nursery_tree.step_results import RawResult

LIMITS = ApiLimits()
HEADING = Heading(model="m", fingerprint="b1", created=5, id="id-1")
WISHES = {"stream": True, "return_progress": True, "timings_per_token": True}


def told_of(total: int, cached: int, computed: int) -> RawResult:
    return {"Progress": {"total": total, "cached": cached, "computed": computed}}


STEPS = (
    Step(0, [told_of(90, 10, 42)]),
    Step(0, [{"ContentToken": "Hi"}], [7]),
    Step(0, [done()]),
)


def watch() -> Stopwatch:
    return Stopwatch(itertools.count(1.0).__next__)


def processed(events: list[dict[str, Any]]) -> list[int]:
    return [each["prompt_progress"]["processed"] for each in events if "prompt_progress" in each]


@given(
    st.integers(0, 20),
    st.integers(1, 100),
    st.lists(st.integers(0, 100), max_size=6),
    st.booleans(),
)
def test_whatever_an_agent_tells_progress_rises_from_the_cache_to_the_whole(
    cached: int, fresh: int, computed: list[int], begins_at_once: bool
) -> None:
    total = cached + fresh
    progress = PromptProgress(itertools.count(1.0).__next__, 0.0, with_timings=False)
    news = [min(total, cached + each) for each in ([0] if begins_at_once else []) + computed]
    reports = [report for done in news for report in progress.take(Prefilled(total, cached, done))]
    reports += progress.finished()
    told: list[Any] = [report["prompt_progress"] for report in reports]
    assert bool(told) == bool(news)
    if told:
        assert (told[0]["processed"], told[-1]["processed"]) == (cached, total)
        assert told[0]["time_ms"] == 0
    counts = [each["processed"] for each in told]
    assert counts == sorted(set(counts))
    assert all((each["total"], each["cache"]) == (total, cached) for each in told)
    assert progress.finished() == []
    assert progress.take(Prefilled(total + 5, cached, total + 5)) == [], "another agent goes on"


def test_a_chat_tells_it_before_its_first_text() -> None:
    delivery = Delivery(with_progress=True, with_timings=True)
    encoder = ChatStream(HEADING, delivery, watch(), readers(delivery))
    stream = encoder.opening() + b"".join(map(encoder.take, STEPS)) + encoder.closing()
    role, *events = chunks(stream)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert processed(events) == [10, 42, 90]
    assert [each["choices"][0]["delta"] for each in events] == [{}, {}, {}, {"content": "Hi"}, {}]
    first, second = events[0]["timings"], events[1]["timings"]
    assert (first["prompt_n"], first["prompt_ms"], first["predicted_n"]) == (0, 0.0, 0)
    assert (second["cache_n"], second["prompt_n"]) == (10, 32)
    assert second["prompt_ms"] > 0
    text = events[3]["timings"]
    assert (text["cache_n"], text["prompt_n"], text["predicted_n"]) == (10, 80, 1)
    assert text["prompt_per_second"] > 0


def test_it_is_told_of_each_choice_alone_and_only_to_who_asks() -> None:
    for delivery, expected in ((Delivery(with_progress=True), [10, 42, 90] * 2), (Delivery(), [])):
        encoder = ChatStream(HEADING, delivery, watch(), readers(delivery, 2))
        stream = encoder.opening()
        for choice in (0, 1):
            stream += b"".join(encoder.take(Step(choice, step.results, [])) for step in STEPS)
        events = chunks(stream + encoder.closing())
        assert processed(events) == expected
        assert all("timings" not in each for each in events if "prompt_progress" in each)


@pytest.mark.parametrize("is_openai", [True, False])
def test_completions_tell_it_in_both_dialects(*, is_openai: bool) -> None:
    encoder: CompletionStream | CompletionEncoder
    if is_openai:
        request = read_completion({"prompt": "a", **WISHES}, LIMITS)
        encoder = CompletionStream(HEADING, request.delivery, watch(), [text_answer()], 1)
    else:
        request = read_llama_completion({"prompt": "a", **WISHES}, LIMITS)
        encoder = CompletionEncoder(request, "m", ["a"], [text_answer()], watch())
    stream = encoder.opening() + b"".join(map(encoder.take, STEPS))
    events = [json.loads(block[6:]) for block in stream.decode().split("\n\n")[:-1]]
    assert processed(events) == [10, 42, 90]
    assert "timings" in events[0]
    if not is_openai:
        assert [each["tokens_evaluated"] for each in events[:4]] == [90] * 4
        assert all(each["stop"] is False for each in events[:4])


def test_a_response_is_in_progress_while_its_prompt_is() -> None:
    request = read_responses({"input": "hi", **WISHES}, LIMITS)
    heading = ResponseHeading(request=request, model="m", created=1)
    clock = watch()
    reports = Reports(clock, request.delivery.with_progress, request.delivery.with_timings)
    output = Output(AnswerReader(), reports=reports)
    encoder = ResponseStream(heading, output, lambda: heading.finished(output, now=2), clock)
    stream = encoder.opening() + b"".join(map(encoder.take, STEPS)) + encoder.closing()
    events = [json.loads(block.split("data: ")[1]) for block in stream.decode().split("\n\n")[:-1]]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert processed(events) == [10, 42, 90]
    for event in events:
        if "prompt_progress" in event:
            assert event["type"] == "response.in_progress"
            assert event["response"]["status"] == "in_progress"
    (delta,) = [each for each in events if each["type"] == "response.output_text.delta"]
    assert delta["timings"]["predicted_n"] == 1
    assert events[-1]["timings"]["predicted_n"] == 8


def test_progress_names_its_response_and_repeats_nothing_of_a_long_request() -> None:
    long = {
        "instructions": "be brief " * 1000,
        "metadata": {"note": "n" * 500},
        "tools": [{"type": "function", "name": "f", "description": "d" * 5000}],
    }
    request = read_responses({"input": "hi", **WISHES, **long}, LIMITS)
    heading = ResponseHeading(request=request, model="m", created=1)
    clock = watch()
    output = Output(AnswerReader(), reports=Reports(clock, is_wanted=True, with_timings=True))
    encoder = ResponseStream(heading, output, lambda: heading.finished(output, now=2), clock)
    encoder.opening()
    told = encoder.take(Step(0, [told_of(90, 10, 42)])).decode().split("\n\n")[:-1]
    assert len(told) == 2
    for block in told:
        assert len(block) < 1000
        response = json.loads(block.split("data: ")[1])["response"]
        assert (response["id"], response["object"]) == (heading.id, "response")
        assert (response["model"], response["status"], response["output"]) == (
            "m",
            "in_progress",
            [],
        )
