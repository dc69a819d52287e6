"""The results of one choice as pieces that every API has: content, reasoning, calls, the end.

:class:`AnswerReader` is the streaming half, :class:`Answer` collects a whole one. Both are pure.

Log probabilities belong to the text that follows them. Those of tokens that became no content
(reasoning, tool calls, the end of the turn, a stop text) are dropped, as OpenAI does.

The text of a tool call is held back: if calls were parsed from it, or still are being parsed, it is
dropped; if it turned out to be no call, it is content. Text that was cut off inside a call is
neither: the answer has begun a call, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from paddler_trio.balancer.apis.answers.kept_logprobs import KeptLogprobs
from paddler_trio.balancer.apis.answers.layout import Layout
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.raw_results import result_tag
from paddler_trio.wire.trio.work import ConversationPrompt, Generate

CALL_BYTES: Final = 512
"""The bytes that a tool call takes once it has begun, beside its texts."""
MAX_REPEATED_CHARS: Final = 1024 * 1024
"""In the answers to one request, of what it says once."""


@attrs.frozen
class Step:
    """Results of one choice that arrived together; ``Done`` is the only ending among them.

    ``tokens`` are the ids that were sampled; empty if the agent does not report them.
    """

    choice: int
    results: Sequence[RawResult]
    tokens: Sequence[int] = ()


@attrs.frozen
class ContentDelta:
    """A piece of content; ``logprobs`` as they came, of the tokens it is made of."""

    text: str
    logprobs: Sequence[Mapping[str, object]] = ()


@attrs.frozen
class ReasoningDelta:
    """A piece of reasoning."""

    text: str


@attrs.frozen
class ToolCallStart:
    index: int
    id: str
    name: str


@attrs.frozen
class ArgumentsDelta:
    """The next piece of a call's arguments, as JSON text."""

    index: int
    arguments: str


@attrs.frozen
class Prefilled:
    """``done`` of ``total`` prompt tokens are computed, ``cached`` of them from before."""

    total: int
    cached: int
    done: int


@attrs.frozen
class Ended:
    """The last piece of every choice.

    ``reason`` is one of the engine's: ``stop``, ``length``, ``cells``, ``stop_text``, ``stopped``.
    ``prompt_tokens`` of the ``usage`` are all that was read, images too, which agents count apart.
    """

    reason: str
    stop_text: str | None
    usage: Mapping[str, int]
    timings: Mapping[str, float]
    num_calls: int

    @property
    def is_cut_off(self) -> bool:
        """The model had not ended its turn."""
        return self.reason != "stop"

    @property
    def finish_reason(self) -> str:
        """OpenAI's name of the reason."""
        if self.reason in {"length", "cells"}:
            return "length"
        return "tool_calls" if self.num_calls else "stop"


Piece: TypeAlias = (
    ContentDelta | ReasoningDelta | ToolCallStart | ArgumentsDelta | Prefilled | Ended
)


@attrs.define
class AnswerReader:
    """One choice.

    Args:
      raw_calls: tool calls are text of the content.
      max_tokens: the limit of the request; Paddler's agents do not report why an answer ended.
      is_verbatim: blanks between the sections are text, too.
    """

    raw_calls: bool = False
    max_tokens: int | None = None
    is_verbatim: bool = False
    num_calls: int = attrs.field(default=0, init=False)
    ended: Ended | None = attrs.field(default=None, init=False)
    _call_text: str = attrs.field(default="", init=False)
    _is_laid_out: bool = attrs.field(default=False, init=False)
    """The layout knows of the call's text."""
    _is_no_call: bool = attrs.field(default=False, init=False)
    """The agent could make nothing of the call's text."""
    _has_deltas: bool = attrs.field(default=False, init=False)
    _logprobs: list[Mapping[str, object]] = attrs.field(factory=list, init=False)
    _layout: Layout = attrs.field(factory=Layout, init=False)

    def take(self, results: Iterable[RawResult]) -> Iterator[Piece]:
        """Return the pieces of these results; results without a meaning here give none."""
        for result in results:
            tag = result_tag(result)
            value = result[tag] if isinstance(result, Mapping) else None
            match tag, value:
                case (("ContentToken" | "UndeterminableToken"), str(text)):
                    yield from self._content(text)
                case "ReasoningToken", str(text):
                    yield from self._reasoning(text)
                case "ToolCallToken", str(text):
                    yield from self._call_token(text)
                case "ToolCallDelta", dict(delta):
                    yield from self._call_delta(delta)
                case "ToolCallParsed", list(calls):
                    yield from self._whole_calls(calls)
                case (
                    (
                        "ToolCallParseFailed"
                        | "ToolCallValidationFailed"
                        | "UnrecognizedToolCallFormat"
                    ),
                    _,
                ):
                    self._is_no_call = True
                case "Logprobs", dict(entry):
                    self._logprobs.append(entry)
                case "Progress", {
                    "total": int(total),
                    "cached": int(cached),
                    "computed": int(done),
                }:
                    yield Prefilled(total, cached, done)
                case "Done", dict(done_value):
                    yield from self._end(done_value)

    def _content(self, text: str) -> Iterator[Piece]:
        yield from self._text_of_no_call()
        if self._call_text and not self._is_laid_out:
            self._layout.call()
            self._is_laid_out = True
        yield from self._content_delta(text)

    def _content_delta(self, text: str) -> Iterator[Piece]:
        logprobs, self._logprobs = self._logprobs, []
        if self.is_verbatim:
            yield ContentDelta(text, logprobs)
        else:
            yield from _delta(*self._layout.content(text, logprobs))

    def _reasoning(self, text: str) -> Iterator[Piece]:
        self._logprobs.clear()
        yield from self._text_of_no_call()
        if self.is_verbatim:
            yield ReasoningDelta(text)
            return
        yield from _delta(*self._layout.before_reasoning())
        visible = self._layout.reasoning(text)
        if visible:
            yield ReasoningDelta(visible)

    def _call_token(self, text: str) -> Iterator[Piece]:
        if self.raw_calls:
            yield from self._content_delta(text)
            return
        self._logprobs.clear()
        yield from self._text_of_no_call()
        self._call_text += text
        self._is_laid_out = False

    def _call_delta(self, delta: Mapping[str, object]) -> Iterator[Piece]:
        self._begin_calls()
        self._has_deltas = True
        index, call_id, name = delta.get("index"), delta.get("id"), delta.get("name")
        assert isinstance(index, int)
        if isinstance(call_id, str) and isinstance(name, str):
            self.num_calls = max(self.num_calls, index + 1)
            yield ToolCallStart(index, call_id, name)
        arguments = delta.get("arguments")
        if isinstance(arguments, str) and arguments:
            yield ArgumentsDelta(index, arguments)

    def _whole_calls(self, calls: Sequence[object]) -> Iterator[Piece]:
        """Calls that came in deltas already are not repeated."""
        if calls or self._call_text:
            self._begin_calls()
        if self._has_deltas:
            return
        for call in calls:
            match call:
                case {"id": str(call_id), "name": str(name), "arguments": arguments}:
                    yield ToolCallStart(self.num_calls, call_id, name)
                    yield ArgumentsDelta(self.num_calls, _arguments_text(arguments))
                    self.num_calls += 1

    def _begin_calls(self) -> None:
        """The text that was held back is that of calls."""
        self._logprobs.clear()
        if not (self._call_text and self._is_laid_out):
            self._layout.call()
        self._call_text, self._is_no_call = "", False

    def _text_of_no_call(self) -> Iterator[Piece]:
        """Return the text that was held back, if it turned out to be no call."""
        if not self._is_no_call:
            return
        text, self._call_text, self._is_no_call = self._call_text, "", False
        if text and not self._has_deltas:
            yield from self._content_delta(text)

    def _end(self, done: Mapping[str, object]) -> Iterator[Piece]:
        ended = _ended(done, self.num_calls, self.max_tokens)
        self._logprobs.clear()
        if self._call_text:
            # our agents parse only calls that are complete, Paddler's any
            is_judged = self._is_no_call and done.get("finish") is not None
            if ended.is_cut_off and not is_judged:
                self._begin_calls()
            elif not self._call_text.isspace():
                self._is_no_call = True
                yield from self._text_of_no_call()
        yield from _delta(*self._layout.end())
        self.ended = ended
        yield ended


def reader_of(generate: Generate, *, is_verbatim: bool = False) -> AnswerReader:
    """Return what reads an answer to this request: Paddler's agents do not say what it may call, or
    where it is cut off."""
    prompt = generate.prompt
    reads_calls = isinstance(prompt, ConversationPrompt) and prompt.reads_calls
    return AnswerReader(not reads_calls, generate.max_tokens, is_verbatim)


def _delta(text: str, logprobs: Sequence[Mapping[str, object]]) -> Iterator[Piece]:
    if text:
        yield ContentDelta(text, logprobs)


def _arguments_text(arguments: object) -> str:
    match arguments:
        case {"InvalidJson": str(text)}:
            return text
        case {"ValidJson": value}:
            return dumps(value).decode()
    return dumps(arguments).decode()


def _ended(done: Mapping[str, object], num_calls: int, max_tokens: int | None) -> Ended:
    usage, finish, timings = done.get("usage"), done.get("finish"), done.get("timings")
    assert isinstance(usage, dict)
    reason, stop_text = "stop", None
    match finish:
        case {"reason": str(reason), **more}:
            stop_text = more.get("stop_text")
    ended = Ended(
        reason=reason,
        stop_text=stop_text if isinstance(stop_text, str) else None,
        usage=_with_images(usage),
        timings=timings if isinstance(timings, dict) else {},
        num_calls=num_calls,
    )
    if finish is None and max_tokens is not None and completion_tokens(ended) >= max_tokens:
        return attrs.evolve(ended, reason="length")
    return ended


def completion_tokens(ending: Ended) -> int:
    """Return all tokens that the model generated."""
    kinds = ("content_tokens", "reasoning_tokens", "tool_call_tokens", "undeterminable_tokens")
    return sum(ending.usage.get(kind, 0) for kind in kinds)


def _with_images(usage: Mapping[str, int]) -> Mapping[str, int]:
    """Count the tokens of an image or a sound as part of the prompt, as all these APIs do."""
    seen = usage.get("input_image_tokens", 0) + usage.get("input_audio_tokens", 0)
    return {**usage, "prompt_tokens": usage["prompt_tokens"] + seen}


def logprob_with_top(entry: Mapping[str, object], *names: str) -> Json:
    """Return a token's log probability: these members of it, and the same of the likeliest
    tokens."""
    return {
        **{name: entry[name] for name in names},
        "top_logprobs": [{name: other[name] for name in names} for other in top_of(entry)],
    }


def top_of(entry: Mapping[str, object]) -> list[Mapping[str, object]]:
    top = entry.get("top", [])
    assert isinstance(top, list)
    return top


def text_bytes(text: str) -> int:
    """Return the most that ``text`` takes in a longer one, whatever else is in that."""
    return 4 * len(text)


@attrs.define
class Call:
    id: str
    name: str
    arguments: str = ""


@attrs.define
class Answer:
    """One whole choice, as it grows."""

    reader: AnswerReader
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = attrs.field(factory=list)
    logprobs: KeptLogprobs = attrs.field(factory=KeptLogprobs)

    def take(self, results: Iterable[RawResult]) -> int:
        """Return by how many bytes it has grown."""
        before = self.logprobs.held_bytes
        grown = 0
        for piece in self.reader.take(results):
            match piece:
                case ContentDelta(text, logprobs):
                    self.content += text
                    self.logprobs.add(logprobs)
                    grown += text_bytes(text)
                case ReasoningDelta(text):
                    self.reasoning += text
                    grown += text_bytes(text)
                case ToolCallStart(_, call_id, name):
                    self.calls.append(Call(call_id, name))
                    grown += CALL_BYTES + text_bytes(call_id + name)
                case ArgumentsDelta(index, arguments):
                    self.calls[index].arguments += arguments
                    grown += text_bytes(arguments)
                case Prefilled() | Ended():
                    pass
        return grown + self.logprobs.held_bytes - before

    @property
    def ended(self) -> Ended:
        """Return the last piece of an answer, which must have ended."""
        assert self.reader.ended is not None
        return self.reader.ended
