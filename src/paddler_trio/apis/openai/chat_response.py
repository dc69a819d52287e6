"""Native results as a chat completion, whole or in chunks: pure, one object for an answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

import attrs

from paddler_trio.apis.answer import (
    Answer,
    AnswerReader,
    ArgumentsDelta,
    Call,
    ContentDelta,
    Ended,
    Piece,
    Prefilled,
    ReasoningDelta,
    Stopwatch,
    ToolCallStart,
    timings_of,
    usage_of,
)
from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.openai.chat_request import Delivery
from paddler_trio.apis.prompt_progress import Reports
from paddler_trio.apis.steps import Step
from paddler_trio.http import sse
from paddler_trio.wire.codec import dumps

Json = dict[str, object]


@attrs.frozen(kw_only=True)
class Heading:
    """What every chunk of one answer begins with. ``created`` is in seconds since 1970."""

    model: str
    fingerprint: str
    created: int
    id: str = attrs.field(factory=lambda: "chatcmpl-" + secrets.token_urlsafe(21))

    def fields(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


# ------------------------------------------------------------------------------ a whole answer


@attrs.define
class WholeChat:
    """All choices of an answer that is sent at once.

    ``verbose``: the prompt and the settings of the model, for ``__verbose``; None for nothing.
    """

    heading: Heading
    delivery: Delivery
    answers: list[Answer]
    verbose: Json | None = None

    @classmethod
    def of(
        cls,
        heading: Heading,
        delivery: Delivery,
        n: int,
        *,
        raw_calls: bool,
        max_tokens: int | None = None,
        verbose: Json | None = None,
    ) -> WholeChat:
        readers = _readers(delivery, n, raw_calls=raw_calls, max_tokens=max_tokens)
        answers = [Answer(reader) for reader in readers]
        return cls(heading, delivery, answers, verbose)

    def take(self, step: Step) -> None:
        self.answers[step.choice].take(step.results, step.tokens)

    def body(self) -> Json:
        endings = [answer.ended for answer in self.answers]
        return {
            **self.heading.fields("chat.completion"),
            "choices": [self._choice(index) for index in range(len(self.answers))],
            "usage": usage_of(endings),
            **timings_beside(self.delivery, endings[0]),
            **verbosely(self.verbose),
        }

    def _choice(self, index: int) -> Json:
        answer = self.answers[index]
        content = with_stop_text(answer.content, answer.ended, self.delivery)
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if answer.reasoning and self.delivery.reasoning_is_content:
            message["content"] = answer.reasoning + content
        elif answer.reasoning and self.delivery.with_reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        logprobs = logprobs_of(answer.logprobs) if self.delivery.with_logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": answer.ended.finish_reason,
        }


def _readers(
    delivery: Delivery, n: int, *, raw_calls: bool, max_tokens: int | None
) -> list[AnswerReader]:
    """Reasoning that is part of the content keeps the blanks around it."""
    is_verbatim = delivery.reasoning_is_content
    return [AnswerReader(raw_calls, max_tokens, is_verbatim) for _ in range(n)]


def timings_beside(delivery: Delivery, ended: Ended) -> Json:
    """llama-server's member for how long it took."""
    return {} if delivery.is_exact else {"timings": timings_of(ended)}


def verbosely(verbose: Json | None) -> Json:
    """llama-server's member for the prompt and the settings of the model."""
    return {} if verbose is None else {"__verbose": verbose}


def with_stop_text(content: str, ended: Ended, delivery: Delivery) -> str:
    return content + ended.stop_text if delivery.with_stop_text and ended.stop_text else content


def logprobs_of(entries: Sequence[Mapping[str, object]]) -> Json:
    """OpenAI's ``logprobs`` of content."""
    return {"content": [_token(entry) for entry in entries], "refusal": None}


def _token(entry: Mapping[str, object]) -> Json:
    top = entry.get("top", [])
    assert isinstance(top, list)
    return {**_bare_token(entry), "top_logprobs": [_bare_token(other) for other in top]}


def _bare_token(entry: Mapping[str, object]) -> Json:
    return {name: entry[name] for name in ("token", "logprob", "bytes")}


# ----------------------------------------------------------------------------- a stream of chunks


@attrs.define
class ChatStream:
    """A :class:`~paddler_trio.apis.steps.StreamEncoder` of chat completion chunks.

    Args:
      watch: for timings in every chunk, where the request asks for them.
      verbose: the prompt and the settings of the model, for the last chunk of a choice.
    """

    heading: Heading
    delivery: Delivery
    watch: Stopwatch
    _readers: list[AnswerReader]
    _reports: Reports
    verbose: Json | None = None
    _begun: dict[int, tuple[int, Call]] = attrs.field(factory=dict, init=False)
    """The call that each choice is at, and its number, where a call is one chunk."""
    _fast: list[bytes] | None = attrs.field(init=False)
    """The beginning of a plain content chunk of each choice; None if chunks carry more."""

    def __attrs_post_init__(self) -> None:
        more = self.delivery.with_usage or self.delivery.with_timings or self.delivery.with_logprobs
        self._fast = None if more else [self._content_head(i) for i in range(len(self._readers))]

    @classmethod
    def of(
        cls,
        heading: Heading,
        delivery: Delivery,
        n: int,
        *,
        raw_calls: bool,
        now_s: Callable[[], float],
        max_tokens: int | None = None,
        verbose: Json | None = None,
    ) -> ChatStream:
        readers = _readers(delivery, n, raw_calls=raw_calls, max_tokens=max_tokens)
        watch = Stopwatch(now_s)
        reports = Reports(watch, delivery.with_progress, delivery.with_timings)
        return cls(heading, delivery, watch, readers, reports, verbose)

    def opening(self) -> bytes:
        return b"".join(
            self._chunk(index, {"role": "assistant", "content": None}, is_plain=True)
            for index in range(len(self._readers))
        )

    def take(self, step: Step) -> bytes:
        self.watch.passed(len(step.tokens))
        pieces = self._readers[step.choice].take(step.results)
        return b"".join(self._piece(step.choice, piece) for piece in pieces)

    def closing(self) -> bytes:
        if not self.delivery.with_usage:
            return sse.DONE
        endings = [reader.ended for reader in self._readers]
        ended = [ending for ending in endings if ending is not None]
        last = {
            **self.heading.fields("chat.completion.chunk"),
            "choices": [],
            "usage": usage_of(ended),
            **timings_beside(self.delivery, ended[0]),
        }
        return sse.event(last) + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        return sse.event(error.envelope(with_details=not self.delivery.is_exact))

    # --------------------------------------------------------------------- inside

    def _piece(self, choice: int, piece: Piece) -> bytes:
        reports = self._reports.before(choice, piece)
        chunks = (self._chunk(choice, {}, is_plain=True, more=members) for members in reports)
        if self.delivery.is_exact:
            return b"".join(chunks) + self._chunks_with_whole_calls(choice, piece)
        return b"".join(chunks) + self._chunks_of(choice, piece)

    def _chunks_with_whole_calls(self, choice: int, piece: Piece) -> bytes:
        """A call waits for its end, as Paddler's clients expect it."""
        match piece:
            case ArgumentsDelta(_, arguments):
                self._begun[choice][1].arguments += arguments
                return b""
            case ReasoningDelta() | Prefilled():
                return self._chunks_of(choice, piece)
        chunks = b""
        if choice in self._begun:
            index, call = self._begun.pop(choice)
            function = {"name": call.name, "arguments": call.arguments}
            whole = {"index": index, "id": call.id, "type": "function", "function": function}
            chunks = self._chunk(choice, {"tool_calls": [whole]})
        match piece:
            case ToolCallStart(index, call_id, name):
                self._begun[choice] = index, Call(call_id, name)
                return chunks
        return chunks + self._chunks_of(choice, piece)

    def _chunks_of(self, choice: int, piece: Piece) -> bytes:
        match piece:
            case ContentDelta(text, logprobs):
                if self._fast is not None:
                    return self._fast[choice] + dumps(text) + _CONTENT_TAIL
                return self._chunk(choice, {"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                if self.delivery.reasoning_is_content:
                    return self._chunk(choice, {"content": text})
                if not self.delivery.with_reasoning:
                    return b""
                return self._chunk(choice, {"reasoning_content": text})
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self._chunk(choice, {"tool_calls": [call]})
            case ArgumentsDelta(index, arguments):
                call = {"index": index, "function": {"arguments": arguments}}
                return self._chunk(choice, {"tool_calls": [call]})
            case Prefilled():
                return b""
            case Ended():
                return self._end_of(choice, piece)

    def _end_of(self, choice: int, ended: Ended) -> bytes:
        stop_text = with_stop_text("", ended, self.delivery)
        tail = self._chunk(choice, {"content": stop_text}) if stop_text else b""
        more: Json = {}
        if not self.delivery.with_usage:
            more |= timings_beside(self.delivery, ended)
        more |= verbosely(self.verbose)
        return tail + self._chunk(
            choice, {}, finish_reason=ended.finish_reason, is_plain=True, more=more
        )

    def _chunk(
        self,
        choice: int,
        delta: Json,
        *,
        logprobs: Sequence[Mapping[str, object]] = (),
        finish_reason: str | None = None,
        is_plain: bool = False,
        more: Mapping[str, object] | None = None,
    ) -> bytes:
        """One chunk; a plain one, first or last of its choice, has no logprobs and no timings."""
        with_logprobs = self.delivery.with_logprobs and not is_plain
        chunk: Json = {
            **self.heading.fields("chat.completion.chunk"),
            "choices": [
                {
                    "index": choice,
                    "delta": delta,
                    "logprobs": logprobs_of(logprobs) if with_logprobs else None,
                    "finish_reason": finish_reason,
                }
            ],
        }
        if self.delivery.with_usage:
            chunk["usage"] = None
        if self.delivery.with_timings and not is_plain:
            timings = self.watch.timings()
            if timings is not None:
                chunk["timings"] = timings
        return sse.event(chunk | dict(more or {}))

    def _content_head(self, choice: int) -> bytes:
        marked = self._chunk(choice, {"content": ""})
        return marked[: marked.index(_EMPTY_CONTENT) + len(_EMPTY_CONTENT) - len(b'""')]


_EMPTY_CONTENT = b'"delta":{"content":""'
_CONTENT_TAIL = b'},"logprobs":null,"finish_reason":null}]}\n\n'
