"""The sampling of one request: the cluster's settings with the request's overrides, checked.

What is out of range is refused with the name of the field, its value and its limit. Texts in a
logit bias become tokens here, where the vocabulary is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from paddler_trio.language.refusal import bad_request
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.engine.sampler_stages import (
    MAX_BIASED_TOKENS,
    MAX_BREAKER_CHARS,
    PARAMETERS,
    STAGES,
    Sampling,
    breakers_problem,
)
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.work import LogitBias, SamplingOverrides

_BAN = -100.0
"""A bias of this or less bans a token, as in OpenAI's API."""
_OF_THE_CLUSTER = tuple(
    field.name for field in attrs.fields(InferenceParameters) if field.name in PARAMETERS
)
"""What an operator chooses for every request."""


def sampling_of(
    parameters: InferenceParameters,
    overrides: SamplingOverrides,
    vocabulary: Vocabulary,
    *,
    seed: int,
) -> Sampling:
    """The settings of one request; ``seed`` is used unless the request has its own.

    The operator's own are clamped: a client that sends a request could not correct them.

    Raises:
      Refusal: a field that is out of range, or names what this vocabulary does not have.
    """
    usual: dict[str, Any] = {  # of several types
        name: PARAMETERS[name].clamped(getattr(parameters, name)) for name in _OF_THE_CLUSTER
    }
    sampling = Sampling(
        **usual,
        seed=seed if overrides.seed is None else overrides.seed,
        penalize_prompt=overrides.penalize_prompt,
        ignore_eos=overrides.ignore_eos,
        post_sampling_probs=overrides.post_sampling_probs,
    )
    changes: dict[str, Any] = {}  # of several types
    for name, parameter in PARAMETERS.items():
        value = getattr(overrides, name)
        if value is not None:
            problem = parameter.problem(value)
            if problem is not None:
                raise bad_request(f"sampling.{name}", problem)
            changes[name] = value
    if overrides.samplers is not None:
        changes["samplers"] = _samplers(overrides.samplers)
    if overrides.dry_sequence_breakers is not None:
        changes["dry_sequence_breakers"] = _breakers(overrides.dry_sequence_breakers)
    if overrides.logit_bias:
        changes["logit_bias"] = _logit_bias(overrides.logit_bias, vocabulary)
    return attrs.evolve(sampling, **changes) if changes else sampling


def _samplers(names: Sequence[str]) -> list[str]:
    for place, name in enumerate(names):
        if name not in STAGES:
            raise bad_request(
                f"sampling.samplers[{place}]",
                f"samplers: {name[:80]!r} is none of {', '.join(STAGES)}",
            )
        if name in names[:place]:
            raise bad_request(f"sampling.samplers[{place}]", f"samplers: {name!r} is there twice")
    if not names:
        raise bad_request(
            "sampling.samplers", "samplers is empty: leave it out for the usual stages"
        )
    return list(names)


def _breakers(texts: Sequence[str]) -> list[str]:
    field = "sampling.dry_sequence_breakers"
    different = list(dict.fromkeys(texts))
    problem = breakers_problem(different)
    if problem is not None:
        raise bad_request(field, problem)
    for place, text in enumerate(texts):
        if not 0 < len(text) <= MAX_BREAKER_CHARS:
            raise bad_request(
                f"{field}[{place}]",
                f"dry_sequence_breakers: a text of {len(text)} characters, must have 1 to "
                f"{MAX_BREAKER_CHARS}",
            )
    return different


def _logit_bias(biases: Sequence[LogitBias], vocabulary: Vocabulary) -> dict[int, float]:
    """Collect the biases; where a token is named twice, the later one counts."""
    by_token: dict[int, float] = {}
    for place, bias in enumerate(biases):
        field = f"sampling.logit_bias[{place}]"
        value = -math.inf if bias.bias is None or bias.bias <= _BAN else bias.bias
        for token in _biased_tokens(bias, field, vocabulary):
            by_token[token] = value
        if len(by_token) > MAX_BIASED_TOKENS:
            raise bad_request(
                field, f"logit_bias names more than {MAX_BIASED_TOKENS} tokens, which is the limit"
            )
    return by_token


def _biased_tokens(bias: LogitBias, field: str, vocabulary: Vocabulary) -> Sequence[int]:
    match bias:
        case LogitBias(token=int(token), text=None):
            if token < 0:
                raise bad_request(f"{field}.token", f"logit_bias: token {token} is negative")
            # one that the model does not have is never sampled, whatever its bias
            return (token,) if token < vocabulary.n_tokens else ()
        case LogitBias(token=None, text=str(text)):
            try:
                return vocabulary.tokenize(text, add_special=False, parse_special=True)
            except TokenizationError as error:
                raise bad_request(f"{field}.text", f"logit_bias: {error}") from error
        case _:
            raise bad_request(field, "logit_bias: give either token or text")
