"""What a request is drawn with, as llama-server tells it: pure.

Everything it has a name for is told, so that clients may show or copy any of it: what the request
asked for, else what the cluster has, else what the engine does when nobody says anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paddler_trio.wire.engine.engine_pipe import DRY_BREAKERS
from paddler_trio.wire.engine.sampling_limits import STAGES

Json = dict[str, object]

RANDOM_SEED = 2**32 - 1
"""llama.cpp's word for a seed that nobody chose."""

_PENALTIES = {
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "penalty_frequency": "frequency_penalty",
    "penalty_presence": "presence_penalty",
}
"""Native names and llama-server's; all others are the same."""

_USUAL: Mapping[str, object] = {
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 80,
    "top_p": 0.8,
    "min_p": 0.05,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "penalty_last_n": -1,
    "penalty_repeat": 1.1,
    "penalty_frequency": 0.0,
    "penalty_presence": 0.8,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": list(DRY_BREAKERS),
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "min_keep": 0,
    "samplers": list(STAGES),
    "ignore_eos": False,
}
"""What holds when neither request nor cluster says anything; a test holds it to the engine's."""

_NOT_HERE: Mapping[str, object] = {
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_keep": 0,
    "n_discard": 0,
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
}
"""What this server cannot do, as llama-server tells it of itself when nobody asked for it."""


def sampling_settings(parameters: Mapping[str, object], sampling: Mapping[str, object]) -> Json:
    """How tokens are drawn.

    Args:
      parameters: the cluster's ``InferenceParameters`` as wire JSON; what else they hold is not
        looked at.
      sampling: the request's ``SamplingOverrides`` as wire JSON.
    """
    settings: Json = {"seed": sampling.get("seed", RANDOM_SEED)}
    for name, usual in _USUAL.items():
        told = _PENALTIES.get(name, name)
        settings[told] = sampling.get(name, parameters.get(name, usual))
    return settings | dict(_NOT_HERE)


def generation_settings(
    parameters: Mapping[str, object],
    generate: Mapping[str, object],
    *,
    is_stream: bool = False,
    with_timings: bool = False,
    end_tokens: Iterable[int] = (),
) -> Json:
    """Everything about one request.

    Args:
      generate: what stands under ``Generate``.
      end_tokens: the tokens that end an answer; with ``ignore_eos`` they are never drawn, which is
        told as biases of null.
    """
    sampling, most, constraint = (generate[key] for key in ("sampling", "max_tokens", "constraint"))
    assert isinstance(sampling, Mapping)
    biases = sampling.get("logit_bias", [])
    assert isinstance(biases, list)
    if sampling.get("ignore_eos") is True:
        biases = [*biases, *({"token": token, "bias": None} for token in end_tokens)]
    n_predict = -1 if most is None else most
    grammar = ""
    match constraint:
        case {"type": "gbnf", "grammar": str(grammar)}:
            pass
    return {
        **sampling_settings(parameters, sampling),
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "stop": generate["stop"],
        "stream": is_stream,
        "logit_bias": biases,
        "n_probs": generate["logprobs"] or 0,
        "grammar": grammar,
        "timings_per_token": with_timings,
    }
