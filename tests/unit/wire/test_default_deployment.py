"""Paddler's desired state and the deployment ``default``: a change in one is that in the other."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_values import values_of

from effort import examples
from fleet_states import extras, specs, states
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    LocalToAgent,
    NoModel,
    applicable_state,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.default_deployment import desired_of, with_default
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState
from paddler_trio.wire.trio.replica_range import ALL_REPLICAS, ReplicaRange

NEW = BalancerDesiredState.default()
paddler_states = values_of(BalancerDesiredState)


@given(states, paddler_states, extras)
@settings(max_examples=examples(40))
def test_paddlers_state_comes_back_byte_for_byte(
    state: FleetState, desired: BalancerDesiredState, beside: Extras
) -> None:
    assert desired_of(with_default(state, desired, beside), desired) == desired


@given(states, paddler_states, extras)
@settings(max_examples=examples(40))
def test_agents_are_sent_what_paddlers_state_says(
    state: FleetState, desired: BalancerDesiredState, beside: Extras
) -> None:
    spec = with_default(state, desired, beside).find(DEFAULT)
    if spec is None:
        assert applicable_state(desired) == applicable_state(NEW)
        assert beside.is_empty
    else:
        assert (spec.agent_state, spec.extras) == (applicable_state(desired), beside)


@given(states, paddler_states, extras)
@settings(max_examples=examples(40))
def test_the_others_stay_and_so_do_rules_that_paddlers_state_has_no_word_for(
    state: FleetState, desired: BalancerDesiredState, beside: Extras
) -> None:
    after = with_default(state, desired, beside)
    others = [spec for spec in state.deployments if spec.name != DEFAULT]
    assert [spec for spec in after.deployments if spec.name != DEFAULT] == others
    before, now = state.find(DEFAULT), after.find(DEFAULT)
    if before is not None and now is not None:
        for kept in ("aliases", "slots", "replicas", "where", "idle_ttl", "priority", "rollout"):
            assert getattr(before, kept) == getattr(now, kept)
    elif now is not None:
        assert now.replicas == ALL_REPLICAS


@given(states, paddler_states)
def test_paddlers_state_serves_what_the_fleet_state_says(
    state: FleetState, before: BalancerDesiredState
) -> None:
    spec = state.find(DEFAULT)
    expected = applicable_state(NEW) if spec is None else spec.agent_state
    assert applicable_state(desired_of(state, before)) == expected


@given(specs(DEFAULT), st.text(max_size=5))
def test_a_template_that_is_not_in_use_is_kept(spec: DeploymentSpec, text: str) -> None:
    kept = attrs.evolve(NEW, chat_template_override=ChatTemplate(text))
    state = FleetState((attrs.evolve(spec, template=None),))
    after = desired_of(state, kept)
    assert after.chat_template_override == ChatTemplate(text)
    assert not after.use_chat_template_override


def test_a_new_balancers_state_is_no_deployment() -> None:
    assert with_default(FleetState(), NEW, NO_EXTRAS) == FleetState()
    parked = DeploymentSpec(
        name=DEFAULT, model=LocalToAgent("/m.gguf"), replicas=ReplicaRange(0, 0)
    )
    after = with_default(FleetState((parked,)), NEW, NO_EXTRAS).find(DEFAULT)
    assert after == attrs.evolve(parked, model=NoModel()), "its rules stay for the next model"
