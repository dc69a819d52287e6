"""One client of a target: a connection that is kept, and one request after the other on it.

Times are noted as soon as bytes are here, and nothing is done with them that is not needed to know
when text came. After anything but a whole answer, which a refusal is too, the next request gets
another connection.

The body of a streamed chat completion, piece by piece, with the times of arrival. Pure.

Source:
  OpenAI's chat completion chunks; ``reasoning_content`` as llama.cpp and vLLM send it,
  ``reasoning`` as Ollama does; ``timings`` are llama.cpp's.
"""

from __future__ import annotations

import json
import math
import ssl
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import httpx
import trio

from paddler_trio.cli.bench.bench_figures import (
    NO_COUNTS,
    Failure,
    FailureKind,
    Sample,
    ServerCounts,
)
from paddler_trio.cli.bench.target import Target, TargetUnreachableError
from paddler_trio.cli.bench.workloads import Ask
from paddler_trio.errors import ConfigurationError, leaves
from paddler_trio.net.client.http_client import (
    Answer,
    BodyBrokenError,
    BodyMalformedError,
    Connection,
)
from paddler_trio.net.client.response_body import MalformedAnswerError

MAX_LINE_BYTES: Final = 1 << 20
MAX_ERROR_CHARS: Final = 300
MAX_COUNT: Final = 1 << 40
"""The most tokens, or milliseconds, that are believed; what is more is no count."""
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


MAX_ERROR_BYTES: Final = 64 * 1024
"""Of a refusal's body; what is longer is not read."""
MAX_LIST_BYTES: Final = 4 * 1024 * 1024
"""Of a list of models; routers tell of thousands."""


@attrs.define(eq=False)
class ClientConnection:
    """See the module docstring. Close it with :meth:`close`, in a cancelled scope too."""

    target: Target
    _connection: Connection | None = attrs.field(default=None, init=False)
    _last: Answer | None = attrs.field(default=None, init=False)

    async def ask(self, ask: Ask, *, timeout_s: float) -> Sample:
        """Send one request and read the whole of its answer; never raise for what the target
        does.
        """
        sent_s = trio.current_time()
        answer = AnswerStream()
        with trio.move_on_after(timeout_s) as scope:
            answer.failure = await self._exchange(ask, answer) or answer.failure
        if scope.cancelled_caught:
            answer.failure = Failure(FailureKind.timeout, f"not over after {timeout_s:g} s")
        ended_s = trio.current_time()
        if self._last is None or not self._last.may_be_kept:
            await self.close()
        return Sample(
            kind=ask.kind,
            sent_s=sent_s,
            ended_s=ended_s,
            first_s=answer.first_s,
            gaps_s=answer.gaps_s,
            num_pieces=answer.num_pieces,
            counts=answer.counts,
            failure=answer.failure,
        )

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of a ``GET`` below the base URL, cut after 4 MiB.

        Errors:
          OSError, ssl.SSLError, trio.BrokenResourceError, BodyBrokenError: no connection, or it
            ended early.
          MalformedAnswerError: this is no HTTP.
        """
        answer = await self._answer("GET", path, b"")
        body = await _short_body(answer, MAX_LIST_BYTES)
        return answer.status, body

    async def close(self) -> None:
        """End the connection; the next request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.end()

    async def _exchange(self, ask: Ask, stream: AnswerStream) -> Failure | None:
        try:
            answer = await self._answer("POST", "/v1/chat/completions", self.target.body_of(ask))
            if answer.status != 200:
                text = refusal_text(await _short_body(answer, MAX_ERROR_BYTES))
                return Failure(FailureKind.status, text, answer.status)
            media_type = answer.headers.get("content-type", "")
            if not media_type.startswith("text/event-stream"):
                shown = media_type[:80] or "no type"
                return Failure(FailureKind.protocol, f"a stream was asked for, this is {shown}")
            while stream.failure is None and (piece := await answer.receive()):
                stream.receive(trio.current_time(), piece)
            if stream.failure is None:
                stream.end(trio.current_time())
        except (MalformedAnswerError, BodyMalformedError) as error:
            return Failure(FailureKind.protocol, str(error))
        except BodyBrokenError as error:
            return Failure(FailureKind.broken, str(error))
        except (OSError, trio.BrokenResourceError) as error:
            kind = FailureKind.connect if self._connection is None else FailureKind.broken
            return Failure(kind, cause_of(error))
        return None

    async def _answer(self, method: str, path: str, body: bytes) -> Answer:
        """Send a request on the kept connection, or on a new one if the server has closed that
        while nothing was under way, once, as every client does it.
        """
        kept = self._connection
        if kept is not None:
            try:
                return await self._asked(kept, method, path, body)
            except (OSError, trio.BrokenResourceError):
                await self.close()
        stream = await self.target.connect()
        host = self.target.url.host
        self._connection = Connection(stream, host, math.inf, keep=lambda _: True)
        return await self._asked(self._connection, method, path, body)

    async def _asked(self, connection: Connection, method: str, path: str, body: bytes) -> Answer:
        url = httpx.URL(f"{self.target.url}{path}")
        self._last = None
        self._last = await connection.ask(method, url, dict(self.target.headers(len(body))), body)
        return self._last


async def _short_body(answer: Answer, most_bytes: int) -> bytes:
    body = bytearray()
    while len(body) < most_bytes and (piece := await answer.receive()):
        body += piece
    return bytes(body[:most_bytes])


def refusal_text(body: bytes) -> str:
    """The words of a refusal; its first characters if it is no JSON."""
    try:
        return error_text(json.loads(body))
    except (ValueError, RecursionError):
        return error_text(body.decode(errors="replace").strip())


def cause_of(error: BaseException) -> str:
    """The operating system's words if it was asked, else the library's; of several addresses or
    attempts those of the last."""
    seen: BaseException | None = error
    words = ""
    while seen is not None:
        inner = list(leaves(seen))[-1]
        if isinstance(inner, ssl.SSLError):
            return inner.strerror or str(inner)
        if isinstance(inner, OSError) and inner.strerror:
            words = inner.strerror
        seen = inner.__cause__ or inner.__context__
    return words or str(error) or type(error).__name__


ANSWER_S = 10.0
MAX_ID_CHARS = 1024
"""Of a model: it is in every request."""


async def listed_model(target: Target) -> str:
    """The first model of ``GET /v1/models``, one that is loaded before one that is not.

    Errors:
      TargetUnreachableError: no connection, or a refusal.
      ConfigurationError: it lists no model.
    """
    client = ClientConnection(target)
    try:
        with trio.fail_after(ANSWER_S):
            status, body = await client.get("/v1/models")
    except (OSError, trio.BrokenResourceError, BodyBrokenError, MalformedAnswerError) as error:
        raise TargetUnreachableError(f"cannot reach {target.url}: {cause_of(error)}") from error
    except trio.TooSlowError as error:
        raise TargetUnreachableError(
            f"{target.url} does not answer within {ANSWER_S:g} s"
        ) from error
    finally:
        await client.close()
    if status in {401, 403}:
        raise TargetUnreachableError(
            f"{target.url} refused ({status}): {refusal_text(body)}; "
            "give --key-file or --against-key-file"
        )
    model = first_model(body) if status == 200 else None
    if model is None:
        raise ConfigurationError(
            f"{target.url} lists no model at /v1/models (status {status}): name one with "
            "--model or --against-model"
        )
    return model


def first_model(body: bytes) -> str | None:
    """The ``id`` of a list of models; None if there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    listed = value.get("data") if isinstance(value, dict) else None
    models = [each for each in listed if _is_model(each)] if isinstance(listed, Sequence) else []
    ready = [each for each in models if _is_ready(each)]
    return next((str(each["id"]) for each in (*ready, *models)), None)


def _is_model(entry: object) -> bool:
    name = entry.get("id") if isinstance(entry, dict) else None
    return isinstance(name, str) and 1 <= len(name) <= MAX_ID_CHARS


def _is_ready(entry: Mapping[str, object]) -> bool:
    """Servers that load models when they are asked for say which ones are loaded."""
    status = entry.get("status")
    return not isinstance(status, dict) or status.get("value") in {None, "loaded"}
