"""The deployment ``default`` and Paddler's desired state: one and the same, in two shapes.

Paddler's state can keep a template that is not in use, for which a deployment has no field; and a
deployment has rules for which Paddler's state has none. A change in one shape leaves alone in the
other what the first has no word for.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    NoModel,
    applicable_state,
    desired_state_fault,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.fleet_state import (
    DEFAULT,
    DeploymentSpec,
    FleetState,
    OnFailure,
    RolloutSpec,
)

PADDLERS_RULES: Final = RolloutSpec(on_failure=OnFailure.PAUSE)
"""What was desired through Paddler's API stays desired, also where it cannot be served."""
_SECTIONS: Final = {"inference_parameters": "parameters", "multimodal_projection": "projection"}
"""Fields of Paddler's state by the names that a deployment has for them."""


def with_default(
    state: FleetState,
    desired: BalancerDesiredState,
    extras: Extras,
    *,
    rules: RolloutSpec = PADDLERS_RULES,
) -> FleetState:
    """Return ``state`` with ``default`` as Paddler's state has it.

    A new ``default`` runs on all agents under ``rules``; one that is there keeps its own. There
    will be none if there is none, and agents are sent what a new balancer sends: no model.
    """
    before = state.find(DEFAULT)
    applicable = applicable_state(desired)
    is_new = applicable == applicable_state(BalancerDesiredState.default())
    if before is None and is_new and extras.is_empty:
        return state
    template = applicable.chat_template_override
    default = attrs.evolve(
        DeploymentSpec(name=DEFAULT, model=NoModel(), rollout=rules) if before is None else before,
        model=applicable.model,
        projection=applicable.multimodal_projection,
        parameters=applicable.inference_parameters,
        template=None if template is None else template.content,
        extras=extras,
    )
    if before is None:
        return attrs.evolve(state, deployments=(default, *state.deployments))
    return attrs.evolve(
        state,
        deployments=tuple(default if spec is before else spec for spec in state.deployments),
    )


def desired_of(state: FleetState, before: BalancerDesiredState) -> BalancerDesiredState:
    """Return Paddler's state of ``default``, or of a new balancer if there is none.

    ``before`` itself if agents are sent the same; else its template stays, out of use, where the
    deployment has none.
    """
    spec = state.find(DEFAULT)
    desired = BalancerDesiredState.default() if spec is None else _desired(spec)
    if applicable_state(desired) == applicable_state(before):
        return before
    if desired.chat_template_override is None:
        return attrs.evolve(desired, chat_template_override=before.chat_template_override)
    return desired


def fleet_fault(state: FleetState) -> ShapeError | None:
    """Return why a well-formed state must be refused, with the path of the field; None if it is
    fine."""
    for place, spec in enumerate(state.deployments):
        fault = desired_state_fault(_desired(spec))
        if fault is not None:
            section, *inner = fault.field.split(".")
            return ShapeError(
                f"deployment {spec.name!r}: {fault.text}",
                *reversed(inner),
                _SECTIONS.get(section, section),
                place,
                "deployments",
            )
    return None


def fleet_problem(state: FleetState) -> str | None:
    """Return why a well-formed state must be refused; None if it is fine."""
    fault = fleet_fault(state)
    return None if fault is None else fault.text


def _desired(spec: DeploymentSpec) -> BalancerDesiredState:
    return BalancerDesiredState(
        chat_template_override=None if spec.template is None else ChatTemplate(spec.template),
        inference_parameters=spec.parameters,
        model=spec.model,
        multimodal_projection=spec.projection,
        use_chat_template_override=spec.template is not None,
    )
