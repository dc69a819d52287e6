"""What the numbers and texts of a :class:`Sampling` may be: one table, for both ends of the pipe.

llama.cpp makes memory and loops of some of these without asking. The agent refuses a client's value
that is out of range and moves an operator's into it; the engine checks once more and refuses the
one sequence. A window of penalties has no limit here: one that is longer than the cells of a slot
means all of them, and only the engine knows how many these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from paddler_trio.wire.engine.engine_pipe import Sampling

STAGES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""The stages of a chain, by llama.cpp's names, in its usual order."""
MAX_BREAKERS = 16
MAX_BREAKERS_BYTES = 256
"""All together. llama.cpp compares each with every token of the vocabulary, and tokenises what is
left of it after each token that it may begin in: sixteen cost a second with 262,144 tokens."""
MAX_BREAKER_CHARS = 64
MAX_BIASED_TOKENS = 65536
MAX_LOGPROBS = 128
_LARGEST = 3.4e38
"""What a 32-bit float still holds."""
_MAX_INT32 = 2**31 - 1
_MAX_UINT32 = 2**32 - 1


@attrs.frozen
class Range:
    """``low`` and ``high`` are included."""

    low: float
    high: float


_ANY_POSITIVE = Range(0, _LARGEST)
_SHARE = Range(0, 1)
_LOOK_BACK = Range(-1, _MAX_INT32)
RANGES = {
    "temperature": _ANY_POSITIVE,
    "dynatemp_range": _ANY_POSITIVE,
    "dynatemp_exponent": _ANY_POSITIVE,
    "top_k": _LOOK_BACK,
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "top_n_sigma": Range(-1, _LARGEST),
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "mirostat": Range(0, 2),
    "mirostat_tau": _ANY_POSITIVE,
    "mirostat_eta": _ANY_POSITIVE,
    "penalty_last_n": _LOOK_BACK,
    "penalty_repeat": Range(0.001, 1000),
    "penalty_frequency": Range(-1000, 1000),
    "penalty_presence": Range(-1000, 1000),
    "dry_multiplier": _ANY_POSITIVE,
    "dry_base": Range(1, _LARGEST),
    "dry_allowed_length": Range(0, _MAX_INT32),
    "dry_penalty_last_n": _LOOK_BACK,
    "min_keep": Range(0, _MAX_INT32),
}
"""Every number that a request may choose but the seed."""


def range_problem(name: str, value: float) -> str | None:
    """Why this number is refused; None if it is in its range. NaN is in none."""
    limits = RANGES[name]
    if limits.low <= value <= limits.high:
        return None
    upper = "" if limits.high >= _MAX_INT32 else f" and at most {limits.high:g}"
    return f"{name} is {value:g}, must be at least {limits.low:g}{upper}"


def moved_into_range(name: str, value: float) -> float:
    """The nearest number that is in range; the type stays."""
    limits = RANGES[name]
    return type(value)(min(max(value, limits.low), limits.high))


def breakers_problem(texts: Sequence[str]) -> str | None:
    """Why these sequence breakers are refused as a whole; None if they are not too many."""
    if len(texts) > MAX_BREAKERS:
        return f"dry_sequence_breakers: {len(texts)} texts, the limit is {MAX_BREAKERS}"
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if size > MAX_BREAKERS_BYTES:
        return f"dry_sequence_breakers: {size} bytes together, the limit is {MAX_BREAKERS_BYTES}"
    return None


def sampling_problem(sampling: Sampling, *, n_vocab: int, logprobs: int) -> str | None:
    """Why no sampler may be built of this; None if one may.

    Args:
      n_vocab: tokens of the vocabulary.
      logprobs: alternatives to report with each token, -1 for no report.
    """
    for name in RANGES:
        problem = range_problem(name, getattr(sampling, name))
        if problem is not None:
            return problem
    if not 0 <= sampling.seed <= _MAX_UINT32:
        return f"seed is {sampling.seed}, must be 0 to {_MAX_UINT32}"
    if not -1 <= logprobs <= MAX_LOGPROBS:
        return f"logprobs is {logprobs}, must be -1 to {MAX_LOGPROBS}"
    if len(set(sampling.samplers) & set(STAGES)) != len(sampling.samplers):
        return f"samplers: each must be one of {', '.join(STAGES)}, and none be there twice"
    if len(sampling.logit_bias) > MAX_BIASED_TOKENS:
        return f"logit_bias names {len(sampling.logit_bias)} tokens, limit {MAX_BIASED_TOKENS}"
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < n_vocab:
            return f"logit_bias: token {token} is outside the vocabulary of {n_vocab}"
        if math.isnan(bias) or bias == math.inf:
            return f"logit_bias of token {token} is {bias:g}, must be a number or minus infinity"
    return breakers_problem(sampling.dry_sequence_breakers)
