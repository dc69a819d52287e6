"""A request's sampling: the cluster's settings, its own over them, and what is out of range."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddler_trio.language.refusal import Refusal
from paddler_trio.language.sampling_settings import sampling_of
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES, sampling_problem
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.scalars import float32
from paddler_trio.wire.trio.work import LogitBias, SamplingOverrides

CLUSTER = InferenceParameters(temperature=0.5, top_k=7, penalty_last_n=-1)
GOOD: dict[str, Any] = {
    "temperature": 1.5,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2.0,
    "top_k": -1,
    "top_p": 0.25,
    "min_p": 0.5,
    "typical_p": 0.75,
    "top_n_sigma": 2.0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.25,
    "mirostat": 2,
    "mirostat_tau": 3.0,
    "mirostat_eta": 0.5,
    "penalty_last_n": -1,
    "penalty_repeat": 1.5,
    "penalty_frequency": -2.0,
    "penalty_presence": 2.0,
    "dry_multiplier": 1.0,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ("\n", "."),
    "adaptive_target": 0.5,
    "adaptive_decay": 0.75,
    "min_keep": 2,
    "samplers": tuple(reversed(STAGES)),
    "penalize_prompt": True,
    "ignore_eos": True,
    "post_sampling_probs": True,
}
BULKY = tuple(chr(ord("a") + number) * 64 for number in range(5))
"""Few enough, and more bytes than all together may have."""


def refused(overrides: SamplingOverrides, vocabulary: Vocabulary) -> Any:
    with pytest.raises(Refusal) as caught:
        sampling_of(CLUSTER, overrides, vocabulary, seed=1)
    return caught.value.result["BadRequest"]


def test_every_field_is_carried(vocabulary: Vocabulary) -> None:
    names = {field.name for field in attrs.fields(SamplingOverrides)}
    assert names == {*GOOD, "seed", "logit_bias"}, "a field has no test"
    sampling = sampling_of(CLUSTER, SamplingOverrides(**GOOD), vocabulary, seed=1)
    for name, value in GOOD.items():
        expected = list(value) if isinstance(value, tuple) else value
        assert getattr(sampling, name) == expected, name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from(sorted(GOOD))))
def test_what_is_not_overridden_stays_as_it_was(
    vocabulary: Vocabulary, overridden: set[str]
) -> None:
    usual = sampling_of(CLUSTER, SamplingOverrides(), vocabulary, seed=1)
    overrides = SamplingOverrides(**{name: GOOD[name] for name in overridden})
    sampling = sampling_of(CLUSTER, overrides, vocabulary, seed=1)
    for name in set(GOOD) - overridden:
        assert getattr(sampling, name) == getattr(usual, name), name
    assert (usual.temperature, usual.top_k, usual.penalty_last_n) == (0.5, 7, -1)


def test_a_seed_of_the_request_wins(vocabulary: Vocabulary) -> None:
    assert sampling_of(CLUSTER, SamplingOverrides(), vocabulary, seed=3).seed == 3
    assert sampling_of(CLUSTER, SamplingOverrides(seed=4), vocabulary, seed=3).seed == 4


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("temperature", -0.1, "at least 0"),
        ("top_p", 1.01, "at most 1"),
        ("top_k", -2, "at least -1"),
        ("min_p", -1.0, "at least 0"),
        ("mirostat", 3, "at most 2"),
        ("penalty_repeat", 0.0, "at least 0.001"),
        ("penalty_last_n", -2, "at least -1"),
        ("dry_base", 0.5, "at least 1"),
        ("min_keep", -1, "at least 0"),
    ],
)
def test_out_of_range_is_refused_with_field_value_and_limit(
    vocabulary: Vocabulary, name: str, value: float, limit: str
) -> None:
    problem = refused(SamplingOverrides(**{name: value}), vocabulary)  # type: ignore[arg-type]
    assert problem["field"] == f"sampling.{name}"
    assert f"{name} is {value:g}" in problem["message"]
    assert limit in problem["message"]


@given(
    st.fixed_dictionaries(
        {
            name: st.integers(-(2**31), 2**31 - 1)
            if name in ("top_k", "penalty_last_n")
            else st.floats(width=32, allow_nan=False, allow_infinity=False).map(float32)
            for name in (
                "temperature",
                "top_k",
                "top_p",
                "min_p",
                "penalty_last_n",
                "penalty_repeat",
                "penalty_frequency",
                "penalty_presence",
            )
        }
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_an_operator_sets_is_moved_into_range(
    vocabulary: Vocabulary, chosen: dict[str, Any]
) -> None:
    cluster = InferenceParameters(**chosen)
    sampling = sampling_of(cluster, SamplingOverrides(), vocabulary, seed=1)
    assert sampling_problem(sampling, n_vocab=vocabulary.n_tokens, logprobs=-1) is None
    for name, value in chosen.items():
        if PARAMETERS[name].problem(value) is None:
            assert getattr(sampling, name) == value, "what is in range stays"


def test_breakers_that_are_there_twice_count_once(vocabulary: Vocabulary) -> None:
    overrides = SamplingOverrides(dry_sequence_breakers=("a", "b") * 40)
    sampling = sampling_of(CLUSTER, overrides, vocabulary, seed=1)
    assert sampling.dry_sequence_breakers == ["a", "b"]


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (SamplingOverrides(samplers=("top_k", "nothing")), "sampling.samplers[1]"),
        (SamplingOverrides(samplers=("top_k", "top_k")), "sampling.samplers[1]"),
        (SamplingOverrides(samplers=()), "sampling.samplers"),
        (SamplingOverrides(dry_sequence_breakers=("",)), "sampling.dry_sequence_breakers[0]"),
        (
            SamplingOverrides(dry_sequence_breakers=tuple("abcdefghijklmnopq")),
            "sampling.dry_sequence_breakers",
        ),
        (SamplingOverrides(dry_sequence_breakers=BULKY), "sampling.dry_sequence_breakers"),
        (SamplingOverrides(logit_bias=(LogitBias(token=-1),)), "sampling.logit_bias[0].token"),
        (SamplingOverrides(logit_bias=(LogitBias(token=1, text="a"),)), "sampling.logit_bias[0]"),
        (SamplingOverrides(logit_bias=(LogitBias(text="\ud800"),)), "sampling.logit_bias[0].text"),
    ],
)
def test_what_names_nothing_is_refused_with_its_place(
    vocabulary: Vocabulary, overrides: SamplingOverrides, field: str
) -> None:
    assert refused(overrides, vocabulary)["field"] == field


def test_a_biased_text_is_all_of_its_tokens(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.tokenize(" weather", add_special=False, parse_special=True)
    biases = (
        LogitBias(text=" weather", bias=None),
        LogitBias(token=5, bias=-100.0),
        LogitBias(token=6, bias=1.0),
        LogitBias(token=6, bias=2.5),
    )
    sampling = sampling_of(CLUSTER, SamplingOverrides(logit_bias=biases), vocabulary, seed=1)
    banned = dict.fromkeys([*tokens, 5], -math.inf)
    assert sampling.logit_bias == banned | {6: 2.5}
