"""What llama.cpp computes of a pass in one call: how shares are parted, and how a batch is filled.

An image needs a call of its own. With regions of their own, sequences in one call all pay for the
longest of them: those that generate are computed without a long prompt beside them, and their
tokens are out before it. Prompts of different lengths llama.cpp would compute one after the other
as well, and the ends of the longer ones slowly; so they come one after the other, and the first
tokens of the short ones are out before the long ones are computed. In a pool everybody pays for
everything anyway, and one call reads the weights once. A sequence that may have killed an engine is
computed by itself, after all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import attrs
import numpy as np

from paddler_trio.engine.llama import Llama
from paddler_trio.engine.vision import Embeddings
from paddler_trio.scheduler.batching.batch_plan import Share
from paddler_trio.scheduler.batching.image_tokens import Positions, image_of, is_image, place_of


@attrs.frozen
class Content:
    """What a sequence shows besides its words, and where each token is for the model."""

    embeddings: Embeddings
    positions: Positions

    @classmethod
    def of(cls, prompt: list[int], embeddings: Embeddings) -> Content:
        return cls(embeddings, Positions(prompt if embeddings else ()))


@attrs.frozen
class Call:
    """``compute`` runs it and returns llama.cpp's code; ``rows`` says in which row the logits of
    the first token after each share are that wants its next one."""

    compute: Callable[[], int]
    rows: list[tuple[Share, int]]


def part(
    shares: tuple[Share, ...],
    *,
    is_unified: bool,
    call_tokens: int,
    isolated: Collection[int] = frozenset(),
) -> list[tuple[Share, ...]]:
    """The shares of a pass, as many together as llama.cpp is to compute in one call; those of
    ``isolated`` sequences each in a call of its own.

    Args:
      call_tokens: of several prompts no more than that come in one call, where it makes no
        difference to the others.

    Returns:
      First what generates, then prompts that are finished, the short ones first, then parts.
    """
    single = [
        share
        for share in shares
        if share.sequence.key in isolated or is_image(share.sequence.tokens[share.start])
    ]
    words = [share for share in shares if not single or share not in single]
    last = [(share,) for share in single]
    if is_unified:
        return [call for call in (tuple(words), *last) if call]
    calls = [tuple(s for s in words if s.sequence.is_generating)]
    prompts = [s for s in words if not s.sequence.is_generating]
    for share in sorted(prompts, key=lambda share: (not share.wants_logits, share.count)):
        before = calls[-1]
        is_alike = len(calls) > 1 and before[0].count == share.count
        if is_alike and (len(before) + 1) * share.count <= call_tokens:
            calls[-1] = (*before, share)
        else:
            calls.append((share,))
    return [call for call in (*calls, *last) if call]


def fill(llama: Llama, shares: tuple[Share, ...], contents: list[Content]) -> Call:
    """What computes these shares: of words, or one of an image; ``contents`` in their order."""
    if is_image(shares[0].sequence.tokens[shares[0].start]):
        return _of_image(llama, shares[0], contents[0])
    batch = llama.batch
    batch.clear()
    rows: list[tuple[Share, int]] = []
    together = zip(shares, contents, strict=True)
    for share, content in sorted(together, key=lambda pair: pair[0].sequence.stream or 0):
        sequence = share.sequence
        assert sequence.stream is not None
        tokens = sequence.tokens[share.start : share.start + share.count]
        row = batch.add(
            [*tokens, *share.drafts] if share.drafts else tokens,
            start=content.positions.at(share.start),
            stream=sequence.stream,
            logits=1 + len(share.drafts) if share.wants_logits else 0,
        )
        if share.wants_logits:
            rows.append((share, row - len(share.drafts)))
    return Call(llama.decode, rows)


def _of_image(llama: Llama, share: Share, content: Content) -> Call:
    sequence = share.sequence
    assert sequence.stream is not None
    token = sequence.tokens[share.start]
    seen = content.embeddings[image_of(token)]
    first = place_of(token)
    start = content.positions.at(share.start - first) + first
    places = np.arange(share.count, dtype=np.int32)[None, :] + start
    if seen.places is not None:
        places = seen.places + np.array([[start], [start], [start], [0]], np.int32)
    compute = partial(
        llama.decode_embeddings,
        seen.embeddings[first : first + share.count],
        positions=places,
        stream=sequence.stream,
        logits=share.wants_logits,
    )
    return Call(compute, [(share, share.count - 1)] if share.wants_logits else [])
