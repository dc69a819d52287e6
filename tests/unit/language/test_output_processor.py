"""One answer in the making: stop texts, log-probabilities, and the words of its ending."""

from __future__ import annotations

import json
import math
from typing import Any, TypeAlias

import pytest
from four_markers import Markers, automaton
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.output_processor import OutputProcessor
from paddler_trio.language.answers.stop_texts import StopTexts
from paddler_trio.wire.engine.engine_pipe import Ending, Logprobs
from paddler_trio.wire.json_text import dumps
from paddler_trio.wire.trio.request_frame import step_entry, step_frame
from paddler_trio.wire.trio.trio_link import TAG

Json: TypeAlias = Any  # results are looked into freely

MARKERS = Markers("<think>", "</think>", "<tool>", "</tool>")
TAGS = ("ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken")


def answer(
    *stops: str, opening: TokenClass = TokenClass.CONTENT, is_extended: bool = True
) -> OutputProcessor:
    classifier = automaton(MARKERS, opening)
    return OutputProcessor(classifier, None, StopTexts(stops) if stops else None, is_extended)


def ending(reason: str = "stopped", **numbers: Any) -> Ending:
    return Ending(1, reason, 7, 3, **numbers)


def results_of(generation: OutputProcessor, texts: list[str], last: Ending) -> list[Json]:
    results: list[Json] = []
    for text in texts:
        if not generation.is_complete:
            results += generation.take(text.encode(), ends_turn=False)
    return results + generation.end(last)


def text_in(results: list[Json], *tags: str) -> str:
    return "".join(result.get(tag, "") for result in results for tag in tags or TAGS)


def test_a_stop_text_over_several_tokens_is_not_part_of_the_answer() -> None:
    generation = answer("END")
    results = results_of(generation, ["one ", "two E", "N", "D three"], ending())
    assert text_in(results) == "one two "
    done = results[-1]["Done"]
    assert done["finish"] == {"reason": "stop_text", "stop_text": "END"}
    assert done["usage"]["content_tokens"] == 4


def test_a_stop_text_in_the_reasoning_ends_nothing() -> None:
    generation = answer("\n\n", opening=TokenClass.REASONING)
    results = results_of(generation, ["first\n\nsecond", "</think>", "yes\n", "\nno"], ending())
    assert text_in(results, "ReasoningToken") == "first\n\nsecond"
    assert text_in(results, "ContentToken") == "yes"


def test_a_stop_text_does_not_reach_across_a_marker() -> None:
    generation = answer("ab")
    results = results_of(generation, ["a", "<tool>", "b", "</tool>", "b"], ending("stop"))
    assert results[:-1] == [
        {"ContentToken": "a"},
        {"ToolCallToken": "b"},
        {"ContentToken": "b"},
    ]
    assert results[-1]["Done"]["finish"] == {"reason": "stop", "stop_text": None}


def test_a_stop_text_is_found_in_the_raw_text_of_a_call() -> None:
    generation = answer("}}")
    results = results_of(generation, ["<tool>", '{"a": {}', "}", "</tool>"], ending())
    assert text_in(results, "ToolCallToken") == '{"a": {'


def test_what_was_held_back_is_shown_when_the_answer_ends() -> None:
    generation = answer("STOP")
    results = results_of(generation, ["do not ST"], ending("length"))
    assert text_in(results) == "do not ST"
    assert results[-1]["Done"]["finish"]["reason"] == "length"


PIECES = ("a", "b", "E", "N", "D", "EN", "ND", "<think>", "</think>", "<tool>", "</tool>", "é")
WRITTEN = st.lists(st.sampled_from(PIECES))


@given(WRITTEN, st.integers(0, 30), st.sampled_from(["END", "a", "ENDa", "é"]))
def test_an_answer_continued_elsewhere_is_the_same_answer(
    texts: list[str], lost_after: int, stop: str
) -> None:
    tokens = [bytes([byte]) for text in texts for byte in text.encode()]
    lost_after = min(lost_after, len(tokens))

    def sample(generation: OutputProcessor, some: list[bytes]) -> list[Json]:
        results: list[Json] = []
        for token in some:
            if generation.is_complete:
                break
            results += generation.take(token, ends_turn=False)
        return results

    whole = answer(stop)
    undisturbed = sample(whole, tokens) + whole.end(ending())
    first = answer(stop)
    before = sample(first, tokens[:lost_after])
    second = answer(stop)
    replayed = 0
    for token in tokens[:lost_after]:
        if second.is_complete:
            break
        second.replay([token])
        replayed += 1
    after = sample(second, tokens[lost_after:]) + second.end(ending())
    assert text_in(before + after) == text_in(undisturbed)
    assert after[-1]["Done"]["usage"] == undisturbed[-1]["Done"]["usage"]
    assert after[-1]["Done"]["finish"] == undisturbed[-1]["Done"]["finish"]
    drawn_here = after[-1]["Done"]["timings"]["predicted_n"]
    assert drawn_here + replayed == undisturbed[-1]["Done"]["timings"]["predicted_n"]


def written(logprobs: Logprobs) -> Json:
    """What a token with these is told as."""
    shown, _ = answer().take(b" yes", ends_turn=False, logprobs=logprobs)
    return json.loads(dumps(shown))


def test_log_probabilities_come_before_the_text_of_their_token() -> None:
    generation = answer()
    texts, values = [b" yes", b" yes", b"\xc3", b'"\n'], [-0.25, -0.25, -math.inf, math.nan]
    logprobs = Logprobs([5, 5, 6, 7], texts, values)
    shown, text = generation.take(b" yes", ends_turn=False, logprobs=logprobs)
    assert text == {"ContentToken": " yes"}
    yes = {"id": 5, "token": " yes", "bytes": [32, 121, 101, 115], "logprob": -0.25}
    half = {"id": 6, "token": "\N{REPLACEMENT CHARACTER}", "bytes": [195], "logprob": -9999.0}
    odd = {"id": 7, "token": '"\n', "bytes": [34, 10], "logprob": -9999.0}
    entry = {"Logprobs": {**yes, "top": [yes, half, odd]}}
    assert json.loads(dumps(shown)) == entry
    frame = json.loads(step_frame([step_entry("1", [5], [shown, text])]))
    assert frame[TAG]["Step"][0]["results"] == [entry, text]
    assert written(Logprobs([5], [b" yes"], [-0.25]))["Logprobs"] == {**yes, "top": []}


@pytest.mark.parametrize(
    ("opening", "texts", "told"),
    [
        (TokenClass.REASONING, ["hm", "</think>", "\n\n", "I", " am"], ["hm", "I", " am"]),
        (TokenClass.REASONING, ["hm", "</", "think", ">I", " am"], ["hm", ">I", " am"]),
        (TokenClass.CONTENT, ["a", "<to", "ok", " b"], ["a", "<to", "ok", " b"]),
        (TokenClass.CONTENT, ["a", " <to"], ["a", " <to"]),
        (TokenClass.CONTENT, ["a", " E", "ND", " b"], ["a", " E"]),
        (TokenClass.CONTENT, ["a", " E", "x"], ["a", " E", "x"]),
    ],
    ids=["marker", "cut marker", "no marker", "no marker at the end", "stop text", "no stop text"],
)
def test_log_probabilities_are_those_of_the_text_and_not_of_marks(
    opening: TokenClass, texts: list[str], told: list[str]
) -> None:
    """Each comes before the text that its token is part of."""
    generation = answer("END", opening=opening)
    generation.without_layout_from = 0
    results: list[Json] = []
    for number, text in enumerate(texts):
        if not generation.is_complete:
            logprob = Logprobs([number], [text.encode()], [-0.5])
            taken = generation.take(text.encode(), ends_turn=False, logprobs=logprob)
            results += json.loads(dumps(taken))
    results += generation.end(ending())
    entries = [result["Logprobs"]["token"] for result in results if "Logprobs" in result]
    assert entries == told
    assert "Logprobs" not in results[-2], "the last text has its own before it"


def test_times_and_drafts_are_reported() -> None:
    generation = answer()
    last = ending("stop", prompt_ms=2.5, predicted_ms=4.0, num_drafted=6, num_accepted=5)
    (done,) = results_of(generation, [], last)
    assert done["Done"]["timings"] == {
        "prompt_n": 4,
        "prompt_ms": 2.5,
        "cached_n": 3,
        "predicted_n": 0,
        "predicted_ms": 4.0,
        "draft_n": 6,
        "draft_accepted_n": 5,
    }


def test_paddlers_ending_has_nothing_but_the_usage() -> None:
    (done,) = results_of(answer(is_extended=False), [], ending("stop"))
    assert [*done["Done"]] == ["usage"]
