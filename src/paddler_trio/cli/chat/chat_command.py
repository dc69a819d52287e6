"""``paddler-trio chat``: the command line of one question, or of a conversation on a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from paddler_trio.cli.balancer_http import open_http
from paddler_trio.cli.chat.chat_answer import SILENCE_S, Answer, Writer, ask, summary
from paddler_trio.cli.client_flags import InferenceFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors, print_json

CONVERSATION_PATH = "/api/v1/continue_from_conversation_history"
RAW_PROMPT_PATH = "/api/v1/continue_from_raw_prompt"
MAX_TOKENS = 2**31 - 1
"""The largest number that the field holds on the wire."""
FROM_STANDARD_INPUT = "-"


@with_flags
def chat(
    *,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="What to say; - reads it from standard input. Without it, and on a terminal, a "
            "conversation begins.",
            show_default=False,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message to put before it.")
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", min=1, max=MAX_TOKENS, help="Tokens the answer may have."),
    ] = 512,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Let the model reason first.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Continue the text as it is, without the chat template."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the answer is complete.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Keep what is typed, for the arrow keys."),
    ] = True,
    inference: InferenceFlags,
) -> None:
    """Ask the model something, or converse with it; answers are printed as they are generated."""
    if raw and (system is not None or thinking):
        raise typer.BadParameter(
            "a raw prompt has no system message and no thinking", param_hint="--raw"
        )
    if prompt is None:
        if raw or as_json:
            raise typer.BadParameter("give a PROMPT", param_hint="--raw" if raw else "--json")
        _converse(inference, system, max_tokens, thinking=thinking, keeps_history=history)
        return
    text = sys.stdin.read() if prompt == FROM_STANDARD_INPUT else prompt
    if raw:
        path, body = RAW_PROMPT_PATH, _raw_prompt(text, max_tokens)
    else:
        path, body = CONVERSATION_PATH, _conversation(text, system, max_tokens, thinking=thinking)
    with one_line_errors():
        answer, writer = Answer(), Writer(silent=as_json)
        try:
            with open_http(inference, answer_s=SILENCE_S) as http:
                ask(http, inference.address, path, body, answer=answer, writer=writer)
        finally:
            writer.end()  # an error, or the prompt of the shell, starts on a line of its own
        if as_json:
            print_json(_told(answer))
        elif writer.aside.is_terminal:
            writer.aside.print(Text(summary(answer), style="dim"))


def _converse(
    inference: InferenceFlags,
    system: str | None,
    max_tokens: int,
    *,
    thinking: bool,
    keeps_history: bool,
) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter(
            "give one, or - to read it from standard input; a conversation needs a terminal",
            param_hint="PROMPT",
        )
    from paddler_trio.cli.chat.chat_session import (
        ChatSession,
        Conversation,
        LineReader,
        history_file,
    )

    conversation = Conversation(system=system, max_tokens=max_tokens, thinking=thinking)
    with (
        one_line_errors(),
        open_http(inference, answer_s=SILENCE_S) as http,
        LineReader(history_file() if keeps_history else None) as lines,
    ):
        ChatSession(http, inference.address, lines, conversation).run()


def _conversation(
    text: str, system: str | None, max_tokens: int, *, thinking: bool
) -> dict[str, object]:
    said = [] if system is None else [{"role": "system", "content": system}]
    return {
        "add_generation_prompt": True,
        "conversation_history": [*said, {"role": "user", "content": text}],
        "enable_thinking": thinking,
        "max_tokens": max_tokens,
    }


def _raw_prompt(text: str, max_tokens: int) -> dict[str, object]:
    return {"raw_prompt": text, "max_tokens": max_tokens}


def _told(answer: Answer) -> dict[str, object]:
    return {
        "content": answer.content,
        "reasoning": answer.reasoning,
        "generated_by": answer.generated_by,
        "usage": answer.usage,
        "tokens_per_s": answer.tokens_per_s,
    }
