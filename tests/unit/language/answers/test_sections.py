# ruff: noqa: E501, ISC004 - the two values of a case are told apart by its parentheses
"""The automaton's invariants with headers, kept openers and probes; and where answers begin and end."""

from __future__ import annotations

import itertools

import pytest
from answer_cases import CASES, TOOLS
from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.language.answers.automaton import Automaton, Piece, TokenClass
from paddler_trio.language.answers.bare_calls import MAX_HELD_CHARS, probe_of
from paddler_trio.language.answers.call_syntax import QWEN_CODER
from paddler_trio.language.answers.format_detection import format_of, known_format
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import ToolSet
from paddler_trio.language.answers.turns import prompt_end, turn_ends_of, without_turn_end
from paddler_trio.language.answers.value_tracker import StringTracker, ValueTracker
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import Markers

steady = settings(deadline=None, derandomize=True)
TOOL_SET = ToolSet(TOOLS)
TEMPLATES = sorted({case.template for case in CASES})
FORMS: list[ModelFormat] = [form for form in map(known_format, TEMPLATES) if form is not None]
MARKS = sorted(
    {mark for form in FORMS for kind in TokenClass for mark in form.rules.markers_of(kind).texts}
)

forms = st.sampled_from(FORMS)
texts = st.lists(
    st.sampled_from(MARKS)
    | st.sampled_from(MARKS).flatmap(lambda mark: st.integers(1, len(mark)).map(lambda n: mark[:n]))
    | st.text(max_size=8)
    | st.sampled_from(
        ['{"name": "now"', "assistant", "weather\n", " to=functions.now", "<|message|>"]
    ),
    max_size=8,
).map("".join)


def classify(form: ModelFormat, pieces: list[str]) -> list[Piece]:
    automaton = Automaton(form.rules, probe=probe_of(form, TOOL_SET.validators))
    return [p for piece in pieces for p in automaton.feed(piece)] + automaton.flush()


def joined(pieces: list[Piece]) -> list[tuple[object, ...]]:
    def key(piece: Piece) -> tuple[object, ...]:
        return piece.token_class, piece.section, piece.recipient, piece.came_from

    return [(*k, "".join(p.text for p in group)) for k, group in itertools.groupby(pieces, key)]


def cut(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]


@steady
@given(forms, texts, st.data())
def test_how_a_text_is_cut_changes_no_section(
    form: ModelFormat, text: str, data: st.DataObject
) -> None:
    at_once = joined(classify(form, [text]))
    assert joined(classify(form, cut(text, data))) == at_once
    assert joined(classify(form, list(text))) == at_once


@steady
@given(forms, texts)
def test_the_pieces_are_the_text_with_only_markers_missing(form: ModelFormat, text: str) -> None:
    rest = text
    for piece in classify(form, [text]):
        place = rest.find(piece.text)
        assert place >= 0
        rest = rest[place + len(piece.text) :]
    shown = sum(len(piece.text) for piece in classify(form, [text]))
    sections = classify(form, [text])
    if not sections or sections[-1].section == 0:
        markers = form.rules.markers_of(TokenClass.UNDETERMINABLE)
        assert shown == len(text) or markers.search(text) is not None


@steady
@given(forms, texts)
def test_what_is_held_back_is_short(form: ModelFormat, text: str) -> None:
    automaton = Automaton(form.rules, probe=probe_of(form, TOOL_SET.validators))
    for character in text:
        automaton.feed(character)
        assert len(automaton.held_back) <= MAX_HELD_CHARS


@steady
@given(forms, texts, st.data())
def test_no_answer_is_more_than_its_meaning(
    form: ModelFormat, text: str, data: st.DataObject
) -> None:
    answers = []
    for pieces in ([text], cut(text, data)):
        reader = AnswerReader(form, TOOL_SET)
        for piece in pieces:
            reader.feed(piece)
        answer = reader.end(is_partial=True)
        answers.append(
            (answer.content, answer.reasoning, [(c.name, c.arguments) for c in answer.tool_calls])
        )
    assert answers[0] == answers[1]


# ------------------------------------------------------------------------------------- beginnings


def test_a_marker_that_the_prompt_begins_is_completed_by_the_answer() -> None:
    form = known_format("<|start|><|channel|><|message|>")
    assert form is not None
    automaton = Automaton(form.rules)
    automaton.begin_with("<|end|><|start|>assistant")
    [piece] = automaton.feed("<|channel|>analysis<|message|>hm")
    assert (piece.token_class, piece.text) == (TokenClass.REASONING, "hm")


def test_the_end_of_the_prompt_is_never_shown() -> None:
    form = known_format("<|start|><|channel|><|message|>")
    assert form is not None
    automaton = Automaton(form.rules)
    automaton.begin_with("<|start|>assistant")
    pieces = automaton.feed(" is a word") + automaton.flush()
    assert "".join(piece.text for piece in pieces) == " is a word"


HERMES = known_format("<tool_call></tool_call><think></think>")


@pytest.mark.parametrize(
    ("with_prompt", "without", "last_text", "expected"),
    [
        ("<u>hi</u><a><think>\n", "<u>hi</u>", "hi", "<a><think>\n"),
        ("<u>hi</u><think>\n", "<u>hi</u></s>", "hi", "<think>\n"),
        ("<u>hi</u><a>", "<u>hi</u><a>", "hi", "</u><a>"),
        ("<u><think></u><a>", "<u><think></u>", "<think>", "<a>"),
    ],
)
def test_only_the_end_of_the_prompt_is_looked_at(
    with_prompt: str, without: str, last_text: str, expected: str
) -> None:
    assert HERMES is not None
    assert prompt_end(with_prompt, without, HERMES, last_text=last_text) == expected


# ---------------------------------------------------------------------------------------- endings

CHATML = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_marks_that_end_a_turn_are_no_part_of_the_answer() -> None:
    template = ChatTemplate.compile(CHATML)
    ends = turn_ends_of(template, format_of(template))
    assert "<|im_end|>" in ends
    assert without_turn_end("Hi.<|im_end|>\n", ends) == "Hi."
    assert without_turn_end("<|im_end|> is a mark.\n", ends) == "<|im_end|> is a mark.\n"


def test_an_ending_nobody_knows_is_found_by_rendering() -> None:
    template = ChatTemplate.compile("{% for m in messages %}{{ m.content }}<|over|>{% endfor %}")
    assert turn_ends_of(template, format_of(template)) == ["<|over|>"]


# ------------------------------------------------------------------------- formats of no family


PROBED = """{%- for m in messages -%}
<|{{ m.role }}|>{% if m.reasoning_content %}<ponder>{{ m.reasoning_content }}</ponder>{% endif -%}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}CALLS{% endfor %}<|stop|>
{%- endfor -%}"""


@pytest.mark.parametrize(
    ("calls", "raw"),
    [
        (
            '<act>{"tool": "{{ call.function.name }}", "with": {{ call.function.arguments|tojson }}}</act>',
            '<act>{"tool": "weather", "with": {"city": "Bern"}}</act>',
        ),
        (
            '<act>[{"{{ call.function.name }}": {{ call.function.arguments|tojson }}}]</act>',
            '<act>[{"weather": {"city": "Bern"}}]</act>',
        ),
        (
            "<act><do>{{ call.function.name }}<with>{{ call.function.arguments|tojson }}</do></act>",
            '<act><do>weather<with>{"city": "Bern"}</do></act>',
        ),
        (
            "<act>{{ call.function.name }}({% for k, v in call.function.arguments.items() %}{{ k }}"
            "={{ v|tojson }}{% if not loop.last %}, {% endif %}{% endfor %})</act>",
            '<act>weather(city="Bern")</act>',
        ),
        (
            "<act><do={{ call.function.name }}>{% for k, v in call.function.arguments.items() %}"
            "<arg={{ k }}>{{ v }}</arg>{% endfor %}</do></act>",
            "<act><do=weather><arg=city>Bern</arg></do></act>",
        ),
    ],
)
def test_a_format_nobody_knows_is_found_by_rendering_probes(calls: str, raw: str) -> None:
    form = format_of(ChatTemplate.compile(PROBED.replace("CALLS", calls)))
    assert (form.name, form.reasoning_open, form.reasoning_close) == (
        "probed",
        "<ponder>",
        "</ponder>",
    )
    assert form.calls is not None
    assert (form.calls.opener, form.calls.closer) == ("<act>", "</act>")
    reader = AnswerReader(form, TOOL_SET)
    for character in f"<ponder>t</ponder>c{raw}":
        reader.feed(character)
    answer = reader.end()
    assert (answer.reasoning, answer.content) == ("t", "c")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("weather", {"city": "Bern"})
    ]


def test_a_model_without_any_way_to_call_tools_may_write_json() -> None:
    form = format_of(ChatTemplate.compile(CHATML))
    reader = AnswerReader(form, TOOL_SET)
    reader.feed('{"name": "now", "arguments": {}}')
    assert [call.name for call in reader.end().tool_calls] == ["now"]


def test_markers_that_an_operator_sets_count_more_than_the_template() -> None:
    template = ChatTemplate.compile(CHATML + "{# #}<think></think>")
    form = format_of(
        template, Markers(reasoning_open="<a>", reasoning_close="</a>", tool_open="<b>")
    )
    reader = AnswerReader(form, TOOL_SET)
    reader.feed('<a>t</a>c<b>{"name": "now"}')
    answer = reader.end()
    assert (answer.reasoning, answer.content) == ("t", "c")
    assert [call.name for call in answer.tool_calls] == ["now"]
    none = format_of(template, Markers(reasoning_close="", tool_open=""))
    assert not none.reasons
    assert none.calls is None
    endless = format_of(ChatTemplate.compile(CHATML), Markers(reasoning_open="<a>"))
    assert endless.reasoning_open is None


def test_a_forgotten_quote_does_not_cost_the_next_call() -> None:
    assert HERMES is not None
    reader = AnswerReader(HERMES, TOOL_SET)
    reader.feed('<tool_call>{"name": "now", "arguments": {"a": "b}}</tool_call>')
    reader.feed('<tool_call>{"name": "now", "arguments": {"a": "b\n}</tool_call>')
    reader.feed('<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>')
    answer = reader.end()
    assert [call.name for call in answer.tool_calls] == ["weather"]
    assert len(answer.problems) == 2


@steady
@given(st.text('"\\\n}a '), st.data())
def test_how_a_text_is_cut_changes_no_string(text: str, data: st.DataObject) -> None:
    at_once, in_pieces = StringTracker(), StringTracker()
    at_once.feed(text)
    for piece in cut(text, data):
        in_pieces.feed(piece)
    assert at_once.is_inside == in_pieces.is_inside


tags = st.lists(
    st.sampled_from(
        [
            "<parameter=a>",
            "</parameter>",
            "</func",
            "tion>",
            "<function=f>",
            "<para",
            " ",
            "\n",
            "x",
        ]
    )
).map("".join)


@steady
@given(tags, st.data())
def test_how_a_text_with_tags_is_cut_changes_nothing_about_its_values(
    text: str, data: st.DataObject
) -> None:
    at_once, in_pieces = ValueTracker(QWEN_CODER), ValueTracker(QWEN_CODER)
    at_once.feed(text)
    for piece in cut(text, data):
        in_pieces.feed(piece)
    assert at_once.is_inside == in_pieces.is_inside


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ("<function=f><parameter=a>x", True),
        ("<function=f><parameter=a>x</parameter> and", True),
        ("<function=f><parameter=a>x</parameter>\n", False),
        ("<function=f><parameter=a>x</parameter>\n<parameter=b>", True),
        ("<function=f><parameter=a>x</parameter>\n</function>", False),
        ("<function=f><parameter=a>never closed</function>\n", False),
        ("<function=f><parameter=a>x</func tion>", True),
    ],
)
def test_a_value_ends_where_an_argument_or_the_end_of_the_call_follows(
    text: str, is_inside: bool
) -> None:
    for pieces in ([text], list(text)):
        tracker = ValueTracker(QWEN_CODER)
        for piece in pieces:
            tracker.feed(piece)
        assert tracker.is_inside is is_inside
