"""``paddler-trio chat``: one question, its answer as it is generated.

The answer goes to standard output and nothing else does; the model's reasoning goes to standard
error, dimmed on a terminal, as do token counts and errors.
"""

from __future__ import annotations

import json
import sys
import time
from http import HTTPStatus
from typing import Annotated

import attrs
import typer
from rich.console import Console
from rich.text import Text

from paddler_trio.cli.answer_lines import lines_of
from paddler_trio.cli.balancer_http import (
    BalancerRefusedError,
    clear_errors,
    open_http,
    refuse_unless_success,
)
from paddler_trio.cli.client_flags import InferenceFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stderr
from paddler_trio.errors import PaddlerError

CONVERSATION_PATH = "/api/v1/continue_from_conversation_history"
RAW_PROMPT_PATH = "/api/v1/continue_from_raw_prompt"
SILENCE_S = 600.0
"""The balancer ends a silent request long before; this is for a balancer that vanished."""
MAX_TOKENS = 2**31 - 1
"""What the field holds on the wire."""
FROM_STANDARD_INPUT = "-"


class AnswerFailedError(PaddlerError):
    """The request ended with an error instead of an answer."""


@attrs.define
class Answer:
    """What came so far. Times are monotonic seconds; ``usage`` is the server's, at the end."""

    content: str = ""
    reasoning: str = ""
    generated_by: str | None = None
    usage: dict[str, int] | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def completion_tokens(self) -> int:
        """Everything the model wrote."""
        kinds = ("content", "reasoning", "tool_call", "undeterminable")
        usage = self.usage or {}
        return sum(usage.get(f"{kind}_tokens", 0) for kind in kinds)

    @property
    def tokens_per_s(self) -> float | None:
        """Generation speed from the first token to the last; None for too short an answer."""
        if self.first_token_s is None or self.last_token_s is None or self.completion_tokens < 2:
            return None
        elapsed_s = self.last_token_s - self.first_token_s
        return (self.completion_tokens - 1) / elapsed_s if elapsed_s > 0 else None


@with_flags
def chat(
    *,
    prompt: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
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
    inference: InferenceFlags,
) -> None:
    """Ask the model something; the answer is printed as it is generated."""
    if raw and (system is not None or thinking):
        raise typer.BadParameter(
            "a raw prompt has no system message and no thinking", param_hint="--raw"
        )
    text = sys.stdin.read() if prompt == FROM_STANDARD_INPUT else prompt
    if raw:
        path, body = RAW_PROMPT_PATH, _raw_prompt(text, max_tokens)
    else:
        path, body = CONVERSATION_PATH, _conversation(text, system, max_tokens, thinking=thinking)
    with one_line_errors():
        writer = _Writer(silent=as_json)
        try:
            answer = _ask(inference, path, body, writer)
        finally:
            writer.end()  # an error, or the prompt of the shell, starts on a line of its own
        if as_json:
            print_json(_told(answer))
        elif writer.aside.is_terminal:
            writer.aside.print(Text(_summary(answer), style="dim"))


def _ask(
    inference: InferenceFlags,
    path: str,
    body: dict[str, object],
    writer: _Writer,
) -> Answer:
    """Send it and read the answer to its end; leaving early closes the connection, which stops
    the request."""
    answer = Answer()
    address = inference.address
    with (
        open_http(inference, answer_s=SILENCE_S) as http,
        clear_errors(address),
        http.stream("POST", path, json=body) as stream,
    ):
        if stream.status_code == HTTPStatus.NOT_FOUND:
            raise BalancerRefusedError(404, f"{address} is not the inference service of a balancer")
        refuse_unless_success(stream)
        for line in lines_of(stream.iter_bytes()):
            if line:
                _take(line, answer, writer)
    if answer.usage is None:
        raise AnswerFailedError("the answer broke off: the balancer closed the stream")
    return answer


def _take(line: str, answer: Answer, writer: _Writer) -> None:
    """One line of the stream; AnswerFailedError if it is an error."""
    try:
        message = json.loads(line)
        if "Error" in message:
            error = message["Error"]["error"]
            raise AnswerFailedError(f"the answer failed ({error['code']}): {error['description']}")
        answer.generated_by = message["Response"]["generated_by"]
        ((kind, value),) = message["Response"]["response"]["GeneratedToken"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AnswerFailedError(f"the balancer sent what is no answer: {line[:120]}") from error
    match kind, value:
        case "Done", {"usage": usage}:
            answer.usage = usage
            return
        case "ReasoningToken", str():
            answer.reasoning += value
            writer.reasoning(value)
        case (("ContentToken" | "UndeterminableToken" | "ToolCallToken"), str()):
            answer.content += value
            writer.content(value)
        case _:
            details = value if isinstance(value, str) else json.dumps(value)
            raise AnswerFailedError(f"the answer failed ({kind}): {details}")
    now_s = time.monotonic()
    answer.first_token_s = now_s if answer.first_token_s is None else answer.first_token_s
    answer.last_token_s = now_s


@attrs.define
class _Writer:
    """Puts pieces where they belong, at once; keeps track of where the cursor is."""

    silent: bool
    aside: Console = attrs.field(factory=stderr, init=False)
    _reasoning_is_open: bool = attrs.field(default=False, init=False)
    _line_is_open: bool = attrs.field(default=False, init=False)

    def reasoning(self, piece: str) -> None:
        if not self.silent:
            self.aside.print(Text(printable(piece), style="dim"), end="")
            self._reasoning_is_open = not piece.endswith("\n")

    def content(self, piece: str) -> None:
        if self.silent:
            return
        self._end_reasoning()
        # a pipe gets the very text, control characters included
        sys.stdout.write(printable(piece) if sys.stdout.isatty() else piece)
        sys.stdout.flush()
        self._line_is_open = not piece.endswith("\n")

    def end(self) -> None:
        self._end_reasoning()
        if self._line_is_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._line_is_open = False

    def _end_reasoning(self) -> None:
        if self._reasoning_is_open:
            self.aside.print()
        self._reasoning_is_open = False


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


def _summary(answer: Answer) -> str:
    usage = answer.usage or {}
    parts = [f"{usage.get('prompt_tokens', 0)} prompt tokens"]
    if cached := usage.get("cached_prompt_tokens"):
        parts[0] += f" ({cached} cached)"
    parts.append(f"{answer.completion_tokens} generated")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    return printable(f"[{answer.generated_by or 'unnamed agent'}: {', '.join(parts)}]")


def _told(answer: Answer) -> dict[str, object]:
    return {
        "content": answer.content,
        "reasoning": answer.reasoning,
        "generated_by": answer.generated_by,
        "usage": answer.usage,
        "tokens_per_s": answer.tokens_per_s,
    }
