"""What models of all families are known to write wrong means what they meant, however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from written_calls import SYNTAXES, Call, all_formats, answer_of, formats_of

from paddler_trio.balancer.apis.answers.answer import Answer
from paddler_trio.balancer.apis.answers.answer import AnswerReader as StreamReader
from paddler_trio.language.answers.automaton import Automaton
from paddler_trio.language.answers.bare_calls import probe_of
from paddler_trio.language.answers.call_syntax import CallSyntax, TaggedCalls
from paddler_trio.language.answers.known_slips import SLIPS, Slip
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.output_processor import OutputProcessor
from paddler_trio.language.answers.tool_calls import ToolSet, reader_of_calls
from paddler_trio.language.answers.whole_answer import AnswerReader, WholeAnswer
from paddler_trio.wire.engine.engine_pipe import Ending


def tool(name: str, **properties: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
TOOLS = ToolSet(
    [tool("edit", path=TEXT, text=TEXT, wholly={"type": "boolean"}), tool("now"), tool("f", n=TEXT)]
)
TEXTS = st.lists(st.sampled_from([*"ab \n\té'\"{}[],:<>", "x=1", "<b>", "</b>"]), max_size=8).map(
    "".join
)
EDITS = st.fixed_dictionaries(
    {"path": TEXTS}, optional={"text": TEXTS, "wholly": st.booleans()}
).map(lambda arguments: ("edit", arguments))
CALLS = st.one_of(EDITS, st.just(("now", {})), TEXTS.map(lambda text: ("f", {"n": text})))


def whole(form: ModelFormat, pieces: Sequence[str]) -> WholeAnswer:
    reader = AnswerReader(form, TOOLS)
    for piece in pieces:
        reader.feed(piece)
    return reader.end()


def streamed(form: ModelFormat, pieces: Sequence[str]) -> Answer:
    processor = OutputProcessor(
        Automaton(form.rules, probe=probe_of(form, TOOLS.validators)),
        reader_of_calls(form, TOOLS, seed=1),
        is_extended=True,
        without_layout_from=0,
    )
    answer = Answer(StreamReader())
    for piece in pieces:
        for result in processor.take(piece.encode(), ends_turn=False):
            answer.take([result])
    for result in processor.end(Ending(0, "stop", 1, 0)):
        answer.take([result])
    return answer


def calls_of(answer: WholeAnswer) -> list[tuple[str, object]]:
    return [(call.name, call.arguments) for call in answer.tool_calls]


def cut(raw: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    return [raw[begin:end] for begin, end in pairwise(bounds)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


of_each_syntax = pytest.mark.parametrize("syntax", SYNTAXES)


def test_each_format_is_of_one_syntax() -> None:
    assert sum(len(formats_of(syntax)) for syntax in SYNTAXES) == len(all_formats()) > 50


@of_each_syntax
@given(calls=st.lists(CALLS, min_size=1, max_size=2), places=PLACES)
def test_calls_written_rightly_are_read(
    syntax: type[CallSyntax], calls: list[Call], places: list[int]
) -> None:
    for form in formats_of(syntax):
        raw = answer_of(form, calls)
        note(f"{form.name}: {raw}")
        for pieces in ([raw], cut(raw, places), list(raw)):
            answer = whole(form, pieces)
            assert calls_of(answer) == calls
            assert (answer.content, answer.problems) == ("", ())


def slipping(syntax: type[CallSyntax]) -> Iterator[tuple[ModelFormat, list[Slip]]]:
    slips = [slip for slip in SLIPS if syntax in slip.kinds]
    # where nothing else closes the section, the end of the call does: what follows it is content
    inner = [slip for slip in slips if not slip.name.startswith("the end of a")]
    for form in formats_of(syntax):
        assert form.calls is not None
        if of_form := slips if form.calls.closer else inner:
            yield form, of_form


def slipped(slip: Slip, body: str, syntax: CallSyntax) -> str:
    return slip.write(body, syntax) or body


of_slipping_syntax = pytest.mark.parametrize(
    "syntax", [each for each in SYNTAXES if any(each in slip.kinds for slip in SLIPS)]
)


@of_slipping_syntax
@given(
    choice=st.integers(0, len(SLIPS) - 1),
    calls=st.lists(CALLS, min_size=1, max_size=2),
    places=PLACES,
)
def test_a_known_slip_means_what_was_meant_whole_and_streamed(
    syntax: type[CallSyntax],
    choice: int,
    calls: list[tuple[str, Mapping[str, object]]],
    places: list[int],
) -> None:
    for form, slips in slipping(syntax):
        raw = answer_of(form, calls, partial(slipped, slips[choice % len(slips)]))
        note(f"{form.name}: {raw}")
        for pieces in ([raw], cut(raw, places), list(raw)):
            answer = whole(form, pieces)
            assert calls_of(answer) == calls
            assert (answer.content, answer.problems) == ("", ())
        told = streamed(form, cut(raw, places))
        assert [call.name for call in told.calls] == [name for name, _ in calls]
        assert told.content == ""


PAIRS: Sequence[Sequence[Call]] = (
    [("edit", {"path": "a b", "text": "x"}), ("f", {"n": "y"})],
    [("now", {}), ("edit", {"path": "a b"})],
    [("edit", {"path": "a", "wholly": True}), ("now", {})],
)


@of_slipping_syntax
def test_a_slip_in_each_of_two_calls_loses_neither(syntax: type[CallSyntax]) -> None:
    for form, slips in slipping(syntax):
        for slip in slips:
            for calls in PAIRS:
                raw = answer_of(form, calls, partial(slipped, slip))
                answer = whole(form, [raw])
                assert (slip.name, calls_of(answer)) == (slip.name, calls), raw
                assert (answer.content, answer.problems) == ("", ())


def with_closer() -> list[tuple[ModelFormat, CallFormat]]:
    return [(form, form.calls) for form in all_formats() if form.calls and form.calls.closer]


@pytest.mark.parametrize("gap", ["", "\n"])
def test_the_end_of_a_section_twice_is_no_content(gap: str) -> None:
    for form, shape in with_closer():
        closer = shape.closer
        call = answer_of(form, [("edit", {"path": "m"})])
        for pieces in ([f"{call}{gap}{closer}"], list(f"{call}{gap}{closer}")):
            answer = whole(form, pieces)
            assert (calls_of(answer), answer.content.strip()) == ([("edit", {"path": "m"})], "")
            told = streamed(form, pieces)
            assert (len(told.calls), told.content.strip()) == (1, "")
        later = whole(form, [f"{call}\nIt ends with {closer}, always."])
        assert "It ends with" in later.content
        assert later.content.endswith(", always.")


def test_a_last_value_without_an_end_ends_with_its_section() -> None:
    for form, shape in with_closer():
        syntax = shape.syntax
        if not (isinstance(syntax, TaggedCalls) and shape.one_a_section):
            continue
        raw = answer_of(form, [("edit", {"path": "m", "text": "x"})])
        before, _, after = raw.rpartition(syntax.value_end)
        for rest in (after, "\n" + shape.closer):
            text = before.removesuffix(syntax.value_blank) + "\n" + rest.lstrip("\n")
            answer = whole(form, list(text))
            (call,) = answer.tool_calls
            assert isinstance(call.arguments, dict), form.name
            assert call.arguments["path"] == "m"
            assert str(call.arguments["text"]).strip() == "x"
            assert answer.content == ""
