"""Reasoning that is wanted as the model writes it: as content, with the marks around it."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.language.answers.automaton import Automaton, TokenClass
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.output_processor import OutputProcessor
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.wire.engine.engine_pipe import Ending

MARKS = [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START|>", "<|END|>")]
TEXT = st.text("ab <|/\n", max_size=8)


def shown(form: ModelFormat, prompt_end: str, tokens: list[str], *, is_raw: bool = True) -> str:
    """The content of an answer, whatever the tokens are that it came in."""
    classifier = Automaton(form.rules, shows_reasoning_marks=is_raw)
    classifier.begin_with(prompt_end, shows_opening=is_raw)
    output = OutputProcessor(classifier, None, is_extended=True, reasoning_is_content=is_raw)
    results = [each for token in tokens for each in output.take(token.encode(), ends_turn=False)]
    results += output.end(Ending(1, "stop", 1, 0))
    names = ("ContentToken", "UndeterminableToken")
    return "".join(str(each[name]) for each in results for name in names if name in each)


@given(st.sampled_from(MARKS), TEXT, TEXT, st.booleans(), st.integers(1, 9))
def test_nothing_of_an_answer_is_lost(
    marks: tuple[str, str], thought: str, said: str, is_opened: bool, size: int
) -> None:
    opening, closing = marks
    form = ModelFormat(name="x", reasoning_open=opening, reasoning_close=closing)
    begun = f"{opening}\n" if is_opened else ""
    written = f"{'' if is_opened else opening}{thought}{closing}{said}"
    tokens = [written[at : at + size] for at in range(0, len(written), size)]
    assert shown(form, f"assistant\n{begun}", tokens) == begun + written
    assert closing not in shown(form, f"assistant\n{begun}", tokens, is_raw=False)


def test_reasoning_that_the_prompt_has_closed_is_not_shown() -> None:
    form = ModelFormat(name="x", reasoning_open="<think>", reasoning_close="</think>")
    assert shown(form, "<think>\n\n</think>\n\n", ["Yes."]) == "Yes."


def test_tokens_of_reasoning_are_counted_as_ever() -> None:
    form = ModelFormat(name="x", reasoning_open="<think>", reasoning_close="</think>")
    classifier = Automaton(form.rules, shows_reasoning_marks=True)
    output = OutputProcessor(classifier, None, reasoning_is_content=True)
    for token in ("<think>", "a", "b", "</think>", "c"):
        output.take(token.encode(), ends_turn=False)
    assert output._counts[TokenClass.REASONING] == 4
    assert output._counts[TokenClass.CONTENT] == 1


@pytest.mark.parametrize(
    ("source", "extra", "printed"),
    [
        ("{{ date_string }}", {}, "05 Mar 2031"),
        ("{% if not date_string is defined %}26 Jul 2024{% endif %}{{ date_string }}", {}, None),
        ("{{ datetime }}", {}, "Mar 05 2031"),
        ("{{ date_string }}", {"date_string": "today"}, "today"),
        ("{{ date_string is defined }}{{ other is defined }}", {}, "TrueFalse"),
    ],
)
def test_templates_that_ask_are_told_the_date(
    source: str, extra: dict[str, object], printed: str | None
) -> None:
    template = ChatTemplate.compile(source, now=lambda: datetime(2031, 3, 5).astimezone())
    text = template.render([], add_generation_prompt=True, bos_token="", eos_token="", extra=extra)
    assert text == (printed or "05 Mar 2031")
