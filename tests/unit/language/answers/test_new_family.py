"""A new model family is one entry: recognition, reading and grammar follow from it."""

from __future__ import annotations

from answer_cases import TOOLS
from grammar_engine import engine_of

from paddler_trio.language.answer_grammar import grammar_of_answer
from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.families import FAMILIES, Family
from paddler_trio.language.answers.format_detection import known_format
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.trio.work import ConversationPrompt

LARK = Family(
    mentions=("<lark:calls>", "<lark:end>"),
    format=ModelFormat(
        name="lark",
        reasoning_open="<lark:mull>",
        reasoning_close="</lark:mull>",
        calls=CallFormat(
            opener="<lark:calls>",
            closer="<lark:end>",
            syntax=TaggedCalls(
                before_name="<do ",
                name_end=">",
                before_key="<with ",
                key_end=">",
                value_end="</with>",
                call_end="</do>",
            ),
        ),
    ),
)
TEMPLATE = "{# <tool_call> #}{{ messages }}<lark:calls><lark:end>"
REASONING = "<lark:mull>It rains?</lark:mull>"
CALL = "<lark:calls>\n<do weather>\n<with city>Paris</with>\n</do>\n<lark:end>"


def test_the_entry_is_found_and_no_other_family_changes() -> None:
    assert known_format(TEMPLATE) is None
    assert known_format(TEMPLATE, (LARK, *FAMILIES)) is LARK.format
    assert known_format("<tool_call>", (LARK, *FAMILIES)) == known_format("<tool_call>")


def test_answers_are_read_however_they_are_cut() -> None:
    form = LARK.format_of(TEMPLATE)
    answer = f"{REASONING}I look. {CALL}"
    for size in (1, 2, 7, len(answer)):
        reader = AnswerReader(form, TOOLS)
        for start in range(0, len(answer), size):
            reader.feed(answer[start : start + size])
        whole = reader.end()
        assert (whole.reasoning, whole.content.strip()) == ("It rains?", "I look.")
        calls = [(call.name, call.arguments) for call in whole.tool_calls]
        assert calls == [("weather", {"city": "Paris"})]
        assert not whole.problems


def test_a_required_call_is_written_as_the_entry_says(vocabulary: Vocabulary) -> None:
    start = AnswerStart(LARK.format_of(TEMPLATE), opening=TokenClass.UNDETERMINABLE)
    conversation = ConversationPrompt(messages=(), tools=tuple(TOOLS), tool_choice="required")
    grammar = grammar_of_answer(None, conversation, start, vocabulary)
    assert grammar is not None
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(CALL)
    assert engine.accepts(f"{REASONING}{CALL}")
    assert not engine.accepts(CALL.replace("do weather", "do whether"))
    assert not engine.accepts("<tool_call>")
