"""When a wait for the fleet ends, and with which verdict on whom."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.management_client import AgentView, FleetView
from paddler_trio.cli.swap.swap_display import (
    GONE_S,
    NEWS_S,
    Outcome,
    SwapProgress,
    SwapResult,
    by_id,
)

NEW, OLD = "new", "old"
NO_FILE: list[object] = [{"ModelFileDoesNotExist": {"model_path": "/no"}}]

SERVING = AgentView(
    id="1",
    name="a1",
    protocol="paddler-trio.1",
    is_accepting=True,
    slots_processing=0,
    slots_total=4,
    desired_slots_total=4,
    model_path="/m",
    state_application_status="Applied",
    issues=[],
    phase="serving",
    wanted_state=NEW,
    served_state=NEW,
)
OLD_SERVING = attrs.evolve(SERVING, wanted_state=OLD, served_state=OLD, is_accepting=False)
LOADING = attrs.evolve(
    SERVING,
    phase="loading",
    progress=0.5,
    served_state=None,
    is_accepting=False,
    slots_total=0,
    state_application_status="Fresh",
)
FAILED = attrs.evolve(
    LOADING,
    phase="failed",
    progress=None,
    detail="no file",
    issues=NO_FILE,
    state_application_status="AttemptedAndRetrying",
)
PADDLER = attrs.evolve(
    SERVING, protocol="paddler-4.1", phase=None, wanted_state=None, served_state=None
)


def fleet(*agents: AgentView, digest: str = NEW) -> FleetView:
    return FleetView(desired_state_digest=digest, agents=list(agents))


def progress(*before: AgentView) -> SwapProgress:
    return SwapProgress(NEW, before=by_id(before), stored_at_s=0.0)


def outcome_of(waiting: SwapProgress, *agents: AgentView, at_s: float = 0.5) -> Outcome | None:
    waiting.observe(fleet(*agents), at_s)
    return waiting.outcome


def test_it_ends_when_everybody_serves_the_new_state() -> None:
    waiting = progress(OLD_SERVING)
    assert outcome_of(waiting, OLD_SERVING) is None
    assert outcome_of(waiting, LOADING) is None
    assert outcome_of(waiting, SERVING) is Outcome.ALL_SERVE


def test_one_agent_that_is_not_ready_keeps_everybody_waiting() -> None:
    other = attrs.evolve(LOADING, id="2", name="a2")
    assert outcome_of(progress(), SERVING, other) is None


def test_an_agent_that_serves_without_being_given_work_yet_does_not_count() -> None:
    assert outcome_of(progress(), attrs.evolve(SERVING, is_accepting=False)) is None


def test_an_agent_that_has_not_reported_yet_is_not_taken_for_one_of_paddlers() -> None:
    """Nor its first status, which says that nothing is loaded, for a state without a model."""
    joined = attrs.evolve(SERVING, phase=None, wanted_state=None, served_state=None, slots_total=0)
    assert outcome_of(progress(), joined) is None
    assert outcome_of(progress(), attrs.evolve(PADDLER, slots_total=0)) is (Outcome.ALL_SERVE)


def test_a_failure_is_told_with_its_reason() -> None:
    waiting = progress(OLD_SERVING)
    assert outcome_of(waiting, FAILED) is Outcome.SOME_FAILED
    assert [standing.reason for standing in waiting.standings] == ["no file"]


def test_a_failure_lasts_while_the_agent_tries_again_until_it_serves() -> None:
    waiting = progress(OLD_SERVING)
    outcome_of(waiting, FAILED)
    resolving = attrs.evolve(FAILED, phase="resolving", detail=None)
    assert outcome_of(waiting, resolving) is Outcome.SOME_FAILED
    assert [standing.reason for standing in waiting.standings] == ["no file"]
    assert outcome_of(waiting, SERVING) is Outcome.ALL_SERVE


def test_a_failure_from_before_is_no_verdict_on_the_new_state() -> None:
    before = attrs.evolve(FAILED, wanted_state=OLD)
    waiting = progress(before)
    assert outcome_of(waiting, before) is None
    late = attrs.evolve(before, wanted_state=NEW)  # the old attempt's report, just passed
    assert outcome_of(waiting, late) is None
    assert outcome_of(waiting, late, at_s=NEWS_S) is Outcome.SOME_FAILED
    assert outcome_of(waiting, SERVING) is Outcome.ALL_SERVE


def test_another_reason_than_before_is_news_at_once() -> None:
    before = attrs.evolve(FAILED, wanted_state=OLD, detail="something else")
    assert outcome_of(progress(before), FAILED) is Outcome.SOME_FAILED


def test_an_agent_that_has_not_tried_the_new_state_has_not_failed() -> None:
    untried = attrs.evolve(FAILED, state_application_status="Fresh")
    assert outcome_of(progress(), untried, at_s=2 * NEWS_S) is None


def test_an_engine_that_crashes_while_it_loads_has_failed() -> None:
    crashing = attrs.evolve(FAILED, phase="loading", progress=0.0, detail="signal SIGILL")
    waiting = progress(OLD_SERVING)
    assert outcome_of(waiting, crashing) is Outcome.SOME_FAILED
    assert waiting.standings[0].reason == "signal SIGILL"


def test_without_agents_there_is_nothing_to_wait_for() -> None:
    assert outcome_of(progress()) is Outcome.NO_AGENT


def test_an_agent_that_vanishes_is_given_time_to_come_back() -> None:
    waiting = progress()
    outcome_of(waiting, LOADING)
    assert outcome_of(waiting, at_s=1) is None
    assert outcome_of(waiting, at_s=GONE_S) is None
    assert outcome_of(waiting, at_s=1 + GONE_S) is Outcome.SOME_FAILED
    assert "offline" in waiting.standings[0].reason


def test_an_agent_started_again_under_its_name_takes_the_lost_ones_place() -> None:
    waiting = progress()
    outcome_of(waiting, LOADING)
    outcome_of(waiting, at_s=1)
    assert outcome_of(waiting, attrs.evolve(SERVING, id="9"), at_s=2) is Outcome.ALL_SERVE
    assert [standing.agent.id for standing in waiting.standings] == ["9"]


def test_a_state_that_somebody_else_replaces_is_not_waited_for() -> None:
    waiting = progress()
    waiting.observe(fleet(SERVING, digest="newer"), 0.5)
    assert waiting.outcome is Outcome.SUPERSEDED


def test_wanting_no_model_is_fulfilled_without_slots() -> None:
    idle = attrs.evolve(SERVING, phase="waiting", slots_total=0, model_path=None)
    assert outcome_of(progress(), idle) is Outcome.ALL_SERVE
    paddler = attrs.evolve(PADDLER, slots_total=0, is_accepting=False)
    assert outcome_of(progress(), paddler) is Outcome.ALL_SERVE


@pytest.mark.parametrize(
    ("agent", "outcome"),
    [
        (PADDLER, None),
        (attrs.evolve(PADDLER, is_accepting=False), None),
        (attrs.evolve(PADDLER, state_application_status="Fresh"), None),
        (attrs.evolve(PADDLER, slots_total=0), Outcome.ALL_SERVE),
        (attrs.evolve(PADDLER, issues=NO_FILE), Outcome.SOME_FAILED),
        (attrs.evolve(PADDLER, state_application_status="Stuck"), Outcome.SOME_FAILED),
    ],
)
def test_a_paddler_agent_is_judged_by_its_slots_and_issues(
    agent: AgentView, outcome: Outcome | None
) -> None:
    assert outcome_of(progress(), agent) is outcome


agents = st.builds(
    attrs.evolve,
    st.sampled_from([SERVING, OLD_SERVING, LOADING, FAILED, PADDLER]),
    is_accepting=st.booleans(),
    phase=st.sampled_from(["serving", "failed", "loading", "waiting", "leaving", None]),
    wanted_state=st.sampled_from([NEW, OLD, None]),
    served_state=st.sampled_from([NEW, OLD, None]),
    slots_total=st.integers(0, 4),
    issues=st.sampled_from([[], NO_FILE]),
    id=st.sampled_from("123"),
)


@given(st.lists(st.lists(agents, max_size=3, unique_by=lambda agent: agent.id), min_size=1))
def test_success_is_never_told_unless_every_agent_seen_last_serves(
    views: list[list[AgentView]],
) -> None:
    waiting = progress()
    for now_s, view in zip(itertools.count(), views, strict=False):
        waiting.observe(fleet(*view), now_s)
        if waiting.outcome is Outcome.ALL_SERVE:
            assert view
            assert all(agent.is_accepting or agent.is_paddlers for agent in view)
            assert all(agent.is_paddlers or agent.served_state == NEW for agent in view)
            assert {standing.result for standing in waiting.standings} == {SwapResult.SERVING}
