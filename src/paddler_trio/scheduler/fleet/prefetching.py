"""Which hosts fetch the files of a target while they serve on.

A host fetches one model at a time. Files that could not be fetched are not asked for again: the
rollout has failed of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed
from paddler_trio.scheduler.fleet.fleet_values import Goal, Prefetch, Rollout, RolloutPhase
from paddler_trio.scheduler.fleet.rollout_phases import needs_fetch


def prefetch(goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]) -> None:
    """Ask every host of the deployment for the files of the target."""
    if rollout.phase is not RolloutPhase.PREFETCHING:
        return
    for p in placed:
        state, host = p.state, p.state.host
        if state.step is None and not host.fetching and needs_fetch(goal, p):
            index.take(state, Prefetch(host.id, goal.deployment, goal.target))
