"""Every character of an answer arrives once, in order and in its class, however it was cut."""

from collections.abc import Iterable
from itertools import groupby, pairwise

import attrs
import pytest
from four_markers import Markers, automaton
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paddler_trio.language.answers.automaton import Piece, TokenClass

CONTENT, REASONING = TokenClass.CONTENT, TokenClass.REASONING
TOOL_CALL, UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE
QWEN = Markers("<think>", "</think>", "<tool_call>", "</tool_call>")
MISTRAL = Markers("[THINK]", "[/THINK]", "[TOOL_CALLS]", None)

steady = settings(deadline=None, derandomize=True)
awkward_markers = st.builds(
    Markers, *[st.none() | st.text(alphabet="<a", min_size=1, max_size=5) for _ in range(4)]
)
awkward_text = st.lists(
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"])
    | st.text(alphabet="<>/thinko_cal[ab", max_size=6)
    | st.text(alphabet="<a", max_size=6)
).map("".join)


def classify(
    markers: Markers, pieces: Iterable[str], opening: TokenClass = UNDETERMINABLE
) -> list[Piece]:
    classifier = automaton(markers, opening)
    return [p for piece in pieces for p in classifier.feed(piece)] + classifier.flush()


def joined(pieces: list[Piece]) -> list[tuple[TokenClass, int, str]]:
    groups = groupby(pieces, key=lambda piece: (piece.token_class, piece.section))
    return [(*key, "".join(piece.text for piece in group)) for key, group in groups]


def said(markers: Markers, text: str, opening: TokenClass = UNDETERMINABLE) -> list[object]:
    return [(c, t) for c, _, t in joined(classify(markers, [text], opening))]


@steady
@given(st.sampled_from([QWEN, MISTRAL]) | awkward_markers, awkward_text, st.data())
def test_how_the_text_is_cut_changes_nothing(
    markers: Markers, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(min_value=0, max_value=len(text)))))
    edges = [0, *cuts, len(text)]
    cut = [text[start:end] for start, end in pairwise(edges)]
    at_once = joined(classify(markers, [text]))
    assert joined(classify(markers, cut)) == at_once
    assert joined(classify(markers, text)) == at_once


@steady
@given(st.sampled_from([QWEN, MISTRAL]) | awkward_markers, awkward_text)
def test_the_pieces_are_the_text_without_the_markers_that_were_passed(
    markers: Markers, text: str
) -> None:
    assume(not any_begins_another(markers))  # else the text alone does not say which was passed
    classifier = automaton(markers)
    rest = text
    passed = 0
    for piece in [p for character in text for p in classifier.feed(character)] + classifier.flush():
        assert piece.text
        while passed < piece.section:
            rest, passed = strip_marker_before(rest, piece.text, markers), passed + 1
        assert rest.startswith(piece.text)
        rest = rest.removeprefix(piece.text)
    while passed < classifier.section:
        rest, passed = strip_marker_before(rest, "", markers), passed + 1
    assert rest == ""


def any_begins_another(markers: Markers) -> bool:
    texts = [text for text in attrs.astuple(markers) if text]
    return any(a != b and b.startswith(a) for a in texts for b in texts)


def strip_marker_before(rest: str, following: str, markers: Markers) -> str:
    texts = [markers.reasoning_open, markers.reasoning_close, markers.tool_open, markers.tool_close]
    found = [marker for marker in texts if marker and rest.startswith(marker)]
    assert found, f"{rest!r} should start with a marker before {following!r}"
    return rest.removeprefix(min(found, key=len))


@steady
@given(awkward_text)
def test_what_is_held_back_could_still_become_a_marker(text: str) -> None:
    markers = [QWEN.reasoning_open, QWEN.reasoning_close, QWEN.tool_open, QWEN.tool_close]
    classifier = automaton(QWEN)
    for character in text:
        classifier.feed(character)
        held = classifier.held_back
        assert any(m is not None and m.startswith(held) and m != held for m in markers)


@pytest.mark.parametrize(
    ("markers", "text"),
    [
        (Markers("<a<<", None, "a", None), "<a<<x"),  # one inside the other's beginning
        (Markers("<a<<", None, "a", None), "<a<x"),
        (Markers("<a", None, "<aa", None), "<aax"),  # one the beginning of the other
        (Markers("<aa", None, "<a", None), "<<aa"),
        (Markers("aa", "aa", None, None), "aaaaa"),  # opens and closes with the same text
    ],
)
def test_markers_that_overlap_are_found_alike_at_once_and_by_the_character(
    markers: Markers, text: str
) -> None:
    assert joined(classify(markers, text)) == joined(classify(markers, [text]))


def test_a_whole_answer_falls_into_its_sections() -> None:
    text = "<think>\nhm\n</think>\n\nlook<tool_call>{}</tool_call><tool_call>[]</tool_call> bye"
    pieces = joined(classify(QWEN, [text]))
    assert pieces == [
        (REASONING, 1, "\nhm\n"),
        (CONTENT, 2, "\n\nlook"),
        (TOOL_CALL, 3, "{}"),
        (TOOL_CALL, 5, "[]"),
        (CONTENT, 6, " bye"),
    ]


def test_text_that_is_no_marker_is_never_held() -> None:
    classifier = automaton(QWEN)
    assert classifier.feed("int main() {\n  return 0;\n}") != []
    assert classifier.held_back == ""
    assert [p.text for p in classifier.feed("a < b <t")] == ["a < b "]
    assert [p.text for p in classifier.feed("d>")] == ["<td>"]


def test_without_markers_everything_is_undeterminable_and_passes_at_once() -> None:
    classifier = automaton(Markers())
    assert classifier.feed("<think>") == [Piece(UNDETERMINABLE, "<think>", 0)]


def test_before_the_first_marker_nobody_can_say() -> None:
    assert said(QWEN, "hello<think>x") == [(UNDETERMINABLE, "hello"), (REASONING, "x")]


def test_a_close_marker_nobody_opened_still_ends_what_nobody_could_name() -> None:
    assert said(QWEN, "so it is 4</think>4") == [(UNDETERMINABLE, "so it is 4"), (CONTENT, "4")]


def test_a_stray_close_marker_in_content_is_text() -> None:
    assert said(QWEN, "write </think> to end", CONTENT) == [(CONTENT, "write </think> to end")]


def test_markers_inside_the_arguments_of_a_call_are_text() -> None:
    call = '{"text": "<think></think><tool_call>"}'
    assert said(QWEN, f"<tool_call>{call}</tool_call>") == [(TOOL_CALL, call)]


def test_a_call_may_start_while_reasoning() -> None:
    assert said(QWEN, "<think>a<tool_call>b</tool_call>c") == [
        (REASONING, "a"),
        (TOOL_CALL, "b"),
        (CONTENT, "c"),
    ]


def test_calls_without_a_close_marker_last_until_the_next_one_or_the_end() -> None:
    pieces = joined(classify(MISTRAL, ["ok[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}"]))
    assert pieces == [
        (UNDETERMINABLE, 0, "ok"),
        (TOOL_CALL, 1, "a[ARGS]{}"),
        (TOOL_CALL, 2, "b[ARGS]{}"),
    ]


def test_an_unfinished_marker_at_the_end_is_text() -> None:
    assert said(QWEN, "<think>a</thi") == [(REASONING, "a</thi")]
