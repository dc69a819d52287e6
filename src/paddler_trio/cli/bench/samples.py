"""The fate of one request, as the client saw it. Pure.

Times are seconds of one monotonic clock. A *gap* is the time between two pieces of text of one
answer: the inter-token latency, if the server sends each token as soon as there is one.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Final

import attrs


class FailureKind(StrEnum):
    """The part of a request that failed; a status has its number behind it."""

    connect = "connect"
    """No connection, or no TLS."""
    status = "status"
    """The answer's status is not 200."""
    event = "error event"
    """The stream began, and ended with an error in it."""
    broken = "broken off"
    """The connection ended before the answer did."""
    protocol = "protocol"
    """What came is no HTTP, or no stream of chat completion chunks."""
    empty = "no text"
    """The stream ended in order without text, and no token was counted: tokens that a server does
    not show, such as reasoning, are an answer without a first one."""
    timeout = "timeout"
    """It was not over in time."""


@attrs.frozen
class Failure:
    """Why a request failed. ``status``: of the answer, 0 if there was none. ``text``: the server's
    words, or the operating system's; foreign text."""

    kind: FailureKind
    text: str
    status: int = 0

    @property
    def label(self) -> str:
        """The words that failures are counted by."""
        return f"status {self.status}" if self.kind is FailureKind.status else self.kind.value


@attrs.frozen(kw_only=True)
class ServerCounts:
    """The counts that a server tells of a request; None where it does not.

    ``prompt_ms``: how long the prompt was computed, llama.cpp's ``timings.prompt_ms``.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_ms: float | None = None


NO_COUNTS: Final = ServerCounts()


@attrs.frozen(kw_only=True)
class Sample:
    """One request that is over.

    Args:
      kind: the sort of prompt, as the workload names it.
      sent_s: before its connection was opened, if it needed a new one.
      first_s: when the first text came; None if none did.
      gaps_s: in the order of the answer; doubles.
      num_pieces: pieces of text that came, for servers that do not count tokens.
    """

    kind: str
    sent_s: float
    ended_s: float
    first_s: float | None = None
    gaps_s: array[float] = attrs.field(factory=lambda: array("d"))
    num_pieces: int = 0
    counts: ServerCounts = NO_COUNTS
    failure: Failure | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def queue_s(self) -> float | None:
        """The seconds before the first token without those of its prompt: waiting for a slot
        and for the engine, and the way there and back. None if the server does not tell."""
        if self.ttft_s is None or self.counts.prompt_ms is None:
            return None
        return max(0.0, self.ttft_s - self.counts.prompt_ms / 1000)

    @property
    def completion_tokens(self) -> int:
        """The server's count, else the pieces of text."""
        told = self.counts.completion_tokens
        return self.num_pieces if told is None else told
