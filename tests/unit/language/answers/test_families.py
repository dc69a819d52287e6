"""Answers of many families mean what they say, however they were cut."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import cache

import pytest
from answer_cases import CASES, CODE, TOOLS, Case

from effort import examples
from paddler_trio.language.answers.format_detection import known_format
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import ToolSet
from paddler_trio.language.answers.whole_answer import AnswerReader, WholeAnswer

pytestmark = pytest.mark.thorough

NAMES = [f"{case.family}-{index}" for index, case in enumerate(CASES)]


TOOL_SET = ToolSet(TOOLS)
MAX_CUTS = examples(60)


@cache
def format_of_template(template: str) -> ModelFormat:
    form = known_format(template)
    assert form is not None
    return form


def format_of_case(case: Case) -> ModelFormat:
    return format_of_template(case.template)


def places_in(text: str) -> list[int]:
    """Where to cut a text: everywhere, or at random places of a long one."""
    places = range(1, len(text))
    return random.Random(text).sample(places, k=min(MAX_CUTS, len(places)))


def read(
    case: Case, pieces: Iterable[str], *, tools: bool = True, is_partial: bool = False
) -> WholeAnswer:
    reader = AnswerReader(
        format_of_case(case), TOOL_SET if tools else (), prompt_end=case.prompt_end
    )
    for piece in pieces:
        reader.feed(piece)
    return reader.end(is_partial=is_partial)


def meaning(answer: WholeAnswer) -> tuple[object, ...]:
    calls = tuple((call.name, call.arguments) for call in answer.tool_calls)
    return answer.reasoning, answer.content, calls, answer.problems


def test_there_are_many_families() -> None:
    assert len({case.family for case in CASES}) >= 25


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_answer_means_what_its_family_means_by_it(case: Case) -> None:
    answer = read(case, [case.raw])
    assert format_of_case(case).name == case.family
    assert meaning(answer) == (case.reasoning, case.content, case.calls, ())
    ids = tuple(call.id for call in answer.tool_calls)
    assert ids == case.ids if case.ids else len(set(ids)) == len(ids)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_how_an_answer_is_cut_changes_nothing(case: Case) -> None:
    expected = meaning(read(case, [case.raw]))
    assert meaning(read(case, case.raw)) == expected
    for cut in places_in(case.raw):
        assert meaning(read(case, [case.raw[:cut], case.raw[cut:]])) == expected
    dice = random.Random(case.raw)
    for _ in range(10):
        cuts = sorted(dice.sample(range(len(case.raw)), k=min(5, len(case.raw))))
        edges = [0, *cuts, len(case.raw)]
        pieces = [case.raw[start:end] for start, end in itertools.pairwise(edges)]
        assert meaning(read(case, pieces)) == expected


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_answer_cut_off_anywhere_gives_the_beginning_of_its_meaning(case: Case) -> None:
    for length in places_in(case.raw):
        answer = read(case, [case.raw[:length]], is_partial=True)
        assert len(answer.tool_calls) <= max(len(case.calls), 1)
        for call, (name, arguments) in zip(answer.tool_calls, case.calls, strict=False):
            assert call.name == name
            assert isinstance(call.arguments, str) or call.arguments == arguments


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_without_tools_calls_with_a_marker_are_read_all_the_same(case: Case) -> None:
    answer = read(case, [case.raw], tools=False)
    calls = format_of_case(case).calls
    if calls is not None and not calls.needs_probe:
        names = [name for name, _ in case.calls]
        if calls.in_header and CODE in case.raw:
            names.remove("python")  # what takes code there nobody can say
        assert [call.name for call in answer.tool_calls] == names


@pytest.mark.parametrize("case", [case for case in CASES if not case.reasoning])
def test_what_an_answer_says_only_grows_while_it_is_written(case: Case) -> None:
    for length in places_in(case.raw):
        answer = read(case, [case.raw[:length]], is_partial=True)
        assert case.content.startswith(answer.content.rstrip())
