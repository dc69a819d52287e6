"""Decide which digests of a deployment may get requests: the good one, the target, and proven ones
that a superseded rollout left behind, until their hosts have had their turn."""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.scheduler.fleet.fleet_index import Placed
from paddler_trio.scheduler.fleet.fleet_values import Goal, Rollout, RolloutPhase
from paddler_trio.scheduler.fleet.instance_state import is_available
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK


def aim_of(rollout: Rollout) -> str:
    """Return what every host is to serve in the end."""
    if rollout.phase in GOING_BACK and rollout.good is not None:
        return rollout.good
    return rollout.target


def admissible(goal: Goal, rollout: Rollout, placed: Sequence[Placed]) -> frozenset[str]:
    """Return the digests whose instances may get requests now.

    While a rollout runs both are; while it is rolled back, the target only if its canaries had
    passed. So are the states of rollouts that were superseded, if they had been proven: a newer
    target takes no slots away at one stroke. With ``mixed="hold"`` the aim alone is, once a host
    serves it.
    """
    aim = frozenset((aim_of(rollout),))
    if rollout.good is None or rollout.phase in (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK):
        return aim
    if rollout.phase in GOING_BACK and not rollout.is_proven:
        return aim.union(rollout.others)
    if goal.rules.mixed == "hold" and any(is_available(p.instance, aim) for p in placed):
        return aim
    return frozenset((rollout.good, rollout.target, *rollout.others))
