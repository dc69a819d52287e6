"""llama-server's own ``/completion``: the same native requests, encoded as it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

import attrs
import trio

from paddler_trio.balancer.apis.answers.answer import (
    MAX_REPEATED_CHARS,
    ContentDelta,
    Ended,
    Prefilled,
    ReasoningDelta,
    Step,
    completion_tokens,
    logprob_with_top,
    top_of,
)
from paddler_trio.balancer.apis.answers.run_requests import gather, stream
from paddler_trio.balancer.apis.answers.timings import Reports, Stopwatch, timings_of
from paddler_trio.balancer.apis.api_errors import ApiError, naming_fields
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import (
    Backend,
    cluster_parameters,
    model_name,
    must_generate,
    named,
)
from paddler_trio.balancer.apis.generation_settings import generation_settings
from paddler_trio.balancer.apis.openai.chat import with_stop_text
from paddler_trio.balancer.apis.openai.completion_request import (
    CompletionRequest,
    read_llama_completion,
)
from paddler_trio.balancer.apis.openai.completions import (
    TextAnswer,
    grown_by,
    native_prompts,
    prompt_text,
    text_answers,
)
from paddler_trio.balancer.apis.questions import end_tokens
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.work import Generate

_STOP_TYPES = {"stop": "eos", "stop_text": "word", "length": "limit", "cells": "limit"}


async def llama_completion(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_llama_completion)
    backend = backend.routed(exchange, request.delivery.model)
    must_generate(backend)
    prompts = await native_prompts(backend, exchange, request)
    shown = [await prompt_text(backend, exchange, each) for each in prompts]
    await answer_completion(backend, exchange, request, request.works(prompts), shown)


async def answer_completion(
    backend: Backend,
    exchange: ApiExchange,
    request: CompletionRequest,
    works: Sequence[Generate],
    shown: Sequence[str],
    *,
    prompt_field: str = "prompt",
) -> None:
    """Whole or as a stream.

    Args:
      shown: the text of each prompt.
      prompt_field: what is to blame for a prompt that cannot be answered.
    """
    asked = request.delivery.model
    model = model_name(backend, exchange, asked)
    texts = [text for text in shown for _ in range(request.n)]
    answers = text_answers([""] * len(texts), works, is_stream=request.delivery.is_stream)
    settings = generation_settings(
        cluster_parameters(backend),
        request.generate,
        is_stream=request.delivery.is_stream,
        with_timings=request.delivery.with_timings,
        end_tokens=await end_tokens(backend, exchange, request.generate),
    )
    watch = Stopwatch(trio.current_time)
    encoder = CompletionEncoder(request, model, texts, answers, watch, settings)
    named(encoder, backend, exchange, asked)
    with naming_fields(prompt=prompt_field, constraint=request.constrained_by):
        if request.delivery.is_stream:
            await stream(backend, exchange, works, encoder, keep_alive_s=request.delivery.ping_s)
        else:
            await gather(backend, exchange, works, encoder.read)
            await exchange.send_json(200, await exchange.run(encoder.body))


@attrs.define
class CompletionEncoder:
    """A ``StreamEncoder`` of events, and the whole answer. Pure.

    ``settings`` become ``generation_settings``. They and the texts of prompts are repeated in each
    of several answers as llama-server does it, up to ``MAX_REPEATED_CHARS`` in all; beyond that
    settings are in the first answer only, and a prompt in the first of its own.
    """

    request: CompletionRequest
    model: str
    prompts: Sequence[str]
    answers: list[TextAnswer]
    watch: Stopwatch
    settings: Json = attrs.field(factory=dict)
    _unsent_tokens: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    """Tokens of each choice whose text is held back."""
    _num_prompt_tokens: dict[int, int] = attrs.field(factory=dict, init=False)
    """Of each choice whose agent has reported the progress of its prompt."""
    _reports: Reports = attrs.field(init=False)
    _repeats: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings_chars = len(dumps(self.settings)) if len(self.answers) > 1 else 0
        repeated = settings_chars * len(self.answers) + sum(map(len, self.prompts))
        self._repeats = len(self.answers) == 1 or repeated <= MAX_REPEATED_CHARS
        delivery = self.request.delivery
        self._reports = Reports(self.watch, delivery.with_progress, delivery.with_timings)

    def read(self, step: Step) -> int:
        return grown_by(self.answers[step.choice], step)

    def body(self) -> object:
        """Return an object for one answer, a list for several."""
        bodies = [self._final(index, with_text=True) for index in range(len(self.answers))]
        is_several = self.request.prompts.is_several or self.request.n > 1
        return bodies if is_several else bodies[0]

    # ------------------------------------------------------------------ as a stream

    def opening(self) -> bytes:
        return b""

    def take(self, step: Step) -> bytes:
        """Return one event for each text of a step, as clients of llama-server count them, each
        with its tokens; one event for all texts where it is not known which are whose."""
        self.watch.passed(len(step.tokens))
        answer = self.answers[step.choice]
        unsent = self._unsent_tokens.setdefault(step.choice, [])
        unsent += step.tokens
        texts, begin, end = list[ContentDelta](), b"", b""
        num_textless = 0
        for piece in answer.take(step):
            if isinstance(piece, Prefilled):
                self._num_prompt_tokens[step.choice] = piece.total
            for members in self._reports.before(step.choice, piece):
                begin += streaming.event(self._partial(step.choice, "", (), ()) | members)
            match piece:
                case ContentDelta():
                    texts.append(piece)
                case ReasoningDelta(text):
                    texts.append(ContentDelta(text))
                case Ended(reason=reason, stop_text=stop_text):
                    num_textless = int(reason == "stop" and stop_text is None)
                    before = texts.pop() if texts else ContentDelta("")
                    text = with_stop_text(before.text, piece, self.request.delivery)
                    texts.append(attrs.evolve(before, text=text))
                    end += streaming.event(self._final(step.choice, with_text=False))
                case _:
                    pass
        texts = [each for each in texts if each.text]
        num_new = len(step.tokens) - num_textless
        return begin + self._events(step.choice, texts, num_new, num_textless) + end

    def _events(
        self, index: int, texts: Sequence[ContentDelta], num_new: int, num_textless: int
    ) -> bytes:
        """``num_new`` tokens of this step have texts; those before them, which had none yet, belong
        to the first. ``num_textless`` more at its end have none: the end of the turn."""
        if not texts:
            return b""
        unsent, events = self._unsent_tokens[index], b""
        num_told = len(unsent) - num_textless
        if any(each.logprobs for each in texts):
            sizes = [len(each.logprobs) for each in texts]
        elif num_new == len(texts):
            sizes = [num_told - len(texts) + 1, *[1] * (len(texts) - 1)]
        else:
            sizes = [num_told]
            texts = [ContentDelta("".join(each.text for each in texts))]
        for delta, size in zip(texts, sizes, strict=True):
            tokens, unsent[:size] = unsent[:size], []
            partial = self._partial(
                index, delta.text, tokens, delta.logprobs, num_later=len(unsent)
            )
            events += streaming.event(partial)
        return events

    def closing(self) -> bytes:
        return b""

    def failed(self, error: ApiError) -> bytes:
        return streaming.event(error.envelope())

    # ---------------------------------------------------------------------- inside

    def _partial(
        self,
        index: int,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[Mapping[str, object]],
        *,
        num_later: int = 0,
    ) -> Json:
        """``num_later``: tokens that come with later events."""
        body: Json = {
            "index": index,
            "content": text,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(self.answers[index].tokens) - num_later,
            "tokens_evaluated": self._num_prompt_tokens.get(index, 0),
        }
        if logprobs:
            body["completion_probabilities"] = [self._probability(entry) for entry in logprobs]
        timings = self.watch.timings() if self.request.delivery.with_timings else None
        if timings is not None:
            body["timings"] = timings
        return body

    def _final(self, index: int, *, with_text: bool) -> Json:
        answer = self.answers[index]
        ended = answer.ended
        whole = with_stop_text(answer.text, ended, self.request.delivery)
        body: Json = {
            "index": index,
            "content": whole if with_text else "",
            "tokens": (answer.tokens.tolist() if with_text and self.request.with_tokens else []),
            "id_slot": -1,
            "stop": True,
            "model": self.model,
            "tokens_predicted": completion_tokens(ended),
            "tokens_evaluated": ended.usage["prompt_tokens"],
            "generation_settings": self.settings if self._repeats or not index else {},
            "prompt": self.prompts[index] if self._repeats or not index % self.request.n else "",
            "has_new_line": "\n" in whole,
            "truncated": ended.reason == "cells",
            "stop_type": _STOP_TYPES.get(ended.reason, "none"),
            "stopping_word": ended.stop_text or "",
            "tokens_cached": ended.usage.get("cached_prompt_tokens", 0),
            "timings": timings_of(ended),
        }
        if with_text and answer.logprobs:
            body["completion_probabilities"] = answer.logprobs.written(self._probability)
        if self.request.response_fields:
            return _only(body, self.request.response_fields)
        return body

    def _probability(self, entry: Mapping[str, object]) -> Json:
        if not self.request.generate.sampling.post_sampling_probs:
            return logprob_with_top(entry, "id", "token", "bytes", "logprob")
        return _share(entry) | {"top_probs": [_share(other) for other in top_of(entry)]}


def _share(entry: Mapping[str, object]) -> Json:
    """A token and its probability behind all stages of the chain."""
    logprob = entry["logprob"]
    assert isinstance(logprob, float)
    return {**{name: entry[name] for name in ("id", "token", "bytes")}, "prob": exp(logprob)}


def _only(body: Mapping[str, object], names: Sequence[str]) -> Json:
    """These members; a slash leads into one. Missing ones are left out."""
    chosen: Json = {}
    for name in names:
        value: object = body
        for step in name.split("/"):
            value = value.get(step, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is not _MISSING:
            chosen[name] = value
    return chosen


_MISSING = object()
