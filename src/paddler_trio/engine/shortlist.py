"""The few tokens that can be drawn at all, found without showing llama.cpp the whole vocabulary.

A chain that keeps the ``k`` most likely tokens, after stages that only lower some logits, draws one
of those ``k``. Stages cost time for every candidate, with 150 000 tokens up to a millisecond for
each token drawn; comparing all logits with one number costs a twentieth. So candidates are taken
from the top until there are so many that the ``k`` are certainly among them: at least ``k`` that no
stage lowers. What is drawn is the same.
"""

from __future__ import annotations

import attrs
import numpy as np

from paddler_trio.wire.engine.engine_pipe import Sampling

WORTH_A_SHORTLIST = 8192
"""Tokens of a vocabulary below which llama.cpp is as quick with all of them."""
_MOST_PART = 4
"""A shortlist that may be a quarter of the vocabulary is none."""
_FIRST_GAP = 8.0
_TRIES = 5
_WIDER, _NARROWER = 1.5, 0.9
_LOWERING = ("penalties", "dry")


def candidates_needed(sampling: Sampling, stages: tuple[str, ...]) -> int | None:
    """How many tokens that no stage lowers hold everything the chain can draw; None if only all
    of them do.

    Args:
      stages: names in the order of the chain.
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
    for name in stages:
        if name == "top_k" and s.top_k > 0:
            return s.top_k
        if name not in _LOWERING and _does_something(s, name):
            return None
    return None


def _does_something(s: Sampling, name: str) -> bool:
    match name:
        case "top_n_sigma":
            return s.top_n_sigma > 0
        case "top_k":
            return False
        case "typ_p":
            return s.typical_p < 1.0
        case "xtc":
            return s.xtc_probability > 0.0
        case _:
            return True


@attrs.define(eq=False)
class Shortlist:
    """Of one sequence. ``needed``: see :func:`candidates_needed`; ``lowered``: tokens that a stage
    may lower, to be kept up to date by whoever draws."""

    needed: int
    lowered: set[int] = attrs.field(factory=set)
    _gap: float = attrs.field(default=_FIRST_GAP, init=False)
    """How far below the most likely one the last list had to reach."""

    def of(self, logits: np.ndarray) -> np.ndarray | None:
        """The tokens to choose from, ascending, of float32 ``logits`` of shape (n_vocab,); None if
        they would be too many, or are not found quickly."""
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
