"""The Model page begins a deployment with the balancer's own defaults, and has a field for all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attrs

from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.desired_state_extras import Automatic, EngineOverrides, Markers
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, RolloutSpec

PAGE = Path(__file__).parents[4] / "panel/src/pages/model"


def test_a_new_deployment_has_the_defaults() -> None:
    found = re.search(r"/\* json \*/ (.*?) /\* end \*/", (PAGE / "defaults.ts").read_text(), re.S)
    assert found is not None
    defaults = json.loads(found[1])
    assert structure(defaults["parameters"], InferenceParameters) == InferenceParameters()
    assert structure(defaults["rollout"], RolloutSpec) == RolloutSpec()
    assert defaults["rollout"].keys() == unstructure(RolloutSpec()).keys()  # type: ignore[union-attr]


def test_the_form_has_a_field_for_everything() -> None:
    text = "".join((PAGE / name).read_text() for name in ("fields.ts", "engine_fields.ts"))
    wanted = {
        "parameter": InferenceParameters,
        "rule": RolloutSpec,
        "engine": EngineOverrides,
        "marker": Markers,
    }
    for maker, shape in wanted.items():
        names = set(re.findall(rf'\b{maker}\(\s*"(\w+)"', text))
        assert names == {field.name for field in attrs.fields(shape)}, maker
    paths = set(re.findall(r'path: "([\w.]+)"', text))
    assert {f"extras.auto.{field.name}" for field in attrs.fields(Automatic)} <= paths
    sections = {"name", "parameters", "extras", "rollout"}
    assert {field.name for field in attrs.fields(DeploymentSpec)} - sections <= paths
