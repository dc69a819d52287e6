"""``/v1/chat/completions``: native requests out of the body, and their results as an answer, whole
or in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import attrs
import trio

from paddler_trio.balancer.apis.answers.answer import (
    MAX_REPEATED_CHARS,
    Answer,
    AnswerReader,
    ArgumentsDelta,
    Call,
    ContentDelta,
    Ended,
    Piece,
    Prefilled,
    ReasoningDelta,
    Step,
    ToolCallStart,
    logprob_with_top,
)
from paddler_trio.balancer.apis.answers.kept_logprobs import KeptLogprobs
from paddler_trio.balancer.apis.answers.run_requests import gather, stream
from paddler_trio.balancer.apis.answers.timings import Reports, Stopwatch, timings_of, usage_of
from paddler_trio.balancer.apis.api_errors import ApiError, naming_fields
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import (
    Backend,
    cluster_parameters,
    must_generate,
)
from paddler_trio.balancer.apis.generation_settings import generation_settings
from paddler_trio.balancer.apis.image_fetch import fetch_images
from paddler_trio.balancer.apis.openai.answer_heading import Heading, heading_of
from paddler_trio.balancer.apis.openai.chat_calls import CallDeltas, whole_call
from paddler_trio.balancer.apis.openai.chat_request import Delivery, read_chat
from paddler_trio.balancer.apis.questions import end_tokens, rendered
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.work import Generate

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

    def take(self, step: Step) -> int:
        return self.answers[step.choice].take(step.results)

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
            custom = self.delivery.custom_tools
            message["tool_calls"] = [whole_call(call, custom) for call in answer.calls]
        logprobs = None
        if self.delivery.with_logprobs:
            logprobs = _whole_logprobs(answer.logprobs, is_exact=self.delivery.is_exact)
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": answer.ended.finish_reason,
        }


def timings_beside(delivery: Delivery, ended: Ended) -> Json:
    """llama-server's member for how long it took."""
    return {} if delivery.is_exact else {"timings": timings_of(ended)}


def verbosely(verbose: Json | None) -> Json:
    """llama-server's member for the prompt and the settings of the model."""
    return {} if verbose is None else {"__verbose": verbose}


def with_stop_text(content: str, ended: Ended, delivery: Delivery) -> str:
    return content + ended.stop_text if delivery.with_stop_text and ended.stop_text else content


def logprobs_of(entries: Sequence[Mapping[str, object]], *, is_exact: bool = False) -> Json:
    """OpenAI's ``logprobs`` of content, with llama-server's ids of tokens unless ``is_exact``."""
    form = partial(_content_logprob, is_exact=is_exact)
    return {"content": [*map(form, entries)], "refusal": None}


def _whole_logprobs(kept: KeptLogprobs, *, is_exact: bool) -> Json:
    form = partial(_content_logprob, is_exact=is_exact)
    return {"content": kept.written(form), "refusal": None}


def _content_logprob(entry: Mapping[str, object], *, is_exact: bool) -> Json:
    names = ("token", "logprob", "bytes") if is_exact else ("id", "token", "bytes", "logprob")
    return logprob_with_top(entry, *names)


# ----------------------------------------------------------------------------- a stream of chunks


@attrs.define
class ChunkStream:
    """Make what the streams of chat completions and of completions share.

    Args:
      watch: for timings in every chunk, where the request asks for them.
      verbose: the prompt and the settings of the model, for the last chunk of a choice; of what
        is long only the first one that ends has it.
    """

    kind: ClassVar[str]
    """The ``object`` of every chunk."""
    heading: Heading
    delivery: Delivery
    watch: Stopwatch
    verbose: Json | None = attrs.field(default=None, kw_only=True)
    _reports: Reports = attrs.field(init=False)
    _verbose_chars: int = attrs.field(default=0, init=False)
    _repeated_chars: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        delivery = self.delivery
        self._reports = Reports(self.watch, delivery.with_progress, delivery.with_timings)

    def failed(self, error: ApiError) -> bytes:
        return streaming.event(error.envelope(with_details=not self.delivery.is_exact))

    def _closing(self, endings: Sequence[Ended], *, prompts: int = 1) -> bytes:
        """Return the usage of all choices, if the request asks for it, and the end of the
        stream."""
        if not self.delivery.with_usage:
            return streaming.DONE
        last = {
            **self.heading.fields(self.kind),
            "choices": [],
            "usage": usage_of(endings, prompts=prompts),
            **timings_beside(self.delivery, endings[0]),
        }
        return streaming.event(last) + streaming.DONE

    def _end_members(self, ended: Ended) -> Json:
        """Return the members of the last chunk of a choice alone."""
        timings = {} if self.delivery.with_usage else timings_beside(self.delivery, ended)
        return timings | self._verbosely()

    def _verbosely(self) -> Json:
        if self.verbose is None:
            return {}
        if self._verbose_chars:
            self._repeated_chars += self._verbose_chars
        else:
            self._verbose_chars = len(dumps(self.verbose))
        return {} if self._repeated_chars > MAX_REPEATED_CHARS else verbosely(self.verbose)

    def _event(
        self, choice: Json, more: Mapping[str, object] | None, *, with_timings: bool = True
    ) -> bytes:
        chunk: Json = {**self.heading.fields(self.kind), "choices": [choice]}
        if self.delivery.with_usage:
            chunk["usage"] = None
        if with_timings and self.delivery.with_timings:
            timings = self.watch.timings()
            if timings is not None:
                chunk["timings"] = timings
        return streaming.event(chunk | dict(more or {}))


@attrs.define
class ChatStream(ChunkStream):
    """A ``StreamEncoder`` of chat completion chunks."""

    kind = "chat.completion.chunk"
    readers: list[AnswerReader]
    _begun: dict[int, tuple[int, Call]] = attrs.field(factory=dict, init=False)
    """The call that each choice is at, and its number, where a call is one chunk."""
    _calls: list[CallDeltas] = attrs.field(init=False)
    """Of each choice."""
    _is_fast: bool = attrs.field(init=False)
    """Chunks of content are plain, so that all of a choice begin alike."""
    _heads: dict[int, bytes] = attrs.field(factory=dict, init=False)
    """Those beginnings."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        more = self.delivery.with_usage or self.delivery.with_timings or self.delivery.with_logprobs
        self._calls = [CallDeltas(self.delivery.custom_tools) for _ in self.readers]
        self._is_fast = not more

    def opening(self) -> bytes:
        return b"".join(
            self._chunk(index, {"role": "assistant", "content": None}, is_plain=True)
            for index in range(len(self.readers))
        )

    def take(self, step: Step) -> bytes:
        self.watch.passed(len(step.tokens))
        pieces = self.readers[step.choice].take(step.results)
        return b"".join(self._piece(step.choice, piece) for piece in pieces)

    def closing(self) -> bytes:
        return self._closing([reader.ended for reader in self.readers if reader.ended is not None])

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
            whole = {"index": index, **whole_call(call, self.delivery.custom_tools)}
            chunks = self._chunk(choice, {"tool_calls": [whole]})
        match piece:
            case ToolCallStart(index, call_id, name):
                self._begun[choice] = index, Call(call_id, name)
                return chunks
        return chunks + self._chunks_of(choice, piece)

    def _chunks_of(self, choice: int, piece: Piece) -> bytes:
        match piece:
            case ContentDelta(text, logprobs):
                if self._is_fast:
                    head = self._heads.get(choice) or self._content_head(choice)
                    return head + dumps(text) + _CONTENT_TAIL
                return self._chunk(choice, {"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                if self.delivery.reasoning_is_content:
                    return self._chunk(choice, {"content": text})
                if not self.delivery.with_reasoning:
                    return b""
                return self._chunk(choice, {"reasoning_content": text})
            case ToolCallStart() | ArgumentsDelta():
                return self._call_chunks(choice, self._calls[choice].of(piece))
            case Prefilled():
                return b""
            case Ended():
                rest = self._call_chunks(choice, self._calls[choice].ended())
                return rest + self._end_of(choice, piece)

    def _call_chunks(self, choice: int, calls: Iterable[Json]) -> bytes:
        return b"".join(self._chunk(choice, {"tool_calls": [call]}) for call in calls)

    def _end_of(self, choice: int, ended: Ended) -> bytes:
        stop_text = with_stop_text("", ended, self.delivery)
        tail = self._chunk(choice, {"content": stop_text}) if stop_text else b""
        return tail + self._chunk(
            choice,
            {},
            finish_reason=ended.finish_reason,
            is_plain=True,
            more=self._end_members(ended),
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
        """Return one chunk; a plain one, first or last of its choice, has no logprobs and no
        timings."""
        with_logprobs = self.delivery.with_logprobs and not is_plain
        part: Json = {
            "index": choice,
            "delta": delta,
            "logprobs": (
                logprobs_of(logprobs, is_exact=self.delivery.is_exact) if with_logprobs else None
            ),
            "finish_reason": finish_reason,
        }
        return self._event(part, more, with_timings=not is_plain)

    def _content_head(self, choice: int) -> bytes:
        marked = self._chunk(choice, {"content": ""})
        head = marked[: marked.index(_EMPTY_CONTENT) + len(_EMPTY_CONTENT) - len(b'""')]
        self._heads[choice] = head
        return head


_EMPTY_CONTENT = b'"delta":{"content":""'
_CONTENT_TAIL = b'},"logprobs":null,"finish_reason":null}]}\n\n'


async def chat_completions(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_chat)
    if exchange.is_exact:
        request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
    backend = backend.routed(exchange, request.delivery.model)
    heading = heading_of(backend, exchange, request.delivery.model)
    must_generate(backend)
    works = await fetch_images(request.works(), backend.settings, exchange.room, exchange.http)
    verbose = await verbose_of(backend, exchange, request.delivery, works[0])
    with naming_fields(prompt="messages", constraint=request.constrained_by):
        if request.delivery.is_stream:
            watch = Stopwatch(trio.current_time)
            encoder = ChatStream(
                heading, request.delivery, watch, request.readers(), verbose=verbose
            )
            await stream(backend, exchange, works, encoder, keep_alive_s=request.delivery.ping_s)
        else:
            answers = [Answer(reader) for reader in request.readers()]
            whole = WholeChat(heading, request.delivery, answers, verbose)
            await gather(backend, exchange, works, whole.take)
            await exchange.send_json(200, await exchange.run(whole.body))


async def verbose_of(
    backend: Backend, exchange: ApiExchange, delivery: Delivery, generate: Generate
) -> Json | None:
    """Return what the model is given for ``generate``, if the request asks for it; an agent is
    asked."""
    if not delivery.is_verbose:
        return None
    return {
        "prompt": (await rendered(backend, exchange, generate.prompt))["prompt"],
        "generation_settings": generation_settings(
            cluster_parameters(backend),
            generate,
            is_stream=delivery.is_stream,
            with_timings=delivery.with_timings,
            end_tokens=await end_tokens(backend, exchange, generate),
        ),
    }
