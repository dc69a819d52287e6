"""Part the chunks of a pass into calls of llama.cpp, and fill a batch for each.

An image needs a call of its own. With regions of their own, sequences in one call all pay for the
longest of them: those that generate are computed without a long prompt beside them, and their
tokens are out before it. llama.cpp would compute prompts of different lengths one after the other
as well, and the ends of the longer ones slowly; so they come one after the other, and the first
tokens of the short ones are out before the long ones are computed. In a pool every sequence pays
for everything anyway, and one call reads the weights once. A sequence that may have killed an
engine is computed by itself, after all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import attrs
import numpy as np

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.llama.vision import Embeddings
from paddler_trio.scheduler.batching.batch_plan import ScheduledChunk
from paddler_trio.scheduler.batching.image_tokens import Positions, image_of, is_image, place_of


@attrs.frozen
class Content:
    """The content of a sequence besides its words, and where each token is for the model."""

    embeddings: Embeddings
    positions: Positions

    @classmethod
    def of(cls, prompt: list[int], embeddings: Embeddings) -> Content:
        return cls(embeddings, Positions(prompt if embeddings else ()))


@attrs.frozen
class Call:
    """``compute`` runs it and returns llama.cpp's code; ``rows`` are the chunks that want a next
    token, each with the row of its first logits."""

    compute: Callable[[], int]
    rows: list[tuple[ScheduledChunk, int]]


def part(
    chunks: tuple[ScheduledChunk, ...],
    *,
    is_unified: bool,
    call_tokens: int,
    isolated: Collection[int] = frozenset(),
) -> list[tuple[ScheduledChunk, ...]]:
    """Return the chunks of a pass, grouped by the call they are computed in; those of ``isolated``
    sequences each have a call of their own.

    Args:
      call_tokens: of several prompts no more than that come in one call, where it makes no
        difference to the others.

    Returns:
      First what generates, then prompts that are finished, the short ones first, then parts.
    """
    if chunks and not isolated and all(chunk.sequence.is_generating for chunk in chunks):
        return [chunks]  # a token that was sampled is a word
    single = [
        chunk
        for chunk in chunks
        if chunk.sequence.key in isolated or is_image(chunk.sequence.tokens[chunk.start])
    ]
    words = [chunk for chunk in chunks if not single or chunk not in single]
    last = [(chunk,) for chunk in single]
    if is_unified:
        return [call for call in (tuple(words), *last) if call]
    calls = [tuple(s for s in words if s.sequence.is_generating)]
    prompts = [s for s in words if not s.sequence.is_generating]
    for chunk in sorted(prompts, key=lambda chunk: (not chunk.wants_logits, chunk.count)):
        before = calls[-1]
        is_alike = len(calls) > 1 and before[0].count == chunk.count
        if is_alike and (len(before) + 1) * chunk.count <= call_tokens:
            calls[-1] = (*before, chunk)
        else:
            calls.append((chunk,))
    return [call for call in (*calls, *last) if call]


def fill(llama: Llama, chunks: tuple[ScheduledChunk, ...], contents: list[Content]) -> Call:
    """Return the call for these chunks: of words, or one of an image; ``contents`` in their
    order."""
    if is_image(chunks[0].sequence.tokens[chunks[0].start]):
        return _of_image(llama, chunks[0], contents[0])
    batch = llama.batch
    batch.clear()
    rows: list[tuple[ScheduledChunk, int]] = []
    together = zip(chunks, contents, strict=True)
    for chunk, content in sorted(together, key=lambda pair: pair[0].sequence.stream or 0):
        sequence = chunk.sequence
        assert sequence.stream is not None
        tokens = sequence.tokens[chunk.start : chunk.start + chunk.count]
        row = batch.add(
            [*tokens, *chunk.drafts] if chunk.drafts else tokens,
            start=content.positions.at(chunk.start),
            stream=sequence.stream,
            logits=1 + len(chunk.drafts) if chunk.wants_logits else 0,
        )
        if chunk.wants_logits:
            rows.append((chunk, row - len(chunk.drafts)))
    return Call(llama.decode, rows)


def _of_image(llama: Llama, chunk: ScheduledChunk, content: Content) -> Call:
    sequence = chunk.sequence
    assert sequence.stream is not None
    token = sequence.tokens[chunk.start]
    seen = content.embeddings[image_of(token)]
    first = place_of(token)
    start = content.positions.at(chunk.start - first) + first
    places = np.arange(chunk.count, dtype=np.int32)[None, :] + start
    if seen.places is not None:
        places = seen.places + np.array([[start], [start], [start], [0]], np.int32)
    compute = partial(
        llama.decode_embeddings,
        seen.embeddings[first : first + chunk.count],
        positions=places,
        stream=sequence.stream,
        logits=chunk.wants_logits,
        attends_ahead=seen.attends_ahead,
    )
    return Call(compute, [(chunk, chunk.count - 1)] if chunk.wants_logits else [])
