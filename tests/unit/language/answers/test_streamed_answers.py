"""An answer that is streamed means what the whole answer means, layout left out.

The agent's half and the balancer's half are the real ones: characters in, pieces for a client out.
"""

from __future__ import annotations

import json
from itertools import chain

import attrs
import pytest
from answer_cases import CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from test_families import TOOL_SET, format_of_case, meaning, places_in, read

from paddler_trio.balancer.apis.answers.answer import Answer, AnswerReader
from paddler_trio.language.answers.automaton import Automaton
from paddler_trio.language.answers.bare_calls import probe_of
from paddler_trio.language.answers.output_processor import OutputProcessor, RawResult
from paddler_trio.language.answers.tool_calls import reader_of_calls
from paddler_trio.processes.preparation.preparation_messages import LENGTH, frame_of, read_result
from paddler_trio.wire.engine.engine_pipe import Ending

pytestmark = pytest.mark.thorough

STREAMED = [case for case in CASES if not (case.reasoning and case.raw.startswith(case.reasoning))]
"""All but those whose first text turns out to have been reasoning when it was streamed already."""
FAILURES = {"UnrecognizedToolCallFormat", "ToolCallParseFailed"}


def automaton_of(case: Case) -> Automaton:
    form = format_of_case(case)
    automaton = Automaton(form.rules, probe=probe_of(form, TOOL_SET.validators))
    automaton.begin_with(case.prompt_end)
    return automaton


def results_of(case: Case, *, reason: str = "stop", is_extended: bool = True) -> list[RawResult]:
    """The results an agent sends for an answer whose tokens are characters."""
    processor = processor_of(case, is_extended=is_extended)
    results = taken(processor, case.raw)
    return results + processor.end(Ending(0, reason, 1, 0))


def processor_of(case: Case, *, is_extended: bool = True) -> OutputProcessor:
    return OutputProcessor(
        automaton_of(case),
        reader_of_calls(format_of_case(case), TOOL_SET, seed=1),
        is_extended=is_extended,
        without_layout_from=0 if is_extended else None,
    )


def taken(processor: OutputProcessor, text: str) -> list[RawResult]:
    results: list[RawResult] = []
    for character in text:
        results += processor.take(character.encode(), ends_turn=False)
    return results


def read_results(results: list[RawResult]) -> Answer:
    answer = Answer(AnswerReader())
    for result in results:
        answer.take([result])
    return answer


@pytest.mark.parametrize("case", STREAMED)
def test_a_streamed_answer_says_what_the_whole_one_says(case: Case) -> None:
    answer = read_results(results_of(case))
    calls = tuple((call.name, json.loads(call.arguments)) for call in answer.calls)
    assert (answer.reasoning, answer.content, calls, ()) == meaning(read(case, [case.raw]))


@pytest.mark.parametrize("case", STREAMED)
@pytest.mark.parametrize("is_extended", [True, False], ids=["ours", "paddlers"])
def test_an_answer_that_was_cut_off_is_only_short(case: Case, *, is_extended: bool) -> None:
    for length in places_in(case.raw):
        cut = attrs.evolve(case, raw=case.raw[:length])
        results = results_of(cut, reason="length", is_extended=is_extended)
        assert not [result for result in results if FAILURES & set(result)]
        automaton = automaton_of(case)
        automaton.feed(cut.raw)
        if not is_extended or automaton.held_back:
            continue  # the beginning of a marker is text to an agent, and nothing to the other
        answer = read_results(results)
        assert answer.ended.finish_reason == "length"
        expected = read(cut, [cut.raw], is_partial=True)
        assert answer.content.startswith(expected.content.rstrip())
        assert answer.reasoning.startswith(expected.reasoning)
        assert len(answer.calls) >= len(expected.tool_calls)


@pytest.mark.parametrize("case", STREAMED)
def test_an_answer_goes_on_wherever_it_travels_to_another_process(case: Case) -> None:
    """What is left is answered as by the process that has read everything, and leaving changes
    nothing in the one that it leaves: where one goes on travels again, and some are alone to the
    end."""
    shared = (format_of_case(case).rules,)
    ending = Ending(0, "stop", 1, 0)

    def elsewhere(processor: OutputProcessor) -> OutputProcessor:
        there = read_result(frame_of(processor, shared)[LENGTH.size :], shared)
        assert isinstance(there, OutputProcessor)
        return there

    stays = processor_of(case)
    answered = [taken(stays, character) for character in case.raw]
    end = stays.end(ending)
    leaves = travels = processor_of(case)
    places = places_in(case.raw)
    alone = set(places[: 1 + len(places) // 4])
    for length, character in enumerate(case.raw):
        if length in places:
            travels = elsewhere(travels)
        if length in alone:
            there = elsewhere(leaves)
            expected = [*chain.from_iterable(answered[length:]), *end]
            assert taken(there, case.raw[length:]) + there.end(ending) == expected
        assert taken(leaves, character) == answered[length]
        if travels is not leaves:
            assert taken(travels, character) == answered[length]
    assert leaves.end(ending) == end
    assert travels is leaves or travels.end(ending) == end


TEXTS = st.sampled_from(["", " ", "\n", "\n\n", "a", "b c", " d", "e \n", "{", '"', "<"])
MARKS = st.sampled_from(
    ["<think>", "</think>", '<tool_call>{"name": "now", "arguments": {}}</tool_call>']
)
BEGINNINGS = st.sampled_from(["<think>", "<think>\n\n</think>\n\n"])


@given(st.lists(TEXTS | MARKS, max_size=12), BEGINNINGS)
def test_blanks_around_sections_are_told_nowhere(parts: list[str], beginning: str) -> None:
    hermes = next(case for case in CASES if case.family == "hermes")
    case = attrs.evolve(hermes, raw="".join(parts), prompt_end=beginning)
    expected = read(case, [case.raw])
    answer = read_results(results_of(case))
    assert answer.content == expected.content
    assert answer.reasoning == answer.reasoning.strip()
    # two sections of reasoning in a row are one to a stream
    assert answer.reasoning.split() == expected.reasoning.split() or "<think>" in case.raw
