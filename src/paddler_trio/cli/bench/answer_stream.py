"""The body of a streamed chat completion, piece by piece, with the times of arrival. Pure.

Source:
  OpenAI's chat completion chunks; ``reasoning_content`` as llama.cpp and vLLM send it,
  ``reasoning`` as Ollama does; ``timings`` are llama.cpp's.
"""

from __future__ import annotations

import json
from array import array
from typing import Final

import attrs

from paddler_trio.cli.bench.samples import NO_COUNTS, Failure, FailureKind, ServerCounts

MAX_LINE_BYTES: Final = 1 << 20
MAX_ERROR_CHARS: Final = 300
MAX_COUNT: Final = 1 << 40
"""Of tokens and milliseconds; what is more is no count."""
_TEXTS: Final = ("content", "reasoning_content", "reasoning")


@attrs.define
class AnswerStream:
    """Feed it what comes; ``failure`` is set when no more needs to be read."""

    first_s: float | None = None
    num_pieces: int = 0
    gaps_s: array[float] = attrs.field(factory=lambda: array("d"))
    counts: ServerCounts = NO_COUNTS
    failure: Failure | None = None
    is_done: bool = False
    """The stream said that it has ended."""
    _last_s: float = 0.0
    _rest: bytes = b""

    def receive(self, now_s: float, data: bytes) -> None:
        """Bytes of the body that came at ``now_s``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(now_s, line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._fail(FailureKind.protocol, f"a line of more than {MAX_LINE_BYTES} bytes")

    def end(self, now_s: float) -> None:
        """The body is over: in order, or it failed."""
        if self._rest:
            self.receive(now_s, b"\n")
        if not self.is_done:
            self._fail(FailureKind.broken, "the stream ended without its last event")
        elif self.first_s is None and not self.counts.completion_tokens:
            self._fail(FailureKind.empty, "the answer has no text")

    def _line(self, now_s: float, line: bytes) -> None:
        if not line.startswith(b"data:") or self.failure is not None:
            return  # an empty line, a comment, the name of an event
        data = line[5:].strip()
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            self._fail(FailureKind.protocol, f"an event is no JSON: {_words(data)}")
            return
        if not isinstance(chunk, dict):
            self._fail(FailureKind.protocol, f"an event is no object: {_words(data)}")
        elif chunk.get("error") is not None:
            self._fail(FailureKind.event, error_text(chunk))
        else:
            self._chunk(now_s, chunk)

    def _chunk(self, now_s: float, chunk: dict[str, object]) -> None:
        if chunk.get("usage") is not None or chunk.get("timings") is not None:
            self.counts = merged_counts(self.counts, chunk)
        if not has_text(chunk):
            return
        self.num_pieces += 1
        if self.first_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def _fail(self, kind: FailureKind, text: str) -> None:
        if self.failure is None:
            self.failure = Failure(kind, text)


def has_text(chunk: dict[str, object]) -> bool:
    """Return whether a chunk has a token that somebody could read."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict):
        return False
    return any(delta.get(name) for name in _TEXTS) or bool(delta.get("tool_calls"))


def merged_counts(known: ServerCounts, chunk: dict[str, object]) -> ServerCounts:
    """Return what is known together with what ``usage`` and ``timings`` of a chunk add to it."""
    usage, timings = _member(chunk, "usage"), _member(chunk, "timings")
    details = _member(usage, "prompt_tokens_details")
    cached = _count(details.get("cached_tokens"))
    predicted, prompt_ms = _count(timings.get("predicted_n")), _time(timings.get("prompt_ms"))
    return ServerCounts(
        prompt_tokens=_first(_count(usage.get("prompt_tokens")), known.prompt_tokens),
        cached_tokens=_first(cached, _count(timings.get("cache_n")), known.cached_tokens),
        completion_tokens=_first(
            _count(usage.get("completion_tokens")), predicted, known.completion_tokens
        ),
        prompt_ms=known.prompt_ms if prompt_ms is None else prompt_ms,
    )


def error_text(body: object) -> str:
    """The words of an error as OpenAI's API, Ollama and others write it; at most 300 characters."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return _words(message if isinstance(message, str) else json.dumps(message))


def _words(text: bytes | str) -> str:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return words if len(words) <= MAX_ERROR_CHARS else words[: MAX_ERROR_CHARS - 1] + "…"


def _member(value: dict[str, object], name: str) -> dict[str, object]:
    member = value.get(name)
    return member if isinstance(member, dict) else {}


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_COUNT else None


def _time(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= MAX_COUNT else None


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
