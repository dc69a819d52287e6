"""Native results as OpenAI's text completion: pure, one object for an answer.

A completion is text as the model wrote it: nothing in it is reasoning or a tool call.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.apis.answer import (
    AnswerReader,
    ContentDelta,
    Ended,
    Piece,
    ReasoningDelta,
    Stopwatch,
    usage_of,
)
from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.openai.chat_request import Delivery
from paddler_trio.apis.openai.chat_response import (
    Heading,
    Json,
    timings_beside,
    verbosely,
    with_stop_text,
)
from paddler_trio.apis.prompt_progress import Reports
from paddler_trio.apis.steps import Step
from paddler_trio.http import sse


def new_completion_id() -> str:
    return "cmpl-" + secrets.token_urlsafe(21)


@attrs.define
class TextAnswer:
    """One choice as it grows; ``text`` begins with the echoed prompt, if there is one."""

    text: str
    reader: AnswerReader = attrs.field(
        factory=lambda: AnswerReader(raw_calls=True, is_verbatim=True)
    )
    logprobs: list[Mapping[str, object]] = attrs.field(factory=list)
    tokens: list[int] = attrs.field(factory=list)
    _logprobs_at: list[int] = attrs.field(factory=list)

    def take(self, step: Step) -> list[Piece]:
        self.tokens += step.tokens
        pieces = list(self.reader.take(step.results))
        for piece in pieces:
            match piece:
                case ContentDelta(text, logprobs):
                    self._logprobs_at += _offsets(len(self.text), logprobs)
                    self.logprobs += logprobs
                    self.text += text
                case ReasoningDelta(text):
                    self.text += text
                case _:
                    pass
        return pieces

    @property
    def ended(self) -> Ended:
        assert self.reader.ended is not None
        return self.reader.ended

    def mean_logprob(self) -> float:
        """The mean log probability of its tokens; minus infinity without any."""
        values = [value for entry in self.logprobs if isinstance(value := entry["logprob"], float)]
        return sum(values) / len(values) if values else -math.inf

    def legacy_logprobs(self, *, is_exact: bool) -> Json:
        return legacy_logprobs(self.logprobs, self._logprobs_at, is_exact=is_exact)


def _offsets(start: int, logprobs: Sequence[Mapping[str, object]]) -> list[int]:
    """Where in the text each token begins."""
    offsets = []
    for entry in logprobs:
        offsets.append(start)
        start += len(str(entry["token"]))
    return offsets


def legacy_logprobs(
    entries: Sequence[Mapping[str, object]], offsets: Sequence[int], *, is_exact: bool = False
) -> Json:
    """The four parallel lists of OpenAI's completions, and llama-server's ``content`` with them
    unless ``is_exact``."""
    lists: Json = {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {str(other["token"]): other["logprob"] for other in _top(entry)} for entry in entries
        ],
        "text_offset": list(offsets),
    }
    if is_exact:
        return lists
    content = [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "bytes": entry["bytes"],
            "top_logprobs": _top(entry),
        }
        for entry in entries
    ]
    return {**lists, "content": content}


def _top(entry: Mapping[str, object]) -> list[Mapping[str, object]]:
    top = entry.get("top", [])
    assert isinstance(top, list)
    return top


@attrs.define
class WholeCompletion:
    """All choices of a completion that is sent at once.

    Args:
      answers: ``best_of`` for each prompt, those of one prompt together.
      verbose: the prompt and the settings of the model, for ``__verbose``; None for nothing.
    """

    heading: Heading
    delivery: Delivery
    answers: list[TextAnswer]
    n: int
    best_of: int
    verbose: Json | None = None

    def take(self, step: Step) -> None:
        self.answers[step.choice].take(step)

    def body(self) -> Json:
        groups = [
            self.answers[start : start + self.best_of]
            for start in range(0, len(self.answers), self.best_of)
        ]
        chosen = [answer for group in groups for answer in self._best(group)]
        endings = [answer.ended for answer in self.answers]
        return {
            **self.heading.fields("text_completion"),
            "choices": [self._choice(index, answer) for index, answer in enumerate(chosen)],
            "usage": usage_of(endings, prompts=len(groups)),
            **timings_beside(self.delivery, endings[0]),
            **verbosely(self.verbose),
        }

    def _best(self, group: list[TextAnswer]) -> list[TextAnswer]:
        if self.best_of == self.n:
            return group
        return sorted(group, key=TextAnswer.mean_logprob, reverse=True)[: self.n]

    def _choice(self, index: int, answer: TextAnswer) -> Json:
        return {
            "text": with_stop_text(answer.text, answer.ended, self.delivery),
            "index": index,
            "logprobs": (
                answer.legacy_logprobs(is_exact=self.delivery.is_exact)
                if self.delivery.with_logprobs
                else None
            ),
            "finish_reason": answer.ended.finish_reason,
        }


@attrs.define
class CompletionStream:
    """A :class:`~paddler_trio.apis.steps.StreamEncoder` of completion chunks.

    Args:
      answers: ``n`` for each of ``num_prompts`` prompts.
      watch: for timings in every chunk, where the request asks for them.
      verbose: the prompt and the settings of the model, for the last chunk of a choice.
    """

    heading: Heading
    delivery: Delivery
    answers: list[TextAnswer]
    num_prompts: int
    watch: Stopwatch
    verbose: Json | None = None
    _reports: Reports = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        delivery = self.delivery
        self._reports = Reports(self.watch, delivery.with_progress, delivery.with_timings)

    def opening(self) -> bytes:
        return b"".join(
            self._chunk(index, answer.text)
            for index, answer in enumerate(self.answers)
            if answer.text
        )

    def take(self, step: Step) -> bytes:
        self.watch.passed(len(step.tokens))
        answer = self.answers[step.choice]
        chunks = b""
        length = len(answer.text)
        for piece in answer.take(step):
            for members in self._reports.before(step.choice, piece):
                chunks += self._chunk(step.choice, "", more=members)
            match piece:
                case ContentDelta(text, logprobs):
                    legacy = legacy_logprobs(
                        logprobs, _offsets(length, logprobs), is_exact=self.delivery.is_exact
                    )
                    chunks += self._chunk(step.choice, text, logprobs=legacy)
                    length += len(text)
                case ReasoningDelta(text):
                    chunks += self._chunk(step.choice, text)
                    length += len(text)
                case Ended():
                    more: Json = {}
                    if not self.delivery.with_usage:
                        more |= timings_beside(self.delivery, piece)
                    more |= verbosely(self.verbose)
                    chunks += self._chunk(
                        step.choice,
                        with_stop_text("", piece, self.delivery),
                        finish_reason=piece.finish_reason,
                        more=more,
                    )
                case _:
                    pass
        return chunks

    def closing(self) -> bytes:
        if not self.delivery.with_usage:
            return sse.DONE
        endings = [answer.ended for answer in self.answers]
        last = {
            **self.heading.fields("text_completion"),
            "choices": [],
            "usage": usage_of(endings, prompts=self.num_prompts),
            **timings_beside(self.delivery, endings[0]),
        }
        return sse.event(last) + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        return sse.event(error.envelope(with_details=not self.delivery.is_exact))

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        logprobs: Json | None = None,
        finish_reason: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> bytes:
        choice = {
            "text": text,
            "index": index,
            "logprobs": logprobs if self.delivery.with_logprobs else None,
            "finish_reason": finish_reason,
        }
        chunk: Json = {**self.heading.fields("text_completion"), "choices": [choice]}
        if self.delivery.with_usage:
            chunk["usage"] = None
        timings = self.watch.timings() if self.delivery.with_timings else None
        if timings is not None:
            chunk["timings"] = timings
        return sse.event(chunk | dict(more or {}))
