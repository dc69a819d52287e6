"""Fleet states: whole on the wire, and refused with a name, a value and a limit."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from effort import examples
from fleet_states import specs, states
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    InferenceParameters,
    LocalToAgent,
    applicable_state,
)
from paddler_trio.wire.trio.default_deployment import desired_of, fleet_fault, fleet_problem
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, extended_digest
from paddler_trio.wire.trio.fleet_state import (
    DEFAULT,
    DeploymentSpec,
    FleetRevision,
    FleetState,
    RolloutSpec,
)
from paddler_trio.wire.trio.replica_range import ALL_REPLICAS, ReplicaRange

CODER: dict[str, Any] = {"name": "coder", "model": {"LocalToAgent": "/m.gguf"}}


def read(*deployments: dict[str, Any]) -> FleetState:
    return structure({"deployments": list(deployments)}, FleetState)


def refusal(**fields: object) -> str:
    with pytest.raises(WireError) as caught:
        read({"name": "first", "model": {"LocalToAgent": "/1.gguf"}}, {**CODER, **fields})
    return str(caught.value)


@given(states)
@settings(max_examples=examples(40))
def test_a_state_survives_the_wire_in_its_order(state: FleetState) -> None:
    revision = FleetRevision(
        revision=7, author="ann", time="2026-01-02T03:04:05Z", note="why", state=state
    )
    assert structure(loads(dumps(unstructure(revision))), FleetRevision) == revision
    assert revision.json == dumps(unstructure(revision))


def test_what_is_left_out_has_its_default() -> None:
    (spec,) = read({**CODER, "parameters": {"context_size": 1024}}).deployments
    assert spec == DeploymentSpec(
        name="coder",
        model=LocalToAgent("/m.gguf"),
        parameters=InferenceParameters(context_size=1024),
        extras=NO_EXTRAS,
        replicas=ALL_REPLICAS,
        rollout=RolloutSpec(),
    )
    rules = attrs.asdict(spec.rollout)
    assert rules == {
        "max_unavailable": 1,
        "max_unavailable_percent": None,
        "min_capacity": 0,
        "canary": 1,
        "min_ready_s": 10.0,
        "drain_deadline_s": 60.0,
        "progress_deadline_s": 600.0,
        "on_failure": "rollback",
        "mixed": "allow",
        "prefetch": True,
    }


@pytest.mark.parametrize(
    ("text", "replicas", "written"),
    [
        ("all", ALL_REPLICAS, "all"),
        (2, ReplicaRange(2, 2), 2),
        (0, ReplicaRange(0, 0), 0),
        ("0..4", ReplicaRange(0, 4), "0..4"),
        ("2..2", ReplicaRange(2, 2), 2),
        ("0..4096", ReplicaRange(0, 4096), "0..4096"),
    ],
)
def test_replicas_are_a_number_a_range_or_all(
    text: object, replicas: ReplicaRange, written: object
) -> None:
    (spec,) = read({**CODER, "replicas": text}).deployments
    assert spec.replicas == replicas
    assert unstructure(replicas) == written


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "Coder"}, "'Coder' is no name of a deployment: 1 to 63 of a-z"),
        ({"name": "c" * 64}, "is no name of a deployment: 1 to 63"),
        ({"name": 5}, "expected a string, got 5 @ $.deployments[1].name"),
        ({"name": "first"}, "two deployments are named 'first' @ $.deployments"),
        ({"model": "None"}, "only default may have none, leave this one out @ $.deployments[1].mo"),
        ({"color": 1}, "deployment 'coder': unknown field 'color' @ $.deployments[1]"),
        ({"parameters": {"heat": 1}}, "'coder': unknown field 'heat' @ $.deployments[1].parameter"),
        ({"parameters": {"top_k": "x"}}, "got the string 'x' @ $.deployments[1].parameters.top_k"),
        ({"parameters": []}, "expected an object, got an array @ $.deployments[1].parameters"),
        ({"replicas": "some"}, """expected a number, "min..max" or "all", got the string 'some'"""),
        ({"replicas": True}, """expected a number, "min..max" or "all", got true"""),
        ({"replicas": -1}, "replicas are -1..-1"),
        ({"replicas": "3..1"}, "replicas are 3..1: the first number is larger"),
        ({"replicas": 4097}, "replicas are 4097, the limit is 4096 @ $.deployments[1].replicas"),
        ({"aliases": ["x y"]}, "'x y' cannot be an alias: 1 to 128 letters"),
        ({"aliases": ["default"]}, "and not 'default' @ $.deployments[1].aliases[0]"),
        ({"aliases": ["a"] * 17}, "17 aliases, the limit is 16 @ $.deployments[1].aliases"),
        ({"aliases": ["z", "first"]}, "alias 'first' is a name of 'first' already @ $.deployments"),
        ({"aliases": ["z", "z"]}, "the alias 'z' is a name of 'coder' already"),
        ({"where": ["gpu"]}, "'gpu' is no condition: write label=value or agent=NAME"),
        ({"where": ["gpu=a b"]}, "'a b' cannot stand in a label: 1 to 63 of"),
        ({"where": ["agent="]}, "the name of an agent has 1 to 128 characters"),
        ({"where": ["a=b"] * 17}, "17 where, the limit is 16"),
        ({"slots": 0}, "expected an integer in 1..4096, got 0 @ $.deployments[1].slots"),
        ({"idle_ttl": -1}, "idle_ttl is -1 s, must be 0 to 3.1536e+07 s"),
        ({"priority": 1001}, "expected an integer in -1000..1000, got 1001"),
        ({"rollout": {"canaries": 1}}, "unknown field 'canaries' @ $.deployments[1].rollout"),
        ({"rollout": {"max_unavailable": 0}}, "integer in 1..4096, got 0 @ $.deployments[1].roll"),
        ({"rollout": {"min_ready_s": 1e9}}, "min_ready_s is 1e+09 s, must be 0 to 86400 s @ $.dep"),
        ({"rollout": {"progress_deadline_s": 0}}, "progress_deadline_s is 0 s, must be 1 to"),
        ({"rollout": {"on_failure": "retry"}}, "unknown variant 'retry', expected rollback or pau"),
    ],
)
def test_a_refusal_names_the_deployment_the_field_and_the_limit(
    fields: dict[str, object], problem: str
) -> None:
    text = refusal(**fields)
    assert problem in text
    if "name" not in fields:
        assert "deployment 'coder': " in text


def test_there_are_at_most_64_deployments_beside_default() -> None:
    many = [{**CODER, "name": f"d{n}"} for n in range(65)]
    default = {**CODER, "name": DEFAULT}
    assert len(read(*many[:64], default).deployments) == 65
    with pytest.raises(WireError, match="65 deployments beside default, the limit is 64 @"):
        read(*many)


def test_names_and_labels_at_their_limits_are_taken() -> None:
    longest = {
        "name": "d" * 63,
        "model": {"LocalToAgent": "/m.gguf"},
        "aliases": ["A" * 128, "org/model:Q4_K_M", "gpt-4o@v1+x"],
        "where": ["a/b.c-d_e=" + "v" * 63, "agent=the agent = in the attic"],
    }
    (spec,) = read(longest).deployments
    assert spec.aliases[0] == "A" * 128


@given(specs(DEFAULT))
def test_a_deployment_has_the_digest_that_paddlers_state_of_it_has(spec: DeploymentSpec) -> None:
    state = FleetState((spec,))
    desired = desired_of(state, BalancerDesiredState.default())
    assert spec.digest == extended_digest(applicable_state(desired), spec.extras)
    assert attrs.evolve(spec, priority=3, replicas=ReplicaRange(1, 2)).digest == spec.digest


def test_states_are_the_same_in_any_order() -> None:
    one, two = {**CODER}, {**CODER, "name": "chat"}
    assert read(one, two).serves_the_same(read(two, one))
    assert not read(one, two).serves_the_same(read(one))


def test_a_context_that_llama_cpp_cannot_count_is_refused_by_name() -> None:
    state = read({**CODER, "parameters": {"context_size": 2**31}})
    assert fleet_problem(state) == (
        "deployment 'coder': context_size is 2147483648 tokens, the limit is 2147483647"
    )
    assert fleet_problem(read(CODER)) is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"parameters": {"n_batch": 2**31}}, "parameters.n_batch"),
        ({"parameters": {"image_resize_to_fit": 0}}, "parameters.image_resize_to_fit"),
        ({"model": {"LocalToAgent": "/a\0"}}, "model.LocalToAgent"),
        ({"projection": {"Url": {"url": "https://a/\0"}}}, "projection.Url.url"),
    ],
)
def test_what_is_refused_has_the_path_of_its_field(changes: dict[str, object], path: str) -> None:
    fault = fleet_fault(read({**CODER, "name": "chat"}, {**CODER, "aliases": [], **changes}))
    assert str(fault).endswith(f" @ $.deployments[1].{path}")
    assert fleet_fault(read(CODER)) is None
