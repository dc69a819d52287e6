"""Rolling swaps, rule by rule, on a fleet of model agents."""

from __future__ import annotations

import attrs
import pytest
from fleet_model import Agent, Engine, Fleet, Model

from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    Assign,
    Goal,
    Prefetch,
    Replicas,
    RolloutPhase,
    RolloutRules,
    Unload,
)
from paddler_trio.scheduler.fleet.rollout_orders import aborted, paused, resumed

MODELS = {
    "old": Model(gib=3, weights="a"),
    "new": Model(gib=3, weights="b"),
    "newer": Model(gib=3, weights="c"),
    "template": Model(gib=3, weights="a"),
    "small": Model(gib=1, weights="d"),
    "fetched": Model(gib=3, weights="e", fetches=True),
    "missing": Model(gib=3, weights="f", fetches=True, cannot_fetch=True),
    "too large": Model(gib=3, weights="g", cannot_load=True),
    "crashing": Model(gib=3, weights="h", crashes=True),
    "hanging": Model(gib=3, weights="i", hangs=True),
}


def fleet_of(number: int, *, gib: int = 4, serving: str = "old", **rules: object) -> Fleet:
    """Hosts that serve ``serving``, all of them, and a rollout that is complete."""
    fleet = Fleet(models=MODELS, delay_s=lambda: 5.0)
    for n in range(number):
        fleet.join(Agent(id=f"h{n}", gib=gib))
    fleet.goals[DEFAULT] = Goal(
        deployment=DEFAULT,
        target=serving,
        rules=RolloutRules(**rules),  # type: ignore[arg-type]
    )
    fleet.plan()
    fleet.advance(6)
    assert fleet.plan().steps == ()
    assert phase_of(fleet) is RolloutPhase.COMPLETE
    return fleet


def want(fleet: Fleet, digest: str, **changes: object) -> None:
    fleet.goals[DEFAULT] = attrs.evolve(fleet.goals[DEFAULT], target=digest, **changes)


def phase_of(fleet: Fleet, deployment: str = DEFAULT) -> RolloutPhase:
    return fleet.rollouts[deployment].phase


def serving(fleet: Fleet, deployment: str = DEFAULT) -> list[str | None]:
    return [
        a.engines[deployment].serving if deployment in a.engines else None
        for a in fleet.agents.values()
    ]


def run(fleet: Fleet, seconds: float, *, step_s: float = 1.0) -> list[object]:
    """Plan once a second; the steps in order."""
    steps: list[object] = []
    for _ in range(int(seconds / step_s)):
        while (planned := fleet.plan()).steps:
            steps.extend(planned.steps)
        fleet.advance(step_s)
    return steps


def test_the_first_state_goes_to_every_host_at_once() -> None:
    fleet = Fleet(models=MODELS, delay_s=lambda: 5.0)
    for n in range(3):
        fleet.join(Agent(id=f"h{n}"))
    fleet.goals[DEFAULT] = Goal(deployment=DEFAULT, target="old")
    planned = fleet.plan()
    assert planned.steps == tuple(Assign(f"h{n}", DEFAULT, "old") for n in range(3))
    assert planned.admissible == {DEFAULT: frozenset({"old"})}
    fleet.advance(6)
    fleet.plan()
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_one_host_goes_first_and_the_others_wait_until_it_has_proved_itself() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    planned = fleet.plan()
    (step,) = planned.steps
    assert isinstance(step, Assign)
    assert phase_of(fleet) is RolloutPhase.CANARY
    assert fleet.rollouts[DEFAULT].canaries == (step.host,)
    assert planned.admissible == {DEFAULT: frozenset({"old", "new"})}
    fleet.advance(11)  # drained, loaded, serves
    assert fleet.plan().steps == ()
    assert fleet.last.look_again_s == fleet.now_s + 9.0  # it serves since 1 s
    fleet.advance(8)
    assert fleet.plan().steps == ()
    fleet.advance(1)
    assert len(fleet.plan().steps) == 1
    assert phase_of(fleet) is RolloutPhase.ROLLING


def test_hosts_follow_one_by_one_and_all_serve_the_target_in_the_end() -> None:
    fleet = fleet_of(4)
    want(fleet, "new")
    low = 4
    for _ in range(100):
        fleet.plan()
        fleet.advance(1)
        low = min(low, sum(s is not None for s in serving(fleet)))
    assert serving(fleet) == ["new"] * 4
    assert low == 3
    assert phase_of(fleet) is RolloutPhase.COMPLETE
    assert fleet.last.admissible == {DEFAULT: frozenset({"new"})}


def test_as_many_at_a_time_as_may_be_unavailable() -> None:
    fleet = fleet_of(10, max_unavailable_percent=39, min_ready_s=0)
    want(fleet, "new")
    steps = run(fleet, 12)
    assert len(steps) == 1 + 3
    assert len(run(fleet, 200)) == 6
    assert serving(fleet) == ["new"] * 10


def test_slots_never_fall_below_the_least_capacity() -> None:
    fleet = fleet_of(3, max_unavailable=3, canary=0, min_capacity=8)
    want(fleet, "new")
    assert len(fleet.plan().steps) == 1
    assert fleet.plan().steps == ()


def test_a_capacity_that_leaves_no_host_is_the_reason_of_the_rollback() -> None:
    fleet = fleet_of(2, min_capacity=8, progress_deadline_s=30)
    want(fleet, "new")
    assert run(fleet, 29) == []
    assert fleet.rollouts[DEFAULT].reason == "min_capacity 8 leaves no host to swap"
    run(fleet, 3)
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert "min_capacity 8" in (fleet.rollouts[DEFAULT].reason or "")
    assert "30 s" in (fleet.rollouts[DEFAULT].reason or "")


def test_a_host_that_loads_beside_costs_no_capacity() -> None:
    fleet = fleet_of(2, gib=6, min_capacity=8)
    want(fleet, "new")
    low = 2
    for _ in range(60):
        fleet.plan()
        fleet.advance(0.5)
        low = min(low, sum(s is not None for s in serving(fleet)))
    assert low == 2
    assert serving(fleet) == ["new", "new"]


def test_a_host_that_refused_a_target_still_serves_and_takes_its_turn() -> None:
    fleet = fleet_of(3, min_capacity=8)
    want(fleet, "new")
    (step,) = fleet.plan().steps
    engine = fleet.agents[step.host].engines[DEFAULT]
    engine.phase, engine.problem, engine.due_s = "failed", "does not fit", None
    want(fleet, "newer")
    (step,) = fleet.plan().steps  # no host is unavailable, so a canary may begin
    assert isinstance(step, Assign)
    assert step.digest == "newer"


def test_hosts_that_load_beside_still_take_turns() -> None:
    fleet = fleet_of(4, gib=6, canary=0)
    want(fleet, "new")
    assert len(fleet.plan().steps) == 1
    assert fleet.plan().steps == ()


def test_a_single_host_begins_at_once_and_nothing_is_waited_for() -> None:
    fleet = fleet_of(1)
    want(fleet, "new")
    assert fleet.plan().steps == (Assign("h0", DEFAULT, "new"),)
    assert phase_of(fleet) is RolloutPhase.ROLLING
    fleet.advance(11)
    fleet.plan()
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_what_changes_in_place_goes_to_one_host_and_then_to_all_without_waiting() -> None:
    fleet = fleet_of(3)
    want(fleet, "template")
    assert len(fleet.plan().steps) == 1
    assert len(fleet.plan().steps) == 2
    assert serving(fleet) == ["template"] * 3


def test_every_host_has_the_files_before_the_first_one_begins() -> None:
    fleet = fleet_of(3)
    want(fleet, "fetched")
    assert {type(s) for s in fleet.plan().steps} == {Prefetch}
    assert len(fleet.last.steps) == 3
    assert phase_of(fleet) is RolloutPhase.PREFETCHING
    fleet.agents["h2"].fetching["fetched"] += 10
    fleet.advance(6)
    assert fleet.plan().steps == ()
    fleet.advance(10)
    assert [type(s) for s in fleet.plan().steps] == [Assign]


def test_files_that_cannot_be_fetched_end_the_rollout_before_anything_is_given_up() -> None:
    fleet = fleet_of(3)
    want(fleet, "missing")
    run(fleet, 10)
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert fleet.rollouts[DEFAULT].reason == "h0: 404 of the source"
    assert serving(fleet) == ["old"] * 3
    assert all(e.assigned == "old" for a in fleet.agents.values() for e in a.engines.values())


def test_a_slow_download_is_progress() -> None:
    fleet = fleet_of(2, progress_deadline_s=30)
    want(fleet, "fetched")
    fleet.plan()
    for agent in fleet.agents.values():
        agent.fetching["fetched"] += 300
    run(fleet, 290)
    assert phase_of(fleet) is RolloutPhase.PREFETCHING


@pytest.mark.parametrize("digest", ["too large", "crashing", "hanging"])
def test_a_canary_that_fails_takes_the_fleet_back(digest: str) -> None:
    fleet = fleet_of(3, progress_deadline_s=40)
    want(fleet, digest)
    run(fleet, 120)
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert serving(fleet) == ["old"] * 3
    assert fleet.last.admissible == {DEFAULT: frozenset({"old"})}
    assert fleet.rollouts[DEFAULT].reason


def test_a_failure_pauses_if_so_wanted_and_a_resumed_rollout_tries_again() -> None:
    fleet = fleet_of(3, on_failure="pause")
    want(fleet, "too large")
    run(fleet, 60)
    assert phase_of(fleet) is RolloutPhase.PAUSED
    assert sorted(s or "" for s in serving(fleet)) == ["", "old", "old"]
    fleet.models = {**MODELS, "too large": MODELS["new"]}
    rollout = resumed(fleet.rollouts[DEFAULT], now_s=fleet.now_s)
    assert rollout is not None
    fleet.rollouts = {DEFAULT: rollout}
    run(fleet, 100)
    assert serving(fleet) == ["too large"] * 3
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_a_paused_rollout_begins_with_no_other_host() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    fleet.plan()
    rollout = paused(fleet.rollouts[DEFAULT], now_s=fleet.now_s)
    assert rollout is not None
    fleet.rollouts = {DEFAULT: rollout}
    assert run(fleet, 1000, step_s=10) == []
    assert sorted(s or "" for s in serving(fleet)) == ["new", "old", "old"]
    going_on = resumed(rollout, now_s=fleet.now_s)
    assert going_on is not None
    fleet.rollouts = {DEFAULT: going_on}
    run(fleet, 100)
    assert serving(fleet) == ["new"] * 3


def test_an_aborted_rollout_goes_back() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    run(fleet, 25)
    assert "new" in serving(fleet)
    rollout = aborted(fleet.rollouts[DEFAULT], now_s=fleet.now_s)
    assert rollout is not None
    fleet.rollouts = {DEFAULT: rollout}
    run(fleet, 100)
    assert serving(fleet) == ["old"] * 3
    assert phase_of(fleet) is RolloutPhase.ABORTED
    assert fleet.last.admissible == {DEFAULT: frozenset({"old"})}


def test_going_back_keeps_the_capacity_if_the_target_had_proved_itself() -> None:
    fleet = fleet_of(4)
    want(fleet, "new")
    run(fleet, 36)
    assert serving(fleet).count("new") == 2
    engines = [a.engines[DEFAULT] for a in fleet.agents.values()]
    (third,) = [e for e in engines if e.assigned == "new" and e.serving != "new"]
    third.phase, third.problem, third.due_s = "failed", "disk error", None
    assert third.serving is None
    low = 4
    for _ in range(100):
        fleet.plan()
        fleet.advance(1)
        low = min(low, sum(s is not None for s in serving(fleet)))
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert serving(fleet) == ["old"] * 4
    assert low == 3  # the failed one serves again before the next one goes


def test_after_a_rollback_the_caller_makes_the_good_state_its_goal_and_may_try_again() -> None:
    fleet = fleet_of(2)
    want(fleet, "too large")
    run(fleet, 60)
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert run(fleet, 20) == []
    want(fleet, "old")
    assert run(fleet, 20) == []
    assert fleet.rollouts[DEFAULT].is_settled
    want(fleet, "too large")
    fleet.models = {**MODELS, "too large": MODELS["new"]}
    run(fleet, 100)
    assert serving(fleet) == ["too large"] * 2
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_a_newer_target_supersedes_and_hosts_that_had_not_begun_skip_to_it() -> None:
    fleet = fleet_of(4)
    want(fleet, "new")
    run(fleet, 12)
    assert serving(fleet).count("new") == 1
    want(fleet, "newer")
    steps = run(fleet, 200)
    assert serving(fleet) == ["newer"] * 4
    assert not [s for s in steps if isinstance(s, Assign) and s.digest == "new"]
    assert fleet.rollouts[DEFAULT].origin == "old"


def test_a_host_that_loads_a_superseded_target_is_told_the_newer_one_at_once() -> None:
    fleet = fleet_of(2)
    want(fleet, "new")
    (canary,) = fleet.plan().steps
    fleet.advance(7)  # it loads
    want(fleet, "newer")
    steps = run(fleet, 1)
    assert (
        Assign(canary.host, DEFAULT, "newer") in steps
        or Assign(canary.host, DEFAULT, "old") in steps
    )
    run(fleet, 100)
    assert serving(fleet) == ["newer"] * 2


def test_a_proven_target_that_serves_more_is_what_is_gone_back_to() -> None:
    fleet = fleet_of(4)
    want(fleet, "new")
    run(fleet, 48)
    assert serving(fleet).count("new") == 3
    want(fleet, "too large")
    fleet.plan()
    assert fleet.rollouts[DEFAULT].good == "new"
    low = 4
    for _ in range(100):
        fleet.plan()
        fleet.advance(1)
        low = min(low, serving(fleet).count("new"))
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert serving(fleet) == ["new"] * 4
    assert low >= 2


def test_the_state_before_can_be_asked_for_again_in_the_middle() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    run(fleet, 25)
    want(fleet, "old")
    run(fleet, 100)
    assert serving(fleet) == ["old"] * 3
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK


def test_a_host_that_returns_gets_what_it_serves_until_its_turn() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    (canary,) = fleet.plan().steps
    other = next(a for a in fleet.agents.values() if a.id != canary.host)
    fleet.lose(other, with_engines=False)
    fleet.plan()
    other.is_away = False
    assert fleet.plan().steps == (Assign(other.id, DEFAULT, "old"),)
    run(fleet, 100)
    assert serving(fleet) == ["new"] * 3


def test_a_host_that_returns_with_nothing_gets_the_good_state_while_a_canary_is_tried() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    (canary,) = fleet.plan().steps
    other = next(a for a in fleet.agents.values() if a.id != canary.host)
    fleet.lose(other, with_engines=True)
    fleet.plan()
    other.is_away = False
    assert fleet.plan().steps == (Assign(other.id, DEFAULT, "old"),)


def test_a_canary_that_is_lost_is_no_failure() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    (canary,) = fleet.plan().steps
    fleet.lose(fleet.agents[canary.host], with_engines=True)
    (second,) = fleet.plan().steps
    assert second.host != canary.host
    fleet.agents[canary.host].is_away = False
    run(fleet, 150)
    assert serving(fleet) == ["new"] * 3
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_a_restarted_balancer_takes_nothing_out_of_service_before_the_hosts_are_back() -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    run(fleet, 25)
    assert phase_of(fleet) is RolloutPhase.ROLLING
    fleet.restart_balancer()
    for agent in fleet.agents.values():
        agent.is_away = agent.id != "h2"
    fleet.is_settling = True
    assert [s for s in run(fleet, 5) if s != Assign("h2", DEFAULT, "old")] == []
    for agent in fleet.agents.values():
        agent.is_away = False
    fleet.is_settling = False
    run(fleet, 100)
    assert serving(fleet) == ["new"] * 3
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_hold_sends_nothing_to_the_old_state_once_the_new_one_serves() -> None:
    fleet = fleet_of(3, mixed="hold")
    want(fleet, "new")
    assert fleet.plan().admissible == {DEFAULT: frozenset({"old", "new"})}
    fleet.advance(11)
    assert fleet.plan().admissible == {DEFAULT: frozenset({"new"})}
    run(fleet, 60)
    assert serving(fleet) == ["new"] * 3


def test_a_drained_host_gets_nothing_and_is_not_waited_for() -> None:
    fleet = fleet_of(3)
    fleet.agents["h1"].is_drained = True
    want(fleet, "new")
    steps = run(fleet, 100)
    assert all(s.host != "h1" for s in steps)
    assert serving(fleet) == ["new", "old", "new"]
    assert phase_of(fleet) is RolloutPhase.COMPLETE
    fleet.agents["h1"].is_drained = False
    assert fleet.plan().steps == (Assign("h1", DEFAULT, "new"),)


def test_hosts_of_paddler_take_their_turn_without_prefetch() -> None:
    fleet = fleet_of(2)
    for agent in fleet.agents.values():
        agent.is_ours = False
    want(fleet, "fetched")
    steps = run(fleet, 100)
    assert {type(s) for s in steps} == {Assign}
    assert serving(fleet) == ["fetched"] * 2


def test_no_model_unloads_everything_and_the_next_one_is_a_first_state() -> None:
    fleet = fleet_of(2)
    fleet.models = {**MODELS, "none": Model(weights="z")}
    want(fleet, "none", is_empty=True)
    assert fleet.plan().steps == (Unload("h0", DEFAULT), Unload("h1", DEFAULT))
    fleet.advance(1)
    assert serving(fleet) == [None, None]
    assert fleet.plan().steps == ()
    want(fleet, "new", is_empty=False)
    assert len(fleet.plan().steps) == 2
    fleet.advance(6)
    fleet.plan()
    assert phase_of(fleet) is RolloutPhase.COMPLETE


def test_what_fits_nowhere_beside_the_others_fails_with_their_names() -> None:
    fleet = fleet_of(2, gib=4, serving="small")
    fleet.goals["chat"] = Goal(deployment="chat", target="old", replicas=Replicas(least=2, most=2))
    run(fleet, 10)
    assert serving(fleet, "chat") == ["old", "old"]
    want(fleet, "new")
    run(fleet, 10)
    assert phase_of(fleet) is RolloutPhase.ROLLED_BACK
    assert fleet.rollouts[DEFAULT].reason == "h0: the model does not fit beside chat"


def test_orders_apply_only_where_they_make_sense() -> None:
    fleet = fleet_of(1)
    done = fleet.rollouts[DEFAULT]
    assert paused(done, now_s=0) is None
    assert resumed(done, now_s=0) is None
    assert aborted(done, now_s=0) is None


def test_a_load_that_hangs_does_not_keep_the_host_from_other_deployments() -> None:
    fleet = Fleet(models=MODELS, delay_s=lambda: 5.0)
    fleet.join(Agent(id="h0", engines={DEFAULT: Engine(deployment=DEFAULT)}))
    rules = RolloutRules(progress_deadline_s=60)
    fleet.goals[DEFAULT] = Goal(deployment=DEFAULT, target="hanging", rules=rules)
    fleet.goals["small"] = Goal(
        deployment="small", target="small", replicas=Replicas(least=1, most=1)
    )
    steps = run(fleet, 59)
    assert steps == [Assign("h0", DEFAULT, "hanging")]
    run(fleet, 20)
    assert serving(fleet, "small") == ["small"]


@pytest.mark.parametrize("goes_back", [False, True])
def test_a_rollout_does_not_end_with_the_first_host_that_is_back_after_a_restart(
    goes_back: bool,
) -> None:
    fleet = fleet_of(3)
    want(fleet, "new")
    while serving(fleet).count("new") != 1 or phase_of(fleet) is not RolloutPhase.ROLLING:
        run(fleet, 1)
    if goes_back:
        rollout = aborted(fleet.rollouts[DEFAULT], now_s=fleet.now_s)
        assert rollout is not None
        fleet.rollouts = {DEFAULT: rollout}
    phase, digest = phase_of(fleet), "old" if goes_back else "new"
    fleet.is_settling = True
    for agent in fleet.agents.values():
        agent.is_away = agent.engines[DEFAULT].serving != digest
    fleet.plan()
    assert phase_of(fleet) is phase
    assert fleet.rollouts[DEFAULT].is_proven, "hosts that are away may serve the new state"
    for agent in fleet.agents.values():
        agent.is_away = False
    fleet.is_settling = False
    run(fleet, 200)
    assert serving(fleet) == [digest] * 3
