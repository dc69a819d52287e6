"""Plan the steps that are due, from a view of the fleet: the same view gives the same plan.

The caller carries out the steps, writes down what it sent (``assigned``), keeps the rollouts, and
plans again when anything has changed or ``look_again_s`` has come. A plan with steps is followed by
another one at once: a host gets one step at a time, so some of what is due is left out.

Order matters, since a host gets one step only: what nobody wants is unloaded, waiting requests get
their model, rollouts go on, what is idle goes, files are fetched.

Source:
  The control loop is that of Kubernetes: compare what is with what should be, take the next step,
  forget everything in between.
"""

from __future__ import annotations

from paddler_trio.scheduler.fleet.admissible import admissible
from paddler_trio.scheduler.fleet.expectations import expectations
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex
from paddler_trio.scheduler.fleet.fleet_values import FleetView, Goal, Plan
from paddler_trio.scheduler.fleet.instance_state import is_available
from paddler_trio.scheduler.fleet.replica_placement import Deployment, clear, clear_unwanted, place
from paddler_trio.scheduler.fleet.rolling import go_over
from paddler_trio.scheduler.fleet.rollout_begin import rollout_of
from paddler_trio.scheduler.fleet.rollout_phases import advance, prefetch

NOTHING: frozenset[str] = frozenset()


def plan(view: FleetView) -> Plan:
    """Decide what is to be done now. Changes nothing."""
    index = FleetIndex(view)
    deployments: list[Deployment] = []
    for goal in sorted(view.goals, key=_by_priority):
        previous = view.rollouts.get(goal.deployment)
        placed = index.usable(goal)
        rollout = rollout_of(goal, previous, index, placed)
        is_new = previous is None or previous.target != rollout.target
        rollout = advance(goal, rollout, index, placed, is_new=is_new)
        deployments.append(
            Deployment(
                goal=goal,
                rollout=rollout,
                placed=placed,
                admissible=admissible(goal, rollout, placed),
            )
        )
    clear_unwanted(index)
    place(deployments, index)
    rollouts = {}
    for d in deployments:
        if d.goal.is_empty:
            rollouts[d.name] = d.rollout
            continue
        rollouts[d.name] = go_over(d.goal, d.rollout, index, d.placed, d.admissible)
    clear(deployments, index)
    for d in deployments:
        prefetch(d.goal, rollouts[d.name], index, d.placed)
    return Plan(
        steps=tuple(index.steps),
        rollouts=rollouts,
        admissible={
            d.name: NOTHING if d.name in index.yielding else d.admissible for d in deployments
        },
        expected=expectations(deployments, index),
        look_again_s=index.look_again_s,
        problems=index.problems,
        last_served_s=_last_served_s(deployments, index),
    )


def _last_served_s(deployments: list[Deployment], index: FleetIndex) -> dict[str, float]:
    """Return when deployments on demand served last: others never wait for room that one more of
    the kind could take."""
    last_s = {}
    for d in deployments:
        if d.goal.replicas.is_all or d.goal.replicas.least:
            continue
        if any(is_available(p.instance, d.admissible) for p in d.placed):
            last_s[d.name] = index.now_s
        elif d.name in index.view.last_served_s:
            last_s[d.name] = index.view.last_served_s[d.name]
    return last_s


def _by_priority(goal: Goal) -> tuple[int, str]:
    return -goal.priority, goal.deployment
