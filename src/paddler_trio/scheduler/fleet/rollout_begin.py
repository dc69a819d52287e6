"""Find the rollout that a goal is in: the one that goes on, or a new one, and what it goes back to.

A newer target supersedes the one before it in the middle of a rollout. What is gone back to is then
whichever proven state serves more: the old good one, or the superseded target if its canaries had
passed. The other one of the two serves on where it does, until each of its hosts has had its turn:
otherwise its slots would be lost at one stroke.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed
from paddler_trio.scheduler.fleet.fleet_values import Change, Goal, Rollout, RolloutPhase
from paddler_trio.scheduler.fleet.instance_state import failure
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK

ASKED_AGAIN: Final = "the state before it was asked for again"
"""Why a rollout goes back that nothing is wrong with."""


def rollout_of(
    goal: Goal, previous: Rollout | None, index: FleetIndex, placed: Sequence[Placed]
) -> Rollout:
    """Return the rollout that ``goal`` is in now; ``previous`` itself if it goes on."""
    if goal.is_empty:
        return _emptied(goal, previous, index.now_s)
    if previous is None:
        return _new(goal, None, index, placed)
    if previous.phase in GOING_BACK:
        if goal.target == previous.good:
            return previous if previous.is_settled else attrs.evolve(previous, is_settled=True)
        if goal.target == previous.target and not previous.is_settled:
            return previous
        return _superseding(goal, previous, previous.good, index, placed)
    if goal.target == previous.target:
        return previous
    if previous.phase is RolloutPhase.COMPLETE:
        return _new(goal, previous.good, index, placed)
    if goal.target == previous.good:
        return attrs.evolve(
            previous,
            phase=RolloutPhase.ROLLING_BACK,
            reason=ASKED_AGAIN,
            advanced_s=index.now_s,
            is_settled=True,
        )
    return _superseding(goal, previous, _proven(previous, placed), index, placed)


def _superseding(
    goal: Goal, previous: Rollout, good: str | None, index: FleetIndex, placed: Sequence[Placed]
) -> Rollout:
    """Return a new rollout in the middle of ``previous``; proven states that are served go on
    serving."""
    rollout = _new(goal, good, index, placed)
    proven = [*previous.others, previous.good, *([previous.target] * previous.is_proven)]
    served = {p.instance.serving for p in placed}
    others = dict.fromkeys(
        digest
        for digest in proven
        if digest is not None and digest in served and digest not in (good, rollout.target)
    )
    return attrs.evolve(rollout, others=tuple(others)) if others else rollout


def _emptied(goal: Goal, previous: Rollout | None, now_s: float) -> Rollout:
    if previous is not None and previous.target == goal.target and previous.good is None:
        return previous
    return Rollout(
        deployment=goal.deployment,
        good=None,
        target=goal.target,
        phase=RolloutPhase.COMPLETE,
        started_s=now_s,
        advanced_s=now_s,
        origin=None if previous is None else previous.good,
    )


def _new(goal: Goal, good: str | None, index: FleetIndex, placed: Sequence[Placed]) -> Rollout:
    runs = any(p.instance.serving is not None or p.instance.assigned is not None for p in placed)
    nothing_to_lose = good in (None, goal.target) or not (runs or index.view.is_settling)
    rollout = Rollout(
        deployment=goal.deployment,
        good=good,
        target=goal.target,
        phase=RolloutPhase.PREFETCHING,
        started_s=index.now_s,
        advanced_s=index.now_s,
        origin=good,
        is_proven=(
            nothing_to_lose
            or goal.rules.canary == 0
            or goal.change is Change.NONE
            or len(index.eligible(goal)) == 1
        ),
    )
    if not nothing_to_lose:
        return rollout
    if not runs and goal.replicas.least == 0 and not goal.replicas.is_all:
        # On demand, and not loaded: nothing is swapped. The next load is of the target.
        return attrs.evolve(rollout, phase=RolloutPhase.COMPLETE)
    return attrs.evolve(rollout, phase=RolloutPhase.ROLLING)


def _proven(previous: Rollout, placed: Sequence[Placed]) -> str | None:
    if not previous.is_proven or any(
        failure(p.instance, previous.target, since_s=None) for p in placed
    ):
        return previous.good
    slots = {previous.good: 0, previous.target: 0}
    for p in placed:
        if p.instance.serving in slots:
            slots[p.instance.serving] += p.instance.slots
    more = slots[previous.target] > slots[previous.good]
    return previous.target if more else previous.good
