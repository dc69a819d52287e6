"""Requests on their way into the decode loop: checked, and with a sampler built, outside of it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from paddler_trio.processes.engine.llama.context_shape import ContextShape
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.llama.vision import Embeddings
from paddler_trio.processes.engine.sampling.constraint import (
    GrammarInvalidError,
    GrammarRejectedError,
)
from paddler_trio.processes.engine.sampling.sampler import Sampler
from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.image_tokens import image_of, is_image, words_of
from paddler_trio.wire.engine.engine_pipe import Ending, StartSequence
from paddler_trio.wire.engine.sampler_stages import sampling_problem


@attrs.frozen
class Admitted:
    """A request that fits, with its sampler built: ready for a stream."""

    start: StartSequence
    sampler: Sampler
    embeddings: Embeddings = attrs.field(factory=dict)
    """The embeddings of the media in its prompt, each of which has its tokens there."""
    num_audio_tokens: int = 0


def admit(
    llama: Llama, shape: ContextShape, start: StartSequence, embeddings: Embeddings | None = None
) -> Admitted | Ending:
    """Check a request and build its sampler; runs beside the decode loop, never in it."""
    embeddings = embeddings or {}
    words = words_of(start.tokens)
    refused = refusal(
        num_prompt_tokens=len(start.tokens),
        num_sampled=len(start.sampled),
        max_tokens=start.max_tokens,
        cells=shape.cells,
    )
    if refused is not None:
        return Ending(start.key, "refused", len(words), 0, refused.reason)
    stray = next((t for t in _extremes(words, start.sampled) if not 0 <= t < shape.n_vocab), None)
    if len(words) < len(start.tokens):
        unseen = (t for t in start.tokens if is_image(t) and image_of(t) not in embeddings)
        stray = next(unseen, stray)
    num_adapters = len(llama.adapters)
    if not all(0 <= each.place < num_adapters for each in start.adapters):
        detail = f"there are {num_adapters} adapters, and another one is asked for"
        return Ending(start.key, "refused", len(words), 0, detail)
    problem = sampling_problem(start.sampling, n_vocab=shape.n_vocab, logprobs=start.logprobs)
    if problem is not None:
        return Ending(start.key, "refused", len(words), 0, problem)
    if stray is not None:
        detail = f"token {stray} is outside the vocabulary of {shape.n_vocab}"
        return Ending(start.key, "refused", len(words), 0, detail)
    try:
        sampler = Sampler.build(
            llama,
            start.sampling,
            start.grammar,
            cells=shape.cells,
            prompt=words,
            reasoning=start.reasoning,
        )
    except GrammarInvalidError as error:
        return Ending(start.key, "grammar_invalid", len(words), 0, str(error))
    try:
        for token in start.sampled:
            sampler.replay(token)
    except GrammarRejectedError as error:
        sampler.close()
        return Ending(start.key, "grammar_rejected", len(words), 0, str(error))
    return Admitted(start, sampler, embeddings, _num_heard(start.tokens, embeddings))


def _num_heard(tokens: Sequence[int], embeddings: Embeddings) -> int:
    """Return how many of the tokens of a prompt are of sounds."""
    sounds = {number for number, rows in embeddings.items() if rows.is_sound}
    return sum(is_image(t) and image_of(t) in sounds for t in tokens) if sounds else 0


def _extremes(*parts: Sequence[int]) -> list[int]:
    """Return the least and the greatest of each: if these are tokens, all are. Other threads wait
    for the interpreter while a long prompt is looked at, so this is left to C."""
    return [extreme(part) for part in parts if part for extreme in (min, max)]
