"""``paddler-trio template parse``: what an agent would read out of a raw answer."""

from __future__ import annotations

import codecs
import json
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.template.template_input import (
    STDIN,
    ConversationFlags,
    GenerationPromptOption,
    OptionalMessagesOption,
    TemplateFlags,
    read_conversation,
    read_templates,
    take_special_tokens,
)
from paddler_trio.cli.terminal import one_line_errors

if TYPE_CHECKING:
    from paddler_trio.language.templates.conversation import ModelTemplates
    from paddler_trio.wire.trio.work import ConversationPrompt

MAX_PIECE_BYTES = 12


@with_flags
def parse(
    *,
    messages: OptionalMessagesOption = None,
    template: TemplateFlags,
    asked: ConversationFlags,
    add_generation_prompt: GenerationPromptOption = True,
    split: Annotated[
        int | None,
        typer.Option(
            "--split",
            metavar="SEED",
            help="Feed the answer in random pieces of bytes, as a model would.",
            show_default="all at once",
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="The answer was cut off: give unfinished calls too.")
    ] = False,
) -> None:
    """Read a raw answer of the model on standard input; print what it means, as JSON.

    The conversation decides how the answer begins, for instance inside an open reasoning section.
    Without messages, one turn of a user is taken.
    """
    with one_line_errors():
        if messages == STDIN:
            raise typer.BadParameter("standard input is the answer", param_hint="--messages")
        templates = read_templates(template)
        conversation = read_conversation(
            messages, asked, add_generation_prompt=add_generation_prompt
        )
        conversation, templates = take_special_tokens(conversation, templates)
        shown = _meaning(
            conversation,
            templates,
            sys.stdin.buffer.read(),
            may_reason=asked.thinking is None,
            seed=split,
            is_partial=partial,
        )
        sys.stdout.buffer.write(json.dumps(shown, ensure_ascii=False, indent=2).encode() + b"\n")
        sys.stdout.buffer.flush()


def _meaning(
    conversation: ConversationPrompt,
    templates: ModelTemplates,
    raw: bytes,
    *,
    may_reason: bool,
    seed: int | None,
    is_partial: bool,
) -> dict[str, object]:
    """Read an answer to a conversation, in random pieces if there is a seed."""
    from paddler_trio.language.answers.turns import (
        rendered_prompt,
        turn_ends_of,
        without_turn_end,
    )
    from paddler_trio.language.answers.whole_answer import AnswerReader
    from paddler_trio.language.templates.conversation import prepare_conversation

    prepared = prepare_conversation(conversation, templates)
    _, start = rendered_prompt(conversation, prepared)
    form = start.form
    reader = AnswerReader(
        form, conversation.tools, prompt_end=start.prompt_end, may_reason=may_reason
    )
    ends = turn_ends_of(prepared.model.template, form, eos_token=templates.eos_token)
    whole = without_turn_end(raw.decode("utf-8", errors="surrogateescape"), ends)
    data = whole.encode("utf-8", errors="surrogateescape")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in [data] if seed is None else _pieces(data, random.Random(seed)):  # noqa: S311
        reader.feed(decoder.decode(piece))
    reader.feed(decoder.decode(b"", final=True))
    answer = reader.end(is_partial=is_partial)
    shown: dict[str, object] = {
        "content": answer.content,
        "reasoning": answer.reasoning,
        "tool_calls": [
            {"name": call.name, "arguments": call.arguments, "id": call.id}
            for call in answer.tool_calls
        ],
        "format": form.name,
    }
    if answer.problems:
        shown["problems"] = list(answer.problems)
    return shown


def _pieces(data: bytes, dice: random.Random) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        size = dice.randint(1, MAX_PIECE_BYTES)
        yield data[start : start + size]
        start += size
