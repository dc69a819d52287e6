"""Questions about the model that is served: answered in worker threads, without a slot.

Tokens of a text, the text of tokens, the prompt a conversation becomes, and what the model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, assert_never

import attrs
import structlog
import trio

from paddler_trio.agent.model_server import ModelServer, Serving
from paddler_trio.errors import ModelFileError
from paddler_trio.language.answer_binding import form_of
from paddler_trio.language.giving_way import GivingWay, give_way
from paddler_trio.language.images.image_parts import readable
from paddler_trio.language.prompting import Language, rendering_of, tokens_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.templates.token_escaping import unfenced
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.trio.generate import (
    DescribeModel,
    Detokenize,
    Prompt,
    Question,
    RenderPrompt,
    Tokenize,
    TokenPrompt,
)
from paddler_trio.wire.trio.trio_link import Answer, Ask, render_extension

log = structlog.get_logger("questions")

ANSWERING_THREADS = 2
MAX_QUESTIONS = 256
"""Under way at once; each may hold a text of ``MAX_TEXT_CHARS``."""
MAX_TEXT_CHARS = 4_000_000
MAX_TOKENS = 2_000_000


class QuestionReply(Protocol):
    """Where answers go: the link the question came in on."""

    def answer(self, answer: Answer) -> None:
        """Queue a short answer."""
        ...

    async def send_large(self, frame: bytes) -> None:
        """Send, waiting for those before it; trio.BrokenResourceError when the link has ended."""
        ...


class _UnanswerableError(Exception):
    """There is no answer; ``code`` mirrors HTTP status numbers."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


@attrs.define(eq=False)
class ModelQuestions:
    """All questions of all links. ``open`` must be given their nursery before the first one."""

    giving_way: GivingWay
    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _under_way: dict[int, set[trio.CancelScope]] = attrs.field(factory=dict, init=False)
    """By the identity of the link; nothing is kept of one without questions."""
    _threads: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(ANSWERING_THREADS), init=False
    )

    def open(self, questions: trio.Nursery, models: ModelServer) -> None:
        self._nursery = questions
        self._models = models

    def ask(self, ask: Ask, reply: QuestionReply) -> None:
        """Answer on ``reply``, sooner or later, unless it is gone by then."""
        if self._nursery is None:
            reply.answer(Answer(ask.id, None, "this agent is starting", 503))
        elif sum(map(len, self._under_way.values())) >= MAX_QUESTIONS:
            problem = f"this agent has {MAX_QUESTIONS} questions to answer already"
            reply.answer(Answer(ask.id, None, problem, 503))
        else:
            self._nursery.start_soon(self._serve, ask, reply, name=f"question {ask.id}")

    def stop_all_of(self, reply: object) -> None:
        """The link is gone: nobody hears the answers."""
        for scope in self._under_way.get(id(reply), ()):
            scope.cancel(reason="the link is gone")

    async def _serve(self, ask: Ask, reply: QuestionReply) -> None:
        scopes = self._under_way.setdefault(id(reply), set())
        with trio.CancelScope() as scope:
            scopes.add(scope)
            try:
                await reply.send_large(render_extension(await self._answer(ask)))
            except trio.BrokenResourceError:
                log.debug("the link ended before it had its answer", id=ask.id)
            finally:
                scopes.discard(scope)
                if not scopes:
                    self._under_way.pop(id(reply), None)

    async def _answer(self, ask: Ask) -> Answer:
        serving = None if self._models is None else self._models.serving
        if serving is None:
            return Answer(ask.id, None, "this agent serves no model now", 503)
        try:
            answer = await trio.to_thread.run_sync(
                self.giving_way.run,
                partial(answer_to, ask.question, serving),
                limiter=self._threads,
                abandon_on_cancel=True,
            )
        except _UnanswerableError as error:
            return Answer(ask.id, None, str(error), error.code)
        except ModelFileError as error:  # swapped in the middle of it
            return Answer(ask.id, None, str(error), 503)
        return Answer(ask.id, answer, None, 200)


def answer_to(question: Question, serving: Serving) -> dict[str, object]:
    """The answer as plain JSON; blocking. Its shape stands beside each question's class."""
    language = serving.language
    vocabulary = language.vocabulary
    try:
        match question:
            case Tokenize():
                return _tokenize(question, vocabulary)
            case Detokenize(tokens=tokens):
                _limit("tokens", len(tokens), MAX_TOKENS, "tokens")
                return {"text": _text_of(tokens, vocabulary)}
            case RenderPrompt(prompt=prompt):
                return _render(prompt, language)
            case DescribeModel():
                ready = serving.engine.ready
                assert ready is not None, "an engine that serves was ready once"
                return _describe(serving, ready)
    except TokenizationError as error:
        raise _UnanswerableError(400, str(error)) from error
    except Refusal as refusal:
        raise _UnanswerableError(400, _words(refusal)) from refusal
    assert_never(question)


def _tokenize(question: Tokenize, vocabulary: Vocabulary) -> dict[str, object]:
    _limit("text", len(question.text), MAX_TEXT_CHARS, "characters")
    tokens = vocabulary.tokenize(
        question.text, add_special=question.add_special, parse_special=question.parse_special
    )
    if not question.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(token, vocabulary)} for token in tokens]}


def _render(prompt: Prompt, language: Language) -> dict[str, object]:
    rendering = rendering_of(prompt, language)
    tokens = tokens_of(prompt, rendering, language.vocabulary)
    if isinstance(prompt, TokenPrompt):
        return {"prompt": _text_of(tokens, language.vocabulary), "num_tokens": len(tokens)}
    return {"prompt": readable(unfenced(rendering.text)), "num_tokens": len(tokens)}


def _text_of(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    pieces = (_bytes_of(token, vocabulary) for token in tokens)
    return b"".join(pieces).decode("utf-8", errors="replace")


def _bytes_of(token: int, vocabulary: Vocabulary) -> bytes:
    give_way()
    return vocabulary.token_bytes(token, special=True)


def _piece(token: int, vocabulary: Vocabulary) -> object:
    """Its text, or a list of its bytes where they are only a part of a character."""
    piece = _bytes_of(token, vocabulary)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _describe(serving: Serving, ready: Ready) -> dict[str, object]:
    language = serving.language
    vocabulary = language.vocabulary
    embedding = ready.embedding
    traits = language.templates.default.traits
    return {
        "name": vocabulary.metadata.get("general.name") or vocabulary.path.stem,
        "size_bytes": vocabulary.size_bytes,
        "n_params": vocabulary.n_params,
        "n_vocab": vocabulary.n_tokens,
        "n_ctx": ready.cells,
        "n_ctx_train": ready.n_ctx_train,
        "n_embd": vocabulary.n_embd,
        "vocab_type": vocabulary.kind,
        "bos_token": vocabulary.bos_text,
        "eos_token": vocabulary.eos_text,
        "end_tokens": list(vocabulary.end_tokens),
        "chat_template": vocabulary.chat_template() or "",
        "can_embed": embedding is not None and embedding.pooling != "Rank",
        "can_rank": embedding is not None and embedding.pooling == "Rank",
        "can_see": ready.sees_images,
        "has_thinking": form_of(language.templates.default.template, language.markers).reasons,
        "has_tools": traits.tools,
    }


def _limit(name: str, size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise _UnanswerableError(400, f"{name} has {size} {unit}, the limit is {limit}")


def _words(refusal: Refusal) -> str:
    ((_, content),) = refusal.result.items()
    return str(content["message"]) if isinstance(content, dict) else str(content)
