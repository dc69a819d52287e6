"""Deployments in words: every field as people write it, and what differs between two fleets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from paddler_trio.cli.balancer_http import BalancerVersionError
from paddler_trio.cli.fleet.fleet_client import DeploymentChange, RevisionView
from paddler_trio.cli.model.model_extras import Change, described_extras, shown
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import dumps, structure, unstructure
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState, RolloutSpec
from paddler_trio.wire.trio.presets import Preset

EFFECTS: Final = {
    "none": "what is served stays the same",
    "in_place": "agents apply it to the running model, nothing is loaded anew",
    "context": "agents make a new context over the same weights",
    "weights": "agents load other weights, one after the other",
    "added": "agents load it",
    "removed": "agents unload it once its running answers have finished",
}
NOT_SET: Final = "not set"
MAX_SYSTEM_CHARS: Final = 80
"""Of a preset's system text that is shown."""


@attrs.frozen
class DeploymentDiff:
    """The change of one deployment: its class, in words, and the fields."""

    name: str
    change: str
    fields: list[Change]

    @property
    def headline(self) -> str:
        words = self.change.replace("_", " ")
        effect = EFFECTS.get(self.change)
        return f"{self.name}: {words}" + ("" if effect is None else f": {effect}")


def state_in(revision: RevisionView) -> FleetState:
    """The state of a revision; BalancerVersionError if it is of another version."""
    try:
        return structure(revision.state, FleetState)
    except WireError as error:
        raise BalancerVersionError(
            f"the fleet of the balancer is of another version: {error}"
        ) from error


def diffs(
    changes: Sequence[DeploymentChange], old: FleetState, new: FleetState
) -> list[DeploymentDiff]:
    """``changes`` of the balancer with their fields, old and new."""
    return [
        DeploymentDiff(
            each.deployment,
            each.change,
            list(_fields(old.find(each.deployment), new.find(each.deployment))),
        )
        for each in changes
    ]


def described_spec(spec: DeploymentSpec) -> dict[str, str]:
    """Every setting by name; rules of rollouts begin with ``rollout.``."""
    parameters = {
        field.name: shown(getattr(spec.parameters, field.name))
        for field in attrs.fields(InferenceParameters)
    }
    rules = {
        f"rollout.{field.name}": _shown(getattr(spec.rollout, field.name))
        for field in attrs.fields(RolloutSpec)
    }
    return {
        "model": text_of(spec.model),
        "projection": text_of(spec.projection),
        "template": _template(spec.template),
        "aliases": ", ".join(spec.aliases) or NOT_SET,
        **{f"preset {each.name}": _preset(each) for each in spec.presets},
        "slots": _shown(spec.slots),
        "replicas": str(spec.replicas),
        "where": ", ".join(spec.where) or NOT_SET,
        "idle_ttl": NOT_SET if spec.idle_ttl is None else f"{spec.idle_ttl:g} s",
        "priority": str(spec.priority),
        **parameters,
        **described_extras(spec.extras),
        **rules,
    }


def _fields(old: DeploymentSpec | None, new: DeploymentSpec | None) -> Iterator[Change]:
    """Yield what differs; of a new deployment all that is no default, of one that goes its
    model."""
    if new is None:
        if old is not None:
            yield Change("model", text_of(old.model), NOT_SET)
        return
    after = described_spec(new)
    before = described_spec(DeploymentSpec(name=new.name, model=new.model) if old is None else old)
    if old is None:
        yield Change("model", NOT_SET, after["model"])
    for name in dict.fromkeys([*before, *after]):  # in the order of the fields
        was, is_now = before.get(name, NOT_SET), after.get(name, NOT_SET)
        if was != is_now:
            yield Change(name, was, is_now)


def _template(text: str | None) -> str:
    """A stored one is told by a digest, not by its whole text."""
    if text is None:
        return "the model's own"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"an override ({len(text)} characters, SHA-256 {digest}...)"


def _preset(preset: Preset) -> str:
    """Return its members as JSON, without its name; of a long system text the beginning."""
    system = preset.system
    if system is not None and len(system) > MAX_SYSTEM_CHARS:
        digest = hashlib.sha256(system.encode()).hexdigest()[:8]
        cut = f"{system[:MAX_SYSTEM_CHARS]}... ({len(system)} characters, SHA-256 {digest}...)"
        preset = attrs.evolve(preset, system=cut)
    members = unstructure(preset)
    assert isinstance(members, dict)
    return dumps({key: each for key, each in members.items() if key != "name"}).decode()


def _shown(value: object) -> str:
    return NOT_SET if value is None else shown(value)
