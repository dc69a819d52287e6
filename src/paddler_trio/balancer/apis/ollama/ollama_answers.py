"""Answers as Ollama writes them: a document, or a line of JSON for each piece. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import attrs

from paddler_trio.balancer.apis.answers.answer import (
    CALL_BYTES,
    Answer,
    AnswerReader,
    ArgumentsDelta,
    Call,
    ContentDelta,
    Ended,
    Piece,
    ReasoningDelta,
    Step,
    ToolCallStart,
    completion_tokens,
    logprob_with_top,
    text_bytes,
)
from paddler_trio.balancer.apis.anthropic.call_input import input_of
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming
from paddler_trio.net.server.asgi import Header
from paddler_trio.wire.codec import dumps

NDJSON_HEADERS: Final[Sequence[Header]] = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache, no-transform"),
    *streaming.UNBUFFERED,
]


def envelope(error: ApiError) -> Json:
    """Ollama's: ``{"error": "..."}``."""
    return {"error": error.message}


def line(value: object) -> bytes:
    return dumps(value) + b"\n"


@attrs.frozen(kw_only=True)
class Said:
    """Hold what an answer says, or a piece of it."""

    content: str = ""
    thinking: str = ""
    calls: Sequence[object] = ()


class Holder(Enum):
    """Name where an answer stands: in a message, in a response, or in a response in which nothing
    is told apart, since no template rendered the prompt."""

    MESSAGE = auto()
    RESPONSE = auto()
    TEXT = auto()


@attrs.define
class Context:
    """The tokens of a prompt and of its answer, behind which another prompt may stand."""

    _prompt: array[int] = attrs.field(factory=lambda: array("i"), init=False)
    """Empty until an agent tells it, which is before the first token; none does unasked."""
    _answer: array[int] = attrs.field(factory=lambda: array("i"), init=False)

    @property
    def held_bytes(self) -> int:
        return self._answer.itemsize * (len(self._prompt) + len(self._answer))

    def take(self, step: Step) -> None:
        if not self._prompt:
            for result in step.results:
                match result:
                    case {"Progress": {"tokens": list(tokens)}}:
                        self._prompt = array("i", tokens)
        if self._prompt:
            self._answer.extend(step.tokens)

    def tokens(self) -> list[int]:
        return [*self._prompt, *self._answer]


@attrs.define(kw_only=True)
class OllamaForm:
    """Hold what is decided before the answer: ``model`` is the name to answer under.

    Args:
      elapsed_s: seconds since the request came.
    """

    model: str
    holder: Holder
    elapsed_s: Callable[[], float]
    with_logprobs: bool = False
    context: Context = attrs.field(factory=Context)

    def body(self, said: Said) -> Json:
        """Return a piece, behind which more comes."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return {"model": self.model, "created_at": now, **self._held(said), "done": False}

    def last(self, said: Said, ended: Ended) -> Json:
        """Return the last piece, or the whole answer."""
        is_cut = ended.reason in ("length", "cells")
        reason = "length" if is_cut else "stop"
        context = self.context.tokens()
        return {
            **self.body(said),
            "done": True,
            "done_reason": reason,
            **({"context": context} if context else {}),
            **self._durations(ended),
        }

    def _held(self, said: Said) -> Json:
        if self.holder is Holder.TEXT:
            return {"response": said.thinking + said.content}
        thinking = {"thinking": said.thinking} if said.thinking else {}
        if self.holder is Holder.RESPONSE:
            return {"response": said.content, **thinking}
        calls = {"tool_calls": list(said.calls)} if said.calls else {}
        return {"message": {"role": "assistant", "content": said.content, **thinking, **calls}}

    def _durations(self, ended: Ended) -> Mapping[str, int]:
        """Return counts, and nanoseconds: what passed before the prompt was begun, in the queue or
        until the model was there, is that of loading."""
        total = round(self.elapsed_s() * 1e9)
        prompt = round(ended.timings.get("prompt_ms", 0.0) * 1e6)
        answer = round(ended.timings.get("predicted_ms", 0.0) * 1e6)
        return {
            "total_duration": total,
            "load_duration": max(0, total - prompt - answer),
            "prompt_eval_count": ended.usage["prompt_tokens"],
            "prompt_eval_duration": prompt,
            "eval_count": completion_tokens(ended),
            "eval_duration": answer,
        }


def _call(index: int, call: Call) -> object:
    function = {"index": index, "name": call.name, "arguments": input_of(call.arguments)}
    return {"id": call.id, "function": function}


def _logprob(entry: Mapping[str, object]) -> Json:
    return logprob_with_top(entry, "token", "logprob", "bytes")


@attrs.define
class WholeAnswer:
    """An answer that is sent at once."""

    form: OllamaForm
    answer: Answer

    def take(self, step: Step) -> int:
        before = self.form.context.held_bytes
        self.form.context.take(step)
        return self.answer.take(step.results) + self.form.context.held_bytes - before

    def body(self) -> object:
        answer = self.answer
        said = Said(
            content=answer.content,
            thinking=answer.reasoning,
            calls=[_call(index, call) for index, call in enumerate(answer.calls)],
        )
        body = self.form.last(said, answer.ended)
        if self.form.with_logprobs:
            body["logprobs"] = answer.logprobs.written(_logprob)
        return body


@attrs.define
class AnswerLines:
    """A ``StreamEncoder`` of lines; a call is one line, which waits for its end."""

    form: OllamaForm
    reader: AnswerReader
    _call_bytes: int = attrs.field(default=0, init=False)
    """The bytes of all calls while they were not complete."""
    _call: Call | None = attrs.field(default=None, init=False)
    _num_calls: int = attrs.field(default=0, init=False)

    def opening(self) -> bytes:
        return b""

    @property
    def held_bytes(self) -> int:
        return self._call_bytes + self.form.context.held_bytes

    def take(self, step: Step) -> bytes:
        self.form.context.take(step)
        return b"".join([self._lines(piece) for piece in self.reader.take(step.results)])

    def closing(self) -> bytes:
        return b""

    def failed(self, error: ApiError) -> bytes:
        return line(envelope(error))

    def filler(self, state: str) -> bytes:
        """Return a piece that says nothing: there are no comments between lines of JSON."""
        return line(self.form.body(Said()))

    def _lines(self, piece: Piece) -> bytes:
        match piece:
            case ContentDelta(text, logprobs):
                body = self.form.body(Said(content=text))
                if self.form.with_logprobs:
                    body["logprobs"] = [*map(_logprob, logprobs)]
                return self._called() + line(body)
            case ReasoningDelta(text):
                return self._called() + line(self.form.body(Said(thinking=text)))
            case ToolCallStart(_, call_id, name):
                before = self._called()
                self._call = Call(call_id, name)
                self._call_bytes += CALL_BYTES + text_bytes(call_id + name)
                return before
            case ArgumentsDelta(_, arguments):
                assert self._call is not None, "its beginning came before"
                self._call.arguments += arguments
                self._call_bytes += text_bytes(arguments)
            case Ended():
                return self._called() + line(self.form.last(Said(), piece))
        return b""

    def _called(self) -> bytes:
        """Return the call that is complete now, if there is one."""
        if self._call is None:
            return b""
        call, self._call = _call(self._num_calls, self._call), None
        self._num_calls += 1
        return line(self.form.body(Said(calls=[call])))
