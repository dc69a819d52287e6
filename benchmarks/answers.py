"""From raw bytes with their times of arrival to answers; pure, and run after the clock stopped.

Both servers stream JSON in HTTP/1.1 chunks: one object a line (ours), or server-sent events
(llama-server). Every object that carries text is one visible token, and arrived with the bytes
that completed it. How many tokens there were, though, is what the server's own last object says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import attrs
import h11

TOKEN_TAGS = {"ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken"}
USAGE_FIELDS = ("content_tokens", "reasoning_tokens", "tool_call_tokens", "undeterminable_tokens")


class AnswerError(Exception):
    """A server did not answer as a benchmark needs it to."""


@attrs.frozen
class Exchange:
    """One request on the wire: when it went out, and everything that came back, with times.

    Seconds of one monotonic clock. ``ended_s`` is when the last byte was there.
    """

    sent_s: float
    pieces: tuple[tuple[float, bytes], ...]

    @property
    def ended_s(self) -> float:
        return self.pieces[-1][0]


@attrs.frozen
class Answer:
    """What one request got: its own server's count of tokens, and when each visible one came."""

    tokens: int
    prompt_tokens: int
    arrivals_s: tuple[float, ...]


def read_ours(exchange: Exchange) -> Answer:
    """Newline-delimited results of ``/api/v1/continue_from_raw_prompt``."""
    arrivals_s: list[float] = []
    for arrival_s, line in _lines(exchange):
        message = json.loads(line)
        if "Response" not in message:
            raise AnswerError(f"our balancer said: {line[:300]!r}")
        (tag, value) = next(iter(message["Response"]["response"]["GeneratedToken"].items()))
        if tag in TOKEN_TAGS:
            if value:
                arrivals_s.append(arrival_s)
        elif tag == "Progress":  # how far the prompt is: no token
            continue
        elif tag == "Done":
            usage = value["usage"]
            tokens = sum(usage[field] for field in USAGE_FIELDS)
            return Answer(tokens, usage["prompt_tokens"], tuple(arrivals_s))
        else:
            raise AnswerError(f"our agent said: {line[:300]!r}")
    raise AnswerError("our balancer ended a stream without a Done")


def read_llama_server(exchange: Exchange) -> Answer:
    """Server-sent events of ``/completion``."""
    arrivals_s: list[float] = []
    for arrival_s, line in _lines(exchange):
        if line.startswith(b":"):
            continue  # a keep-alive during a long prompt
        if not line.startswith(b"data: "):
            raise AnswerError(f"llama-server said: {line[:300]!r}")
        event = json.loads(line[6:])
        if event.get("content"):
            arrivals_s.append(arrival_s)
        if event.get("stop"):
            return Answer(event["tokens_predicted"], event["tokens_evaluated"], tuple(arrivals_s))
    raise AnswerError("llama-server ended a stream without its last event")


def _lines(exchange: Exchange) -> Iterator[tuple[float, bytes]]:
    """The lines of a body that are not empty, each with the arrival of its last byte."""
    rest = b""
    for arrival_s, data in _body(exchange.pieces):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield arrival_s, line
    if rest.strip():
        yield exchange.ended_s, rest


def _body(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The body without its HTTP framing; AnswerError unless the status is 200."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    for arrival_s, data in pieces:
        connection.receive_data(data)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response) and event.status_code != 200:
                whole = b"".join(piece for _, piece in pieces)
                raise AnswerError(f"status {event.status_code}: {whole[-300:]!r}")
            if isinstance(event, h11.Data):
                yield arrival_s, bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
    raise AnswerError("the connection ended in the middle of an answer")
