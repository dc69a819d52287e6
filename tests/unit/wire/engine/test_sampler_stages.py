"""The table of sampler stages against everything that has one field for each parameter."""

from __future__ import annotations

import math

import attrs
import pytest

from paddler_trio.balancer.apis.sampling_fields import sampling_fields
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES, Sampling
from paddler_trio.wire.trio.work import SamplingOverrides

OFF = Sampling(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    penalty_last_n=0,
    penalty_repeat=1.0,
    penalty_frequency=0.0,
    penalty_presence=0.0,
    seed=0,
)


@pytest.mark.parametrize("kind", [Sampling, SamplingOverrides])
def test_every_parameter_is_a_field_and_every_number_is_a_parameter(kind: type) -> None:
    others = {"seed", "samplers", "penalize_prompt", "logit_bias", "ignore_eos"}
    others |= {"post_sampling_probs"}
    names = {field.name for field in attrs.fields(kind)}
    assert names - others - {"dry_sequence_breakers"} == PARAMETERS.keys()


def test_every_parameter_is_a_field_of_the_apis_by_its_server_name() -> None:
    names = {field.name for field in sampling_fields()}
    assert {parameter.server_name for parameter in PARAMETERS.values()} <= names


def test_stages_are_llama_cpps_in_its_order() -> None:
    characters = "".join(stage.character for stage in STAGES.values())
    assert characters == "edskypmxta"
    assert list(STAGES)[3] == "top_k"


def test_defaults_are_in_range_and_switch_every_stage_off() -> None:
    for parameter in PARAMETERS.values():
        assert parameter.problem(parameter.default) is None
        assert parameter.clamped(parameter.default) == parameter.default
    for stage in STAGES.values():
        defaults = {parameter.name: parameter.default for parameter in stage.parameters}
        assert not stage.is_on(attrs.evolve(OFF, **defaults)), stage.name


def test_a_number_out_of_range_is_refused_or_clamped() -> None:
    top_p, top_k = PARAMETERS["top_p"], PARAMETERS["top_k"]
    assert top_p.problem(1.5) == "top_p is 1.5, must be at least 0 and at most 1"
    assert top_k.problem(-2) == "top_k is -2, must be at least -1"
    assert top_p.problem(math.nan) is not None
    assert (top_p.clamped(1.5), top_k.clamped(-2)) == (1.0, -1)
    assert type(top_k.clamped(-2)) is int
