"""What llama-server's dialect says a request was drawn with."""

from __future__ import annotations

from paddler_trio.balancer.apis.generation_settings import (
    RANDOM_SEED,
    generation_settings,
    sampling_settings,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.completion_request import read_llama_completion
from paddler_trio.wire.engine.sampler_stages import USUAL_STAGES
from paddler_trio.wire.trio.work import SamplingOverrides

DEFAULTS = {
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
    "repeat_last_n": -1,
    "repeat_penalty": 1.1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.8,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "min_keep": 0,
    "ignore_eos": False,
}


def settings_of(parameters: dict[str, object] | None = None, **body: object) -> dict[str, object]:
    request = read_llama_completion({"prompt": "a", **body}, ApiLimits())
    return generation_settings(parameters or {}, request.generate, end_tokens=[2, 9])


def test_defaults_are_those_of_the_cluster_and_the_engine() -> None:
    shown = sampling_settings({}, SamplingOverrides())
    assert {name: shown[name] for name in DEFAULTS} == DEFAULTS
    assert shown["seed"] == RANDOM_SEED
    assert shown["samplers"] == list(USUAL_STAGES)


def test_a_request_is_over_the_cluster_and_the_cluster_over_the_default() -> None:
    told = settings_of({"top_k": 7, "penalty_repeat": 1.5, "n_batch": 3}, temperature=0.25, seed=4)
    assert (told["temperature"], told["top_k"], told["repeat_penalty"]) == (0.25, 7, 1.5)
    assert told["seed"] == 4
    assert "n_batch" not in told


def test_the_request_itself_is_told() -> None:
    told = settings_of(
        n_predict=5, stop=["x"], n_probs=2, grammar='root ::= "a"', logit_bias=[[1, 2]]
    )
    assert (told["n_predict"], told["max_tokens"], told["stop"]) == (5, 5, ["x"])
    assert (told["n_probs"], told["grammar"]) == (2, 'root ::= "a"')
    assert told["logit_bias"] == [{"token": 1, "bias": 2}]
    assert settings_of()["n_predict"] == -1


def test_tokens_that_are_never_drawn_are_biases_of_null() -> None:
    never = [{"token": 2, "bias": None}, {"token": 9, "bias": None}]
    assert settings_of(ignore_eos=True)["logit_bias"] == never
    assert settings_of(ignore_eos=False)["logit_bias"] == []
