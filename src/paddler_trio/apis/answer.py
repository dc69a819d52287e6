"""The results of one choice as pieces that every API has: content, reasoning, calls, the end.

:class:`AnswerReader` is the streaming half, :class:`Answer` collects a whole one. Both are pure.

Log probabilities belong to the text that follows them. Those of tokens that became no content
(reasoning, tool calls, the end of the turn, a stop text) are dropped, as OpenAI does.

The text of a tool call is held back: if calls were parsed from it, or still are being parsed, it is
dropped; if it turned out to be no call, it is content. Text that was cut off inside a call is
neither: the answer has begun a call, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.apis.layout import Layout
from paddler_trio.nursery_tree.request import RawResult
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.results import result_tag

Json = dict[str, object]


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
    _is_no_call: bool = attrs.field(default=False, init=False)
    """The agent could make nothing of the call's text."""
    _has_deltas: bool = attrs.field(default=False, init=False)
    _logprobs: list[Mapping[str, object]] = attrs.field(factory=list, init=False)
    _layout: Layout = attrs.field(factory=Layout, init=False)

    def take(self, results: Iterable[RawResult]) -> Iterator[Piece]:
        """The pieces of these results; results without a meaning here give none."""
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
        if self._call_text:
            self._layout.call()
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
        self._call_text, self._is_no_call = "", False
        self._layout.call()

    def _text_of_no_call(self) -> Iterator[Piece]:
        """The text that was held back, if it turned out to be no call."""
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
            else:
                self._is_no_call = True
                yield from self._text_of_no_call()
        yield from _delta(*self._layout.end())
        self.ended = ended
        yield ended


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


def _with_images(usage: Mapping[str, int]) -> Mapping[str, int]:
    """As all these APIs count: the tokens of an image are part of the prompt."""
    seen = usage.get("input_image_tokens", 0) + usage.get("input_audio_tokens", 0)
    return {**usage, "prompt_tokens": usage["prompt_tokens"] + seen}


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
    logprobs: list[Mapping[str, object]] = attrs.field(factory=list)
    tokens: list[int] = attrs.field(factory=list)

    def take(self, results: Iterable[RawResult], tokens: Iterable[int] = ()) -> None:
        self.tokens += tokens
        for piece in self.reader.take(results):
            match piece:
                case ContentDelta(text, logprobs):
                    self.content += text
                    self.logprobs += logprobs
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallStart(_, call_id, name):
                    self.calls.append(Call(call_id, name))
                case ArgumentsDelta(index, arguments):
                    self.calls[index].arguments += arguments
                case Prefilled() | Ended():
                    pass

    @property
    def ended(self) -> Ended:
        """Its last piece; it must have ended."""
        assert self.reader.ended is not None
        return self.reader.ended


# ---------------------------------------------------------------------- usage and timings


def usage_of(endings: Sequence[Ended], *, prompts: int = 1) -> Json:
    """OpenAI's ``usage``: each prompt counts once, the tokens of all its choices add up.

    Args:
      endings: of all choices, in their order: those of one prompt stand together.
      prompts: how many different prompts the request had.
    """
    per_prompt = max(1, len(endings) // prompts)
    firsts = endings[::per_prompt]
    prompt_tokens = sum(ending.usage["prompt_tokens"] for ending in firsts)
    cached = sum(ending.usage.get("cached_prompt_tokens", 0) for ending in firsts)
    reasoning = sum(ending.usage.get("reasoning_tokens", 0) for ending in endings)
    written = sum(completion_tokens(ending) for ending in endings)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def completion_tokens(ending: Ended) -> int:
    """All tokens that the model generated."""
    kinds = ("content_tokens", "reasoning_tokens", "tool_call_tokens", "undeterminable_tokens")
    return sum(ending.usage.get(kind, 0) for kind in kinds)


def timings_of(ending: Ended) -> Json:
    """llama-server's ``timings``: counts, milliseconds, and both ratios of them."""
    reported = ending.timings
    cached = int(reported.get("cached_n", ending.usage.get("cached_prompt_tokens", 0)))
    timings: Json = {
        "cache_n": cached,
        **_prompt_speed(ending.usage["prompt_tokens"] - cached, reported.get("prompt_ms", 0.0)),
        **_generation_speed(
            int(reported.get("predicted_n", completion_tokens(ending))),
            reported.get("predicted_ms", 0.0),
        ),
    }
    if "draft_n" in reported:
        timings["draft_n"] = reported["draft_n"]
        timings["draft_n_accepted"] = reported.get("draft_accepted_n", 0)
    return timings


def prompt_timings_of(prompt: Prefilled, took_ms: float) -> Json:
    """The same before there is a token."""
    return {
        "cache_n": prompt.cached,
        **_prompt_speed(prompt.done - prompt.cached, took_ms),
        **_generation_speed(0, 0.0),
    }


def _prompt_speed(count: int, took_ms: float) -> Json:
    return _speed("prompt", count, count, took_ms)


def _generation_speed(count: int, took_ms: float) -> Json:
    """The first token is sampled in the prompt's last pass: time counts from it on."""
    return _speed("predicted", count, max(0, count - 1), took_ms)


def _speed(name: str, count: int, timed: int, took_ms: float) -> Json:
    took_ms = round(took_ms, 3)
    return {
        f"{name}_n": count,
        f"{name}_ms": took_ms,
        f"{name}_per_token_ms": took_ms / timed if timed else 0.0,
        f"{name}_per_second": timed / took_ms * 1000 if took_ms else 0.0,
    }


@attrs.define
class Stopwatch:
    """The ``timings`` while tokens still come, measured where they are passed on."""

    now_s: Callable[[], float]
    began_s: float = attrs.field(init=False)
    _prompt: Prefilled | None = attrs.field(default=None, init=False)
    _first_token_s: float | None = attrs.field(default=None, init=False)
    _num_tokens: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.began_s = self.now_s()

    def prefilled(self, prompt: Prefilled) -> None:
        """Note how far the prompt is computed."""
        if self._first_token_s is None:
            self._prompt = prompt

    def passed(self, num_tokens: int) -> None:
        """Count tokens that were passed on."""
        self._num_tokens += num_tokens
        if num_tokens and self._first_token_s is None:
            self._first_token_s = self.now_s()

    def timings(self) -> Json | None:
        """None before the first token. If the agent reports no progress, only the time of the
        prompt is known; its numbers of tokens are 0."""
        if self._first_token_s is None:
            return None
        prompt = Prefilled(0, 0, 0) if self._prompt is None else self._prompt
        return {
            "cache_n": prompt.cached,
            **_prompt_speed(
                prompt.total - prompt.cached, (self._first_token_s - self.began_s) * 1000
            ),
            **_generation_speed(self._num_tokens, (self.now_s() - self._first_token_s) * 1000),
        }
