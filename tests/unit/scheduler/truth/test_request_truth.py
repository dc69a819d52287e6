"""What is said of a request that ended, and of one that has not: the words are the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.truth.request_truth import (
    CANCELLED_CODE,
    ENDINGS,
    FINISHES,
    EndingFacts,
    finish_of,
    truth_of_ending,
    truth_of_flight,
)

facts = st.builds(
    EndingFacts,
    ended=st.sampled_from(["completed", "stopped", "failure"]),
    code=st.none() | st.integers(400, 599),
    text=st.text(max_size=30),
    finish=st.none() | st.sampled_from(FINISHES),
)


@pytest.mark.parametrize(
    ("ending", "word", "severity", "sentence"),
    [
        (EndingFacts(ended="completed"), "done", "ok", "it was answered"),
        (
            EndingFacts(ended="completed", finish="stop"),
            "done",
            "ok",
            "it was answered: the model ended its answer",
        ),
        (
            EndingFacts(ended="completed", finish="length"),
            "done, length",
            "info",
            "it was answered: it has as many tokens as it may have",
        ),
        (
            EndingFacts(ended="completed", finish="tools"),
            "done, tools",
            "ok",
            "it was answered: the model called tools",
        ),
        (
            EndingFacts(ended="completed", code=400, text="the prompt has 900 tokens."),
            "refused 400",
            "warn",
            "it was refused with 400: the prompt has 900 tokens",
        ),
        (
            EndingFacts(ended="completed", code=500, text="no free sequence"),
            "failed 500",
            "bad",
            "it failed with 500: no free sequence",
        ),
        (
            EndingFacts(ended="failure", code=413, text="too long"),
            "refused 413",
            "warn",
            "it was refused with 413: too long",
        ),
        (
            EndingFacts(ended="failure", code=502, text="no agent could go on"),
            "failed 502",
            "bad",
            "it failed with 502: no agent could go on",
        ),
        (
            EndingFacts(ended="failure", code=CANCELLED_CODE, text="An operator cancelled it"),
            "cancelled by operator",
            "quiet",
            "an operator cancelled it",
        ),
        (
            EndingFacts(ended="stopped"),
            "stopped by client",
            "quiet",
            "its client stopped it, or left",
        ),
    ],
)
def test_every_ending_has_its_words(
    ending: EndingFacts, word: str, severity: str, sentence: str
) -> None:
    truth = truth_of_ending(ending)
    assert (truth.word, truth.severity, truth.sentence) == (word, severity, sentence)
    assert truth.state == ending.kind


@given(facts)
def test_nothing_is_green_but_an_answer(ending: EndingFacts) -> None:
    truth = truth_of_ending(ending)
    assert truth.state in ENDINGS
    has_failed = ending.code is not None and ending.ended != "stopped"
    assert (truth.severity in ("ok", "info")) == (not has_failed and ending.ended != "stopped")
    assert not truth.sentence.endswith(".")


@pytest.mark.parametrize(
    ("reason", "calls", "finish"),
    [
        ("stop", False, "stop"),
        ("stop_text", False, "stop"),
        ("stop", True, "tools"),
        ("length", True, "length"),
        ("cells", False, "context"),
        ("stopped", False, None),
        (None, True, "tools"),
        (7, False, None),
    ],
)
def test_the_reason_of_an_engine_is_one_of_few(
    reason: object, calls: bool, finish: str | None
) -> None:
    assert finish_of(reason, calls_tools=calls) == finish


def test_one_in_flight_is_where_it_is() -> None:
    assert truth_of_flight("buffered", None).word == "queued"
    assert truth_of_flight("buffered", 0).word == "queued, next"
    assert truth_of_flight("buffered", 3).word == "queued, 3 ahead"
    assert truth_of_flight("leased", None).word == "prefill"
    assert truth_of_flight("streaming", None).word == "decode"
    assert truth_of_flight("stopping", None).word == "stopping"
