"""A small slice of the long run, and inputs whose cost must grow with their length only."""

from __future__ import annotations

import time

import pytest
from fuzz_language import FORMS, TOOL_SET, fuzz

from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.whole_answer import AnswerReader


def test_random_answers_give_typed_outcomes_only() -> None:
    assert fuzz(2_000, seed=7).total() == 2_000


PATIENCE_S = 30.0
"""A cost that grows with a power of the length is far above; any machine is far below."""


def seconds(form: ModelFormat, text: str, size: int) -> float:
    began_s = time.process_time()
    reader = AnswerReader(form, TOOL_SET)
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    reader.end()
    return time.process_time() - began_s


@pytest.mark.parametrize(
    "unit", ["<", '{"', '"\\', "[", "(", "a=", "<arg_key>", "<|channel|>", ">>>"]
)
def test_a_long_answer_costs_what_its_length_is_worth(unit: str) -> None:
    for form in FORMS:
        opener = form.calls.opener if form.calls is not None else ""
        text = opener + unit * (20_000 // len(unit))
        assert seconds(form, text, 7) < PATIENCE_S, form.name
