"""How one request draws: the cluster's settings with the request's wishes over them, checked.

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
from paddler_trio.wire.engine.engine_pipe import Sampling
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.generate import LogitBias, SamplingOverrides

SAMPLERS = (
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
"""Stages that may be named, as llama.cpp's server names them."""
MAX_BIASED_TOKENS = 65536
MAX_BREAKERS = 64
MAX_BREAKER_CHARS = 64
_BAN = -100.0
"""A bias of this or less means never, as OpenAI has it."""


@attrs.frozen
class _Range:
    """``low`` and ``high`` are included."""

    low: float
    high: float


_ANY_POSITIVE = _Range(0, 3.4e38)
_SHARE = _Range(0, 1)
_LOOK_BACK = _Range(-1, 2**31 - 1)
_RANGES = {
    "temperature": _ANY_POSITIVE,
    "dynatemp_range": _ANY_POSITIVE,
    "dynatemp_exponent": _ANY_POSITIVE,
    "top_k": _LOOK_BACK,
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "top_n_sigma": _Range(-1, 3.4e38),
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "mirostat": _Range(0, 2),
    "mirostat_tau": _ANY_POSITIVE,
    "mirostat_eta": _ANY_POSITIVE,
    "penalty_last_n": _LOOK_BACK,
    "penalty_repeat": _Range(0.001, 1000),
    "penalty_frequency": _Range(-1000, 1000),
    "penalty_presence": _Range(-1000, 1000),
    "dry_multiplier": _ANY_POSITIVE,
    "dry_base": _Range(1, 3.4e38),
    "dry_allowed_length": _Range(0, 2**31 - 1),
    "dry_penalty_last_n": _LOOK_BACK,
    "min_keep": _Range(0, 2**31 - 1),
}


def sampling_of(
    parameters: InferenceParameters,
    overrides: SamplingOverrides,
    vocabulary: Vocabulary,
    *,
    seed: int,
) -> Sampling:
    """The settings of one request; ``seed`` is used unless the request has its own.

    Raises:
      Refusal: a field that is out of range, or names what this vocabulary does not have.
    """
    sampling = Sampling(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        penalty_last_n=parameters.penalty_last_n,
        penalty_repeat=parameters.penalty_repeat,
        penalty_frequency=parameters.penalty_frequency,
        penalty_presence=parameters.penalty_presence,
        seed=seed if overrides.seed is None else overrides.seed,
        penalize_prompt=overrides.penalize_prompt,
        ignore_eos=overrides.ignore_eos,
    )
    changes: dict[str, Any] = {}  # of several types
    for name, limits in _RANGES.items():
        value = getattr(overrides, name)
        if value is not None:
            _check_range(name, value, limits)
            changes[name] = value
    if overrides.samplers is not None:
        changes["samplers"] = _samplers(overrides.samplers)
    if overrides.dry_sequence_breakers is not None:
        changes["dry_sequence_breakers"] = _breakers(overrides.dry_sequence_breakers)
    if overrides.logit_bias:
        changes["logit_bias"] = _logit_bias(overrides.logit_bias, vocabulary)
    return attrs.evolve(sampling, **changes) if changes else sampling


def _check_range(name: str, value: float, limits: _Range) -> None:
    if not limits.low <= value <= limits.high:
        upper = "" if limits.high >= 2**31 - 1 else f" and at most {limits.high:g}"
        raise bad_request(
            f"sampling.{name}", f"{name} is {value:g}, must be at least {limits.low:g}{upper}"
        )


def _samplers(names: Sequence[str]) -> list[str]:
    for place, name in enumerate(names):
        if name not in SAMPLERS:
            raise bad_request(
                f"sampling.samplers[{place}]",
                f"samplers: {name[:80]!r} is none of {', '.join(SAMPLERS)}",
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
    if len(texts) > MAX_BREAKERS:
        raise bad_request(
            field, f"dry_sequence_breakers: {len(texts)} texts, the limit is {MAX_BREAKERS}"
        )
    for place, text in enumerate(texts):
        if not 0 < len(text) <= MAX_BREAKER_CHARS:
            raise bad_request(
                f"{field}[{place}]",
                f"dry_sequence_breakers: a text of {len(text)} characters, must have 1 to "
                f"{MAX_BREAKER_CHARS}",
            )
    return list(texts)


def _logit_bias(biases: Sequence[LogitBias], vocabulary: Vocabulary) -> dict[int, float]:
    """Where a token is named twice, the later bias counts."""
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
            if not 0 <= token < vocabulary.n_tokens:
                raise bad_request(
                    f"{field}.token",
                    f"logit_bias: token {token} is not one of the {vocabulary.n_tokens} tokens "
                    "of this model",
                )
            return (token,)
        case LogitBias(token=None, text=str(text)):
            try:
                return vocabulary.tokenize(text, add_special=False, parse_special=True)
            except TokenizationError as error:
                raise bad_request(f"{field}.text", f"logit_bias: {error}") from error
        case _:
            raise bad_request(field, "logit_bias: give either token or text")
