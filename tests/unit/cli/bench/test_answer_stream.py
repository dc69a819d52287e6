"""The body of a streamed answer, however the network cuts it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.bench.bench_figures import FailureKind, ServerCounts
from paddler_trio.cli.bench.client_connection import MAX_LINE_BYTES, AnswerStream, error_text


def event(**chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(words: str | None, name: str = "content") -> bytes:
    return event(choices=[{"index": 0, "delta": {name: words}}])


DONE = b"data: [DONE]\n\n"
NAMES = [
    "choices",
    "delta",
    "content",
    "usage",
    "timings",
    "prompt_ms",
    "prompt_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "error",
    "message",
]
WHOLE = b"".join(
    [
        b": queued position=2\n\n",
        event(choices=[{"index": 0, "delta": {"role": "assistant", "content": None}}]),
        text("Once"),
        text(""),
        text(" upon", "reasoning_content"),
        text(" ä", "reasoning"),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}]),
        event(
            choices=[],
            usage={
                "prompt_tokens": 12,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 5},
            },
            timings={"prompt_ms": 7.5, "cache_n": 6, "predicted_n": 3},
        ),
        DONE,
    ]
)


def test_an_answer_has_its_times_and_the_counts_of_the_server() -> None:
    answer = AnswerStream()
    for number, line in enumerate(WHOLE.split(b"\n\n")):
        answer.receive(float(number), line + b"\n\n")
    answer.end(10.0)
    assert answer.failure is None
    assert answer.first_s == 2.0, "neither a comment nor the role is text"
    assert list(answer.gaps_s) == [2.0, 1.0], "nor is an empty piece"
    assert answer.num_pieces == 3
    assert answer.counts == ServerCounts(
        prompt_tokens=12, cached_tokens=5, completion_tokens=4, prompt_ms=7.5
    )


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_where_the_network_cuts_it_changes_no_count(cuts: list[int]) -> None:
    answer = AnswerStream()
    places = sorted({0, *cuts, len(WHOLE)})
    for start, end in pairwise(places):
        answer.receive(1.0, WHOLE[start:end])
    answer.end(2.0)
    assert answer.failure is None
    assert answer.num_pieces == 3
    assert answer.counts.completion_tokens == 4


def test_without_usage_the_counts_are_those_of_the_timings() -> None:
    answer = AnswerStream()
    answer.receive(0.0, text("a") + event(choices=[], timings={"cache_n": 2, "predicted_n": 9}))
    assert answer.counts == ServerCounts(cached_tokens=2, completion_tokens=9)


def test_tokens_that_the_server_does_not_show_are_an_answer_without_a_first_one() -> None:
    answer = AnswerStream()
    answer.receive(0.0, event(choices=[], usage={"completion_tokens": 8}) + DONE)
    answer.end(1.0)
    assert (answer.failure, answer.first_s) == (None, None)


def test_a_call_of_a_tool_is_text() -> None:
    answer = AnswerStream()
    answer.receive(0.5, event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}]))
    assert answer.first_s == 0.5


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (text("a"), FailureKind.broken, "ended without its last event"),
        (b"", FailureKind.broken, "ended without its last event"),
        (text("") + DONE, FailureKind.empty, "no text"),
        (b"data: {oh\n\n", FailureKind.protocol, "no JSON: {oh"),
        (b"data: 7\n\n", FailureKind.protocol, "no object: 7"),
        (b"data: " + b"[" * 90_000 + b"\n\n", FailureKind.protocol, "no JSON"),
        (b"data: " + b"x" * MAX_LINE_BYTES, FailureKind.protocol, "a line of more than"),
        (
            text("a") + event(error={"message": "the agent is lost", "code": 502}) + DONE,
            FailureKind.event,
            "the agent is lost",
        ),
    ],
)
def test_what_is_no_answer_is_a_failure_with_its_kind(
    body: bytes, kind: FailureKind, words: str
) -> None:
    answer = AnswerStream()
    answer.receive(0.0, body)
    answer.end(1.0)
    assert answer.failure is not None
    assert answer.failure.kind is kind
    assert words in answer.failure.text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES), inner),
    )
)
def test_no_event_of_any_shape_is_an_error_of_ours(value: object) -> None:
    answer = AnswerStream()
    answer.receive(0.0, b"data: " + json.dumps(value).encode() + b"\n\n")
    answer.end(1.0)
    counts = answer.counts
    for count in (counts.prompt_tokens, counts.cached_tokens, counts.completion_tokens):
        assert count is None or count >= 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "full", "code": 503}}, "full"),
        ({"error": "model not found"}, "model not found"),
        ({"detail": "no"}, '{"detail": "no"}'),
        ("plain", "plain"),
        ({"error": {"message": "x" * 1000}}, "x" * 299 + "…"),
    ],
)
def test_errors_of_several_servers_have_their_words(body: object, words: str) -> None:
    assert error_text(body) == words
