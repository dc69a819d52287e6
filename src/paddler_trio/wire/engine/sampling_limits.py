"""Limits of a whole :class:`Sampling`, for both ends of the pipe; ranges are the stages' own.

llama.cpp allocates memory and loops by some of these without a check. The agent refuses a client's
value that is out of range and clamps an operator's; the engine checks once more and refuses that
one sequence. The window of a penalty has no limit here: one that is longer than the cells of a slot
means all of them, and only the engine knows how many these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paddler_trio.wire.engine.engine_pipe import Sampling
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES

MAX_BREAKERS = 16
MAX_BREAKERS_BYTES = 256
"""All together. llama.cpp compares each with every token of the vocabulary, and tokenises what is
left of it after each token that it may begin in: sixteen cost a second with 262,144 tokens."""
MAX_BREAKER_CHARS = 64
MAX_BIASED_TOKENS = 65536
MAX_LOGPROBS = 128
_MAX_UINT32 = 2**32 - 1


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
    for parameter in PARAMETERS.values():
        problem = parameter.problem(getattr(sampling, parameter.name))
        if problem is not None:
            return problem
    if not 0 <= sampling.seed <= _MAX_UINT32:
        return f"seed is {sampling.seed}, must be 0 to {_MAX_UINT32}"
    if not -1 <= logprobs <= MAX_LOGPROBS:
        return f"logprobs is {logprobs}, must be -1 to {MAX_LOGPROBS}"
    if len(STAGES.keys() & sampling.samplers) != len(sampling.samplers):
        return f"samplers: each must be one of {', '.join(STAGES)}, and none be there twice"
    if len(sampling.logit_bias) > MAX_BIASED_TOKENS:
        return f"logit_bias names {len(sampling.logit_bias)} tokens, limit {MAX_BIASED_TOKENS}"
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < n_vocab:
            return f"logit_bias: token {token} is outside the vocabulary of {n_vocab}"
        if math.isnan(bias) or bias == math.inf:
            return f"logit_bias of token {token} is {bias:g}, must be a number or minus infinity"
    return breakers_problem(sampling.dry_sequence_breakers)
