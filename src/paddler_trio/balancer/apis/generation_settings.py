"""The sampling settings of a request under llama-server's names: pure.

Every setting that llama-server names is there, so that clients can show or copy it: the request's,
else the cluster's, else the engine's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.sampler_stages import DRY_BREAKERS, PARAMETERS, USUAL_STAGES
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.paddler.request_params import GbnfGrammar
from paddler_trio.wire.trio.work import Generate, LogitBias, SamplingOverrides

RANDOM_SEED = 2**32 - 1
"""llama.cpp's value for a random seed."""

_SHOWN = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "penalty_last_n",
    "penalty_repeat",
    "penalty_frequency",
    "penalty_presence",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "min_keep",
    "samplers",
    "ignore_eos",
    "post_sampling_probs",
)
"""In llama-server's order."""
_DEFAULTS: Mapping[str, object] = {
    **{parameter.name: parameter.default for parameter in PARAMETERS.values()},
    **attrs.asdict(InferenceParameters()),
    "dry_sequence_breakers": list(DRY_BREAKERS),
    "samplers": list(USUAL_STAGES),
    "ignore_eos": False,
    "post_sampling_probs": False,
}
"""The settings where neither request nor cluster has one."""

_UNSUPPORTED: Mapping[str, object] = {
    "n_keep": 0,
    "n_discard": 0,
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "backend_sampling": False,
}
"""Settings that this server does not have, with llama-server's defaults."""


def sampling_settings(parameters: Mapping[str, object], sampling: SamplingOverrides) -> Json:
    """Return how tokens are sampled.

    Args:
      parameters: the cluster's ``InferenceParameters`` as wire JSON.
    """
    requested = unstructure(sampling)
    assert isinstance(requested, dict)
    settings: Json = {"seed": requested.get("seed", RANDOM_SEED)}
    for name in _SHOWN:
        shown_as = PARAMETERS[name].server_name if name in PARAMETERS else name
        settings[shown_as] = requested.get(name, parameters.get(name, _DEFAULTS[name]))
    return settings | dict(_UNSUPPORTED)


def generation_settings(
    parameters: Mapping[str, object],
    generate: Generate,
    *,
    is_stream: bool = False,
    with_timings: bool = False,
    end_tokens: Iterable[int] = (),
) -> Json:
    """Return all settings of one request.

    Args:
      end_tokens: the tokens that end an answer; with ``ignore_eos`` they are never sampled, which
        is shown as biases of null.
    """
    sampling, constraint = generate.sampling, generate.constraint
    biases = [*sampling.logit_bias]
    if sampling.ignore_eos:
        biases += [LogitBias(token=token) for token in end_tokens]
    n_predict = -1 if generate.max_tokens is None else generate.max_tokens
    return {
        **sampling_settings(parameters, sampling),
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "stop": list(generate.stop),
        "stream": is_stream,
        "logit_bias": [unstructure(bias) for bias in biases],
        "n_probs": generate.logprobs or 0,
        "grammar": constraint.grammar if isinstance(constraint, GbnfGrammar) else "",
        "timings_per_token": with_timings,
        "lora": [unstructure(choice) for choice in generate.lora],
    }
