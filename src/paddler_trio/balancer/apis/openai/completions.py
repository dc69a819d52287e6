"""``/v1/completions``: body in, native requests, answer out.

A completion is text as the model wrote it: nothing in it is reasoning or a tool call.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from paddler_trio.balancer.apis.answers.answer import (
    AnswerReader,
    ContentDelta,
    Ended,
    Piece,
    ReasoningDelta,
    Step,
    logprob_with_top,
    reader_of,
    top_of,
)
from paddler_trio.balancer.apis.answers.kept_logprobs import KeptLogprobs
from paddler_trio.balancer.apis.answers.run_requests import gather, stream
from paddler_trio.balancer.apis.answers.timings import Stopwatch, usage_of
from paddler_trio.balancer.apis.api_errors import naming_fields, prompt_too_long
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, cells_at_most, must_generate
from paddler_trio.balancer.apis.openai.answer_heading import Heading, heading_of
from paddler_trio.balancer.apis.openai.chat import (
    ChunkStream,
    timings_beside,
    verbose_of,
    verbosely,
    with_stop_text,
)
from paddler_trio.balancer.apis.openai.chat_request import Delivery
from paddler_trio.balancer.apis.openai.completion_request import (
    CompletionRequest,
    RawPrompt,
    read_completion,
)
from paddler_trio.balancer.apis.prompts import Prompt
from paddler_trio.balancer.apis.questions import text_of, token_ids
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.json_text import Items
from paddler_trio.wire.trio.work import Generate, InfillPrompt, TextPrompt, TokenPrompt


@attrs.define
class TextAnswer:
    """One choice as it grows; ``text`` begins with the echoed prompt, if there is one."""

    text: str
    reader: AnswerReader
    keeps_logprobs: bool = True
    logprobs: KeptLogprobs = attrs.field(factory=KeptLogprobs, init=False)
    tokens: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    _logprobs_at: array[int] = attrs.field(factory=lambda: array("q"), init=False)

    _has_grown: bool = attrs.field(default=False, init=False)
    """Until then it has its text in common with others."""

    @property
    def held_bytes(self) -> int:
        """Return how many bytes it takes, of its own."""
        listed = self.tokens.itemsize * (len(self.tokens) + len(self._logprobs_at))
        own_text = sys.getsizeof(self.text) if self._has_grown else 0
        return own_text + self.logprobs.held_bytes + listed

    def take(self, step: Step) -> list[Piece]:
        self._has_grown = True
        self.tokens.extend(step.tokens)
        pieces = list(self.reader.take(step.results))
        for piece in pieces:
            match piece:
                case ContentDelta(text, logprobs):
                    if self.keeps_logprobs:
                        self._logprobs_at.extend(_offsets(len(self.text), logprobs))
                        self.logprobs.add(logprobs)
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
        """Return the mean log probability of its tokens; minus infinity without any."""
        count = len(self.logprobs)
        return sum(self.logprobs.sampled()) / count if count else -math.inf

    def legacy_logprobs(self, *, is_exact: bool) -> Json:
        """Build what the function of this name builds, each list made while it is written."""
        offsets = self._logprobs_at
        lists: Json = {name: self.logprobs.written(form) for name, form in _LEGACY_LISTS.items()}
        lists["text_offset"] = Items(lambda: offsets, len(offsets))
        return lists if is_exact else {**lists, "content": self.logprobs.written(_legacy_entry)}


def _offsets(start: int, logprobs: Sequence[Mapping[str, object]]) -> list[int]:
    """Return where in the text each token begins."""
    offsets = []
    for entry in logprobs:
        offsets.append(start)
        start += len(str(entry["token"]))
    return offsets


def legacy_logprobs(
    entries: Sequence[Mapping[str, object]], offsets: Sequence[int], *, is_exact: bool = False
) -> Json:
    """Return the four parallel lists of OpenAI's completions, and llama-server's ``content`` with
    them unless ``is_exact``."""
    lists: Json = {name: [*map(form, entries)] for name, form in _LEGACY_LISTS.items()}
    lists["text_offset"] = list(offsets)
    return lists if is_exact else {**lists, "content": [*map(_legacy_entry, entries)]}


def _legacy_entry(entry: Mapping[str, object]) -> Json:
    return logprob_with_top(entry, "id", "token", "bytes", "logprob")


_LEGACY_LISTS: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    "tokens": lambda entry: entry["token"],
    "token_logprobs": lambda entry: entry["logprob"],
    "top_logprobs": lambda entry: {
        str(other["token"]): other["logprob"] for other in top_of(entry)
    },
}


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

    def take(self, step: Step) -> int:
        return grown_by(self.answers[step.choice], step)

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
class CompletionStream(ChunkStream):
    """A ``StreamEncoder`` of completion chunks.

    Args:
      answers: ``n`` for each of ``num_prompts`` prompts.
    """

    kind = "text_completion"
    answers: list[TextAnswer]
    num_prompts: int
    _begun: set[int] = attrs.field(factory=set, init=False)
    """The choices of which something was told."""

    def opening(self) -> bytes:
        return b""

    def take(self, step: Step) -> bytes:
        chunks = self._echo(step.choice)
        self.watch.passed(len(step.tokens))
        answer = self.answers[step.choice]
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
                    chunks += self._chunk(
                        step.choice,
                        with_stop_text("", piece, self.delivery),
                        finish_reason=piece.finish_reason,
                        more=self._end_members(piece) | self._usage_beside(piece),
                    )
                case _:
                    pass
        return chunks

    def closing(self) -> bytes:
        endings = [answer.ended for answer in self.answers]
        return self._closing(endings, prompts=self.num_prompts)

    def _usage_beside(self, ended: Ended) -> Json:
        """llama-server's: the usage of this choice, unless a chunk of its own has that of all."""
        if self.delivery.is_exact or self.delivery.with_usage:
            return {}
        return {"usage": usage_of([ended])}

    def _echo(self, choice: int) -> bytes:
        """The prompt, once an agent has taken it: one that fits nowhere is not repeated."""
        if choice in self._begun:
            return b""
        self._begun.add(choice)
        text = self.answers[choice].text
        return self._chunk(choice, text) if text else b""

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        logprobs: Json | None = None,
        finish_reason: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> bytes:
        choice: Json = {
            "text": text,
            "index": index,
            "logprobs": logprobs if self.delivery.with_logprobs else None,
            "finish_reason": finish_reason,
        }
        return self._event(choice, more)


def grown_by(answer: TextAnswer, step: Step) -> int:
    """Return by how many bytes ``answer`` grows when it takes ``step``."""
    before = answer.held_bytes
    answer.take(step)
    return answer.held_bytes - before


def text_answers(
    begun: Sequence[str], works: Sequence[Generate], *, is_stream: bool
) -> list[TextAnswer]:
    """Return one for each request; ``begun``: what each text begins with. A stream has sent what is
    known of its tokens, and does not keep it."""
    return [
        TextAnswer(text, reader_of(work, is_verbatim=True), not is_stream)
        for text, work in zip(begun, works, strict=True)
    ]


async def completions(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_completion)
    if exchange.is_exact:
        request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
    backend = backend.routed(exchange, request.delivery.model)
    heading = heading_of(backend, exchange, request.delivery.model, prefix="cmpl-")
    must_generate(backend)
    prompts = await native_prompts(backend, exchange, request)
    works = request.works(prompts)
    echoes = [
        await prompt_text(backend, exchange, each) if request.with_echo else "" for each in prompts
    ]
    verbose = await verbose_of(backend, exchange, request.delivery, works[0])
    begun = [echo for echo in echoes for _ in range(request.best_of)]
    answers = text_answers(begun, works, is_stream=request.delivery.is_stream)
    with naming_fields(prompt="prompt", constraint=request.constrained_by):
        if request.delivery.is_stream:
            watch = Stopwatch(trio.current_time)
            encoder = CompletionStream(
                heading, request.delivery, watch, answers, len(prompts), verbose=verbose
            )
            await stream(backend, exchange, works, encoder, keep_alive_s=request.delivery.ping_s)
        else:
            whole = WholeCompletion(
                heading, request.delivery, answers, request.n, request.best_of, verbose
            )
            await gather(backend, exchange, works, whole.take)
            await exchange.send_json(200, await exchange.run(whole.body))


async def native_prompts(
    backend: Backend, exchange: ApiExchange, request: CompletionRequest
) -> list[RawPrompt]:
    """Return each prompt; an agent is asked where texts and ids are mixed."""
    prompts, suffix = request.prompts.prompts, request.suffix
    return [await _native(backend, exchange, prompt, suffix) for prompt in prompts]


async def _native(
    backend: Backend, exchange: ApiExchange, prompt: Prompt, suffix: str
) -> RawPrompt:
    if isinstance(prompt, str):
        return InfillPrompt(prefix=prompt, suffix=suffix) if suffix else TextPrompt(text=prompt)
    most_cells = cells_at_most(backend)
    if most_cells is not None and len(prompt) > most_cells:
        raise prompt_too_long(len(prompt), most_cells, param="prompt")
    return TokenPrompt(tokens=await token_ids(backend, prompt, exchange, param="prompt"))


async def prompt_text(backend: Backend, exchange: ApiExchange, prompt: RawPrompt) -> str:
    """Return the text of a prompt, without a suffix; an agent is asked for that of token ids."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, InfillPrompt):
        return prompt.prefix
    return await text_of(backend, prompt.tokens, exchange)
