"""What llama-server's dialect says a request was drawn with."""

from __future__ import annotations

import attrs

from paddler_trio.apis.generation_settings import (
    RANDOM_SEED,
    generation_settings,
    sampling_settings,
)
from paddler_trio.apis.limits import SurfaceLimits
from paddler_trio.apis.openai.completion_request import read_llama_completion
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_pipe import Sampling
from paddler_trio.wire.paddler.desired_state import InferenceParameters

TOLD_AS = {
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "penalty_frequency": "frequency_penalty",
    "penalty_presence": "presence_penalty",
}


def settings_of(parameters: dict[str, object] | None = None, **body: object) -> dict[str, object]:
    request = read_llama_completion({"prompt": "a", **body}, SurfaceLimits())
    return generation_settings(parameters or {}, request.generate, end_tokens=[2, 9])


def test_what_nobody_says_is_as_the_engine_and_the_cluster_have_it_by_default() -> None:
    told = sampling_settings({}, {})
    cluster = unstructure(InferenceParameters())
    assert isinstance(cluster, dict)
    usual = dict(cluster)
    for field in attrs.fields(Sampling):
        if field.default is not attrs.NOTHING and not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # it is a class at run time
            usual[field.name] = field.default
    compared = 0
    for name, value in usual.items():
        if TOLD_AS.get(name, name) in told and name != "samplers":
            assert told[TOLD_AS.get(name, name)] == value, name
            compared += 1
    assert compared >= 22
    assert told["seed"] == RANDOM_SEED
    assert told["samplers"]


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
