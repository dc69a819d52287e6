"""One answer of a model, as it is generated.

The answer goes to standard output and nothing else does; the model's reasoning goes to standard
error, dimmed on a terminal, as do token counts and errors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import attrs
import httpx
from rich.console import Console
from rich.text import Text

from paddler_trio.cli.balancer_http import (
    BalancerRefusedError,
    clear_errors,
    lines_of,
    refuse_unless_success,
)
from paddler_trio.cli.terminal import printable, stderr
from paddler_trio.errors import PaddlerError

SILENCE_S: Final = 600.0
"""The balancer ends a silent request long before; this is for a balancer that vanished."""


class AnswerFailedError(PaddlerError):
    """The request ended with an error instead of an answer."""


@attrs.define
class Answer:
    """An answer so far. Times are monotonic seconds; ``usage`` is the server's, at the end."""

    content: str = ""
    reasoning: str = ""
    generated_by: str | None = None
    usage: dict[str, int] | None = None
    timings: dict[str, float] | None = None
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
        """Generation speed, as the engine measured it, else from the first token to the last; None
        for too short an answer."""
        timings = self.timings or {}
        if (ms := timings.get("predicted_ms", 0)) > 0 and self.completion_tokens > 1:
            return 1000 * timings.get("predicted_n", 0) / ms
        if self.first_token_s is None or self.last_token_s is None or self.completion_tokens < 2:
            return None
        elapsed_s = self.last_token_s - self.first_token_s
        return (self.completion_tokens - 1) / elapsed_s if elapsed_s > 0 else None


def ask(
    http: httpx.Client,
    address: str,
    path: str,
    body: Mapping[str, object],
    *,
    answer: Answer,
    writer: Writer,
) -> None:
    """Send a request and read its answer to the end.

    Leaving early closes the connection, which stops the request; `answer` has what came by then.

    Errors:
      BalancerUnreachableError, BalancerRefusedError: there is no answer.
      AnswerFailedError: it ended with an error.
    """
    with clear_errors(address), http.stream("POST", path, json=body) as stream:
        if stream.status_code == HTTPStatus.NOT_FOUND and not stream.read().strip():
            raise BalancerRefusedError(404, f"{address} is not the inference service of a balancer")
        refuse_unless_success(stream)
        for line in lines_of(stream.iter_bytes()):
            if line:
                _take(line, answer, writer)
    if answer.usage is None:
        raise AnswerFailedError("the answer broke off: the balancer closed the stream")


def _take(line: str, answer: Answer, writer: Writer) -> None:
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
    if kind == "Progress":
        return
    match kind, value:
        case "Done", {"usage": usage}:
            answer.usage, answer.timings = usage, value.get("timings")
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
class Writer:
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


def summary(answer: Answer) -> str:
    """Return who answered, and how many tokens that took."""
    usage = answer.usage or {}
    parts = [f"{usage.get('prompt_tokens', 0)} prompt tokens"]
    if cached := usage.get("cached_prompt_tokens"):
        parts[0] += f" ({cached} cached)"
    parts.append(f"{answer.completion_tokens} generated")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    return printable(f"[{answer.generated_by or 'unnamed agent'}: {', '.join(parts)}]")
