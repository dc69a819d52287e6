"""What a change of a deployment costs its agents, and what it is called."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from effort import examples
from fleet_states import specs, states
from paddler_trio.balancer.fleet.fleet_diff import (
    DeploymentChange,
    change_between,
    changes_between,
    different_fields,
)
from paddler_trio.scheduler.fleet.fleet_values import Change
from paddler_trio.wire.paddler.desired_state import InferenceParameters, LocalToAgent
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import (
    Automatic,
    EngineOverrides,
    Extras,
    Markers,
)
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState, RolloutSpec
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.replica_range import ReplicaRange

ADAPTER = Adapter(name="a", source=LocalToAgent("/a.gguf"))
SPEC = DeploymentSpec(name="coder", model=LocalToAgent("/m.gguf"))
NONE, IN_PLACE, CONTEXT, WEIGHTS = Change


def parameters(**values: Any) -> dict[str, Any]:
    return {"parameters": InferenceParameters(**values)}


def engine(**values: Any) -> dict[str, Any]:
    return {"extras": Extras(engine=EngineOverrides(**values))}


@pytest.mark.parametrize(
    ("fields", "change", "names"),
    [
        ({}, NONE, []),
        ({"aliases": ("x",)}, NONE, ["aliases"]),
        ({"presets": (Preset(name="x"),)}, NONE, ["presets.x"]),
        ({"replicas": ReplicaRange(1, 2)}, NONE, ["replicas"]),
        ({"where": ("gpu=yes",)}, NONE, ["where"]),
        ({"idle_ttl": 5.0}, NONE, ["idle_ttl"]),
        ({"priority": 1}, NONE, ["priority"]),
        ({"rollout": RolloutSpec(canary=2)}, NONE, ["rollout.canary"]),
        (parameters(temperature=0.5), IN_PLACE, ["parameters.temperature"]),
        (parameters(embedding_batch_size=1), IN_PLACE, ["parameters.embedding_batch_size"]),
        (parameters(image_resize_to_fit=9), IN_PLACE, ["parameters.image_resize_to_fit"]),
        (parameters(pooling_type=PoolingType.MEAN), IN_PLACE, ["parameters.pooling_type"]),
        ({"template": "{{ x }}"}, IN_PLACE, ["template"]),
        ({"extras": Extras(markers=Markers(tool_open=""))}, IN_PLACE, ["extras.markers.tool_open"]),
        (parameters(context_size=1024), CONTEXT, ["parameters.context_size"]),
        (parameters(n_batch=1024, top_k=5), CONTEXT, ["parameters.n_batch", "parameters.top_k"]),
        (parameters(enable_embeddings=True), CONTEXT, ["parameters.enable_embeddings"]),
        ({"slots": 4}, CONTEXT, ["slots"]),
        (
            {"extras": Extras(auto=Automatic(context_size=True))},
            CONTEXT,
            ["extras.auto.context_si"],
        ),
        (engine(max_drafts=3), CONTEXT, ["extras.engine.max_drafts"]),
        (engine(lora=("/a.gguf",)), WEIGHTS, ["extras.engine.lora"]),
        ({"extras": Extras(adapters=(ADAPTER,))}, WEIGHTS, ["extras.adapters"]),
        ({"model": LocalToAgent("/n.gguf")}, WEIGHTS, ["model"]),
        ({"projection": LocalToAgent("/p.gguf"), "priority": 1}, WEIGHTS, ["projection", "prior"]),
    ],
)
def test_the_dearest_field_decides(
    fields: dict[str, Any], change: Change, names: list[str]
) -> None:
    after = attrs.evolve(SPEC, **fields)
    assert change_between(SPEC, after) is change_between(after, SPEC) is change
    found = list(different_fields(SPEC, after))
    assert len(found) == len(names)
    assert all(name.startswith(begin) for name, begin in zip(found, names, strict=True))


@pytest.mark.parametrize(
    ("adapters", "change"),
    [
        ((attrs.evolve(ADAPTER, name="b"),), IN_PLACE),
        ((attrs.evolve(ADAPTER, scale=0.5),), IN_PLACE),
        ((attrs.evolve(ADAPTER, source=LocalToAgent("/b.gguf")),), WEIGHTS),
        ((ADAPTER, attrs.evolve(ADAPTER, name="b")), WEIGHTS),
        ((), WEIGHTS),
    ],
)
def test_only_other_files_of_adapters_are_loaded(
    adapters: tuple[Adapter, ...], change: Change
) -> None:
    before = attrs.evolve(SPEC, extras=Extras(adapters=(ADAPTER,)))
    after = attrs.evolve(SPEC, extras=Extras(adapters=adapters))
    assert change_between(before, after) is change_between(after, before) is change


def test_pooling_is_a_reason_to_load_where_the_model_embeds() -> None:
    embedder = attrs.evolve(SPEC, **parameters(enable_embeddings=True))
    other = attrs.evolve(SPEC, **parameters(enable_embeddings=True, pooling_type=PoolingType.MEAN))
    assert change_between(embedder, other) is CONTEXT


@given(specs("coder"), specs("coder"))
@settings(max_examples=examples(40))
def test_equal_digests_are_no_change_and_others_are_one(
    before: DeploymentSpec, after: DeploymentSpec
) -> None:
    change = change_between(before, after)
    if before.digest != after.digest:
        assert change is not NONE
    elif before.slots == after.slots:
        assert change is NONE


@given(states, states)
@settings(max_examples=examples(40))
def test_every_difference_is_named_and_nothing_else(before: FleetState, after: FleetState) -> None:
    found = {each.deployment: each for each in changes_between(before, after)}
    old, new = before.by_name, after.by_name
    assert {n for n, each in found.items() if each.change == "added"} == new.keys() - old.keys()
    assert {n for n, each in found.items() if each.change == "removed"} == old.keys() - new.keys()
    both = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    assert found.keys() == (old.keys() ^ new.keys()) | both


@given(states)
@settings(max_examples=examples(40))
def test_an_equal_state_changes_nothing(state: FleetState) -> None:
    assert changes_between(state, state) == ()
    assert changes_between(FleetState(), state) == tuple(
        DeploymentChange(spec.name, "added") for spec in state.deployments
    )


def test_a_change_of_a_preset_is_named_with_it() -> None:
    before = attrs.evolve(SPEC, presets=(Preset(name="a", system="x"), Preset(name="b")))
    after = attrs.evolve(SPEC, presets=(Preset(name="a", system="y"), Preset(name="c")))
    assert [*different_fields(before, after)] == ["presets.a.system", "presets.b", "presets.c"]
    assert change_between(before, after) is NONE
    turned = attrs.evolve(before, presets=before.presets[::-1])
    assert [*different_fields(before, turned)] == ["presets"], "the order alone"
