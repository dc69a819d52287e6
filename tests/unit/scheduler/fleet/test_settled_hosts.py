"""A fleet at rest is planned without its settled hosts, and the plan is the same."""

from __future__ import annotations

import random

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    FleetView,
    Goal,
    Host,
    Instance,
    Queue,
    Replicas,
    Rollout,
    RolloutPhase,
)
from paddler_trio.scheduler.fleet.settled_hosts import (
    SettledLoads,
    is_at_rest,
    is_settled,
    without_settled,
)

NOW_S = 1000.0
NAMES = (DEFAULT, "chat", "gone")
"""The last one has no goal."""
PHASES = ("serving", "serving", "serving", "loading", "draining", "failed", "leaving", "connecting")
GOALS = (
    Goal(deployment=DEFAULT, target="default v1", idle_ttl_s=5.0),
    Goal(deployment="chat", target="chat v1", where=("gpu=yes",), priority=1),
)
FLEETS = 600
SECONDS = (0.0, 400.0, 990.0)


def instance(name: str, dice: random.Random) -> Instance:
    """Most of them serve what they are to serve."""
    usual = Instance(
        deployment=name, assigned=f"{name} v1", serving=f"{name} v1", phase="serving", slots=4
    )
    if dice.random() < 0.7:
        return usual
    digests = (None, f"{name} v1", f"{name} v1", f"{name} v0")
    return attrs.evolve(
        usual,
        assigned=dice.choice(digests),
        serving=dice.choice(digests),
        phase=dice.choice(PHASES),
        busy=dice.randrange(3),
        assigned_s=dice.choice(SECONDS),
        served_s=dice.choice((None, *SECONDS)),
        idle_s=dice.choice((None, *SECONDS)),
        crashes=dice.randrange(3),
        is_ours=dice.random() < 0.7,
        is_unloading=dice.random() < 0.2,
    )


def host(number: int, dice: random.Random) -> Host:
    has_gpu = dice.random() < 0.5
    names = [DEFAULT, *(["chat"] if has_gpu else [])]
    if dice.random() < 0.2:
        names = dice.sample(NAMES, dice.randrange(4))
    return Host(
        id=f"h{number}",
        name=f"host {number}",
        labels={"gpu": "yes"} if has_gpu else {},
        is_ours=dice.random() < 0.8,
        is_drained=dice.random() < 0.1,
        memory=dice.choice(({}, {"host": 2}, {"host": 8})),
        held={name: {"host": 1} for name in names},
        on_disk=dice.choice((frozenset[str](), frozenset({"chat v1"}))),
        load_s={
            f"{name} v1": dice.choice((1.0, 2.0, 30.0)) for name in NAMES if dice.random() < 0.3
        },
        instances={name: instance(name, dice) for name in names},
    )


def view(dice: random.Random) -> FleetView:
    number = dice.randint(1, 8)
    goals = dice.choice((GOALS, GOALS[:1], GOALS[1:], ()))
    needs = {f"h{n}": {"host": dice.randrange(4)} for n in range(number) if dice.random() < 0.8}
    return FleetView(
        now_s=NOW_S,
        goals=tuple(attrs.evolve(goal, needs=needs) for goal in goals),
        hosts=tuple(host(n, dice) for n in range(number)),
        queues={name: Queue(waiting=dice.randrange(3), oldest_wait_s=90.0) for name in NAMES},
        rollouts={goal.deployment: complete(goal) for goal in goals},
        load_s=dice.choice(({}, {"chat v1": 7.0})),
        is_settling=dice.random() < 0.3,
    )


def complete(goal: Goal) -> Rollout:
    return Rollout(
        deployment=goal.deployment,
        good=goal.target,
        target=goal.target,
        phase=RolloutPhase.COMPLETE,
        started_s=0.0,
        advanced_s=0.0,
    )


def test_a_plan_without_the_settled_hosts_is_the_same_plan() -> None:
    num_settled = num_steps = 0
    for seed in range(FLEETS):
        whole = view(random.Random(seed))
        assert is_at_rest(whole.goals, whole.rollouts)
        goals = {goal.deployment: goal for goal in whole.goals}
        loads, unsettled = SettledLoads(), []
        for each in whole.hosts:
            if is_settled(each, goals):
                loads.settled(each)
            else:
                unsettled.append(each)
        fewer = attrs.evolve(whole, hosts=without_settled(unsettled, loads.shortest()))
        made = plan(whole)
        assert plan(fewer) == made, seed
        num_settled += len(whole.hosts) - len(unsettled)
        num_steps += len(made.steps)
    assert min(num_settled, num_steps) > FLEETS / 2


def test_a_fleet_is_not_at_rest_while_something_is_under_way_or_hosts_are_chosen() -> None:
    goal = GOALS[0]
    over = complete(goal)
    for other_goal, rollout in [
        (attrs.evolve(goal, replicas=Replicas(least=1, most=1)), over),
        (attrs.evolve(goal, target="default v2"), over),
        (attrs.evolve(goal, is_empty=True), over),
        (goal, attrs.evolve(over, phase=RolloutPhase.ROLLING)),
        (goal, attrs.evolve(over, phase=RolloutPhase.ROLLED_BACK)),
        (goal, attrs.evolve(over, good=None)),
    ]:
        assert not is_at_rest([other_goal], {DEFAULT: rollout})
    assert not is_at_rest([goal], {})
    assert is_at_rest([goal], {DEFAULT: over})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from([1.0, 2.0, 3.0]))))
@settings(max_examples=examples(100), deadline=None)
def test_the_shortest_load_is_that_of_the_hosts_that_are_settled_now(
    changes: list[tuple[str, float | None]],
) -> None:
    loads, now = SettledLoads(), dict[str, float]()
    for host, load_s in changes:
        loads.unsettled(host)
        now.pop(host, None)
        if load_s is not None:
            loads.settled(Host(id=host, load_s={"x": load_s}))
            now[host] = load_s
        if host != "b":  # not asked for each time
            assert loads.shortest() == ({"x": min(now.values())} if now else {})
