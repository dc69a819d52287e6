"""Calls are sent while they are written: names at once, arguments as growing JSON text."""

from __future__ import annotations

import json

import pytest
from answer_cases import CASES, TOOLS, Case
from test_families import NAMES, format_of_case

from paddler_trio.language.answers.automaton import Automaton
from paddler_trio.language.answers.bare_calls import probe_of
from paddler_trio.language.answers.call_events import Remainder
from paddler_trio.language.answers.call_syntax import GLM, QWEN_CODER, CallSyntax
from paddler_trio.language.answers.tool_calls import (
    Parsed,
    ToolCallDelta,
    ToolCallOutcome,
    ToolCallReader,
    ToolSet,
    reader_of_calls,
)

TOOL_SET = ToolSet(TOOLS)


def streamed(case: Case) -> tuple[list[ToolCallDelta], list[ToolCallOutcome]]:
    """Deltas and outcomes of an answer that arrives character by character."""
    form = format_of_case(case)
    automaton = Automaton(form.rules, probe=probe_of(form, TOOL_SET.validators))
    automaton.begin_with(case.prompt_end)
    calls = reader_of_calls(form, TOOL_SET)
    deltas: list[ToolCallDelta] = []
    outcomes: list[ToolCallOutcome] = []
    for character in case.raw:
        for piece in automaton.feed(character):
            outcomes += calls.feed_piece(piece)
            deltas += calls.take_deltas()
    for piece in automaton.flush():
        outcomes += calls.feed_piece(piece)
    outcomes += calls.close_section()
    return deltas + calls.take_deltas(), outcomes


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_deltas_of_a_call_are_its_arguments_in_json(case: Case) -> None:
    deltas, outcomes = streamed(case)
    parsed = [call for o in outcomes if isinstance(o, Parsed) for call in o.calls]
    begun = [delta for delta in deltas if delta.name is not None]
    assert [delta.index for delta in begun] == list(range(len(case.calls)))
    assert [(d.name, d.id) for d in begun] == [(call.name, call.id) for call in parsed]
    for delta, (_, arguments) in zip(begun, case.calls, strict=True):
        text = "".join(each.arguments for each in deltas if each.index == delta.index)
        assert json.loads(text) == arguments
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)


def fed(text: str, syntax: CallSyntax | None = None) -> list[ToolCallDelta]:
    calls = ToolCallReader(TOOL_SET, syntax=syntax, new_id=lambda: "id")
    calls.feed(text)
    return calls.take_deltas()


def test_a_name_is_sent_before_the_arguments() -> None:
    assert fed('{"name": "weather"') == [ToolCallDelta(0, "id", "weather", "")]


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ('{"name": "weather", "arguments": {"city": "Zür', None),
        ('weather[ARGS]{"city": "Zür', None),
        ("<function=weather>\n<parameter=city>\nZür", QWEN_CODER),
        ("weather<arg_key>city</arg_key><arg_value>Zür", GLM),
    ],
)
def test_a_text_is_passed_on_while_it_is_written(text: str, syntax: CallSyntax | None) -> None:
    assert "".join(delta.arguments for delta in fed(text, syntax)) == '{"city": "Zür'


def test_a_call_that_breaks_off_stays_without_an_end() -> None:
    calls = ToolCallReader(TOOL_SET)
    calls.feed('{"name": "weather", "arguments": {"city": "Be')
    [outcome] = calls.close_section(is_cut_off=True)
    assert isinstance(outcome, Remainder)
    assert calls.complete == set()
    calls.feed('{"name": "now"}')
    assert isinstance(calls.close_section()[0], Parsed)
    assert calls.complete == {1}


def test_an_id_that_a_model_writes_twice_is_given_once() -> None:
    calls = ToolCallReader(TOOL_SET, keeps_model_ids=True, new_id=lambda: "fresh")
    calls.feed("[" + ", ".join(['{"id": "0", "name": "now"}'] * 2) + "]")
    [outcome] = calls.close_section()
    assert isinstance(outcome, Parsed)
    assert [call.id for call in outcome.calls] == ["0", "fresh"]
