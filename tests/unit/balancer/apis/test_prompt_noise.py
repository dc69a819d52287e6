"""Noise at the beginning of prompts: found in its places, and nowhere else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.prompt_noise import MAX_CHARS, NOISE, normalised, without_noise
from paddler_trio.wire.trio.work import ConversationPrompt, TextPrompt

STAMP = "x-anthropic-billing-header: cc_version=2.2.0.abc; cc_entrypoint=cli; cch={};"
STAMPS = st.from_regex(r"[0-9a-f]{5}", fullmatch=True)


def conversation(*messages: tuple[str, object]) -> ConversationPrompt:
    return ConversationPrompt(
        messages=tuple({"role": role, "content": content} for role, content in messages)
    )


@given(STAMPS, STAMPS)
def test_prompts_that_differ_in_the_stamp_alone_are_equal(one: str, other: str) -> None:
    first, second = (
        normalised(
            conversation(("system", f"{STAMP.format(stamp)}\nFollow these."), ("user", "hey"))
        )
        for stamp in (one, other)
    )
    assert first == second == conversation(("system", "Follow these."), ("user", "hey"))


def test_a_message_that_was_nothing_else_goes() -> None:
    parts = [{"type": "text", "text": STAMP.format("a")}, {"type": "text", "text": "b"}]
    prompt = conversation(("system", STAMP.format("a")), ("system", parts), ("user", "c"))
    left = [{"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    assert normalised(prompt) == conversation(("system", left), ("user", "c"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Current time: 2026-11-28T19:43:02Z", "Current time: 2026-11-28T19:43:00Z"),
        ("a\n- Current date and time: Sat 28 Nov 2026, 7:43:02 PM", None),
        ("UTC time = 19:43:02.123456", "UTC time = 19:43:00"),
        ("<!-- current_time: 2026-11-28 19:43:02,001 -->", None),
    ],
)
def test_seconds_of_the_present_time_are_cut_and_minutes_stay(
    text: str, expected: str | None
) -> None:
    told = without_noise(text)
    assert "43:00" in told
    assert ":02" not in told
    assert expected in (None, told)
    assert without_noise(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "The meeting was at 19:43:02.",
        "Current time: 19:43",
        "Today's date: 2026-11-28",
        "Current verse: Genesis 1:2",
        "See x-anthropic-billing-header: cch=a;",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_noise(text) == text


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text())))
def test_only_the_system_at_the_beginning_is_looked_at(turns: list[tuple[str, object]]) -> None:
    later = ("system", STAMP.format("a"))
    for prompt in (conversation(*turns, ("user", STAMP.format("a")), later), TextPrompt(text="a")):
        assert normalised(prompt) is prompt


@pytest.mark.parametrize("unit", ["current" + " " * 30, "current a: 1:11", "\n current:", " ", "_"])
def test_a_long_text_costs_little(unit: str) -> None:
    text = unit * (4 * MAX_CHARS // len(unit))
    began_s = time.process_time()
    assert len(without_noise(text)) == len(text)
    assert time.process_time() - began_s < 1


def test_each_row_says_what_it_is() -> None:
    assert all(noise.name.endswith(".") for noise in NOISE)
