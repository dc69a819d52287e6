"""The few tokens that can be sampled at all, found without passing llama.cpp the whole vocabulary.

A chain that keeps the ``k`` most likely tokens, after stages that only lower some logits, samples
one of those ``k``. Stages cost time for every candidate, with 150 000 tokens up to a millisecond
for each sampled token; comparing all logits with one number costs a twentieth. So candidates are
taken from the top until the ``k`` are certainly among them: at least ``k`` that no stage lowers.
The sampled token is the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from paddler_trio.wire.engine.sampler_stages import SamplerStage, Sampling

WORTH_A_SHORTLIST = 8192
"""Tokens of a vocabulary below which llama.cpp is as quick with all of them."""
_MOST_PART = 4
"""A shortlist that may be a quarter of the vocabulary is none."""
BLOCKS_FOR_EACH = 4
"""The blocks of the vocabulary for each of the most likely tokens that are asked for."""
_FIRST_GAP = 8.0
_TRIES = 5
_WIDER, _NARROWER = 1.5, 0.9


def candidates_needed(sampling: Sampling, stages: Iterable[SamplerStage]) -> int | None:
    """Return how many tokens that no stage lowers hold every token the chain can sample; None if
    only all of them do.

    Args:
      stages: in the order of the chain.
    """
    s = sampling
    lowers_only = (
        all(bias <= 0 for bias in s.logit_bias.values())
        and s.penalty_repeat >= 1.0
        and s.penalty_frequency >= 0.0
        and s.penalty_presence >= 0.0
        and s.dry_multiplier >= 0.0
    )
    if not lowers_only or s.mirostat:
        return None
    if s.temperature <= 0:
        return 1
    for stage in stages:
        if stage.name == "top_k" and stage.is_on(s):
            return s.top_k
        if stage.is_on(s) and not stage.only_lowers:
            return None
    return None


@attrs.define(eq=False)
class Shortlist:
    """The shortlist of one sequence. ``needed``: see :func:`candidates_needed`; ``lowered``: tokens
    that a stage may lower, which its sampler keeps up to date."""

    needed: int
    lowered: set[int] = attrs.field(factory=set)
    _gap: float = attrs.field(default=_FIRST_GAP, init=False)
    """The distance below the most likely one that the last list had to reach."""

    def of(self, logits: np.ndarray) -> np.ndarray | None:
        """Return the tokens to choose from, ascending, of float32 ``logits`` of shape (n_vocab,);
        None if they would be too many, or are not found quickly."""
        at_least = self.needed + len(self.lowered)
        at_most = len(logits) // _MOST_PART
        if len(logits) < WORTH_A_SHORTLIST or 4 * at_least > at_most:
            return None
        peak = logits.max()
        if not np.isfinite(peak):
            return None
        too_near, too_far = 0.0, float("inf")
        for _ in range(_TRIES):
            likely = logits >= peak - np.float32(self._gap)
            count = int(np.count_nonzero(likely))
            if at_least <= count <= at_most:
                found = np.flatnonzero(likely)
                if count > 4 * at_least:
                    self._gap *= _NARROWER
                return found
            if count < at_least:
                too_near = self._gap
            else:
                too_far = self._gap
            self._gap = min(_WIDER * self._gap, (too_near + too_far) / 2)
        return None


def best_of(logits: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the ``count`` largest, the largest first, and of equal ones the first.

    The vocabulary is looked through in blocks: as many as are asked for are at least as large as
    the least of the largest blocks' peaks, and few others are. To partition a vocabulary of 150,000
    takes twenty times as long.
    """
    found = np.arange(len(logits) if count else 0)
    size = len(logits) // (BLOCKS_FOR_EACH * count) if count else 0
    if size > 1:
        peaks = logits[: len(logits) // size * size].reshape(-1, size).max(axis=1)
        least = np.partition(peaks, len(peaks) - count)[len(peaks) - count]
        found = np.flatnonzero(logits >= least)
    return found[np.argsort(-logits[found], kind="stable")[:count]]
