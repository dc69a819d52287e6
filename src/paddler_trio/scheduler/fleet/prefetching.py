"""Which hosts fetch the files of a target while they serve on.

A host fetches one model at a time. Files that could not be fetched are not asked for again: that is
what the rollout failed of, or the caller has dropped the failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed
from paddler_trio.scheduler.fleet.fleet_values import Goal, Prefetch, Rollout, RolloutPhase
from paddler_trio.scheduler.fleet.rollout_progress import needs_fetch


def prefetch(
    goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed], *, is_new: bool
) -> None:
    """Ask every host of the deployment for the files of the target."""
    if rollout.phase is not RolloutPhase.PREFETCHING:
        return
    for p in placed:
        state, host = p.state, p.state.host
        if state.step is not None or host.fetching or not needs_fetch(goal, p):
            continue
        if is_new or goal.target not in host.fetch_failed:
            index.take(state, Prefetch(host.id, goal.deployment, goal.target))
