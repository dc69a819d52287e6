"""Reading a whole answer in pieces, as the tests of answers that are not quite right do."""

from __future__ import annotations

from collections.abc import Iterable

from answer_cases import TOOLS

from paddler_trio.language.answers.format_detection import known_format
from paddler_trio.language.answers.tool_calls import ToolSet
from paddler_trio.language.answers.whole_answer import AnswerReader, WholeAnswer

TOOL_SET = ToolSet(TOOLS)


def read(template: str, pieces: Iterable[str], *, is_partial: bool = False) -> WholeAnswer:
    """What these pieces mean to the family of ``template``; a text is cut into its characters."""
    form = known_format(template)
    assert form is not None
    reader = AnswerReader(form, TOOL_SET)
    for piece in pieces:
        reader.feed(piece)
    return reader.end(is_partial=is_partial)


def meaning(answer: WholeAnswer) -> tuple[object, ...]:
    return answer.content, [(call.name, call.arguments) for call in answer.tool_calls]
