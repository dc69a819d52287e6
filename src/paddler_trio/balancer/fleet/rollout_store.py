"""Rollouts as they are kept over restarts: clocks of one process mean nothing to the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from paddler_trio.balancer.fleet.stored_fleet import StoredRollout
from paddler_trio.scheduler.fleet.fleet_values import Rollout, RolloutPhase


def stored(rollout: Rollout, now_s: float) -> StoredRollout:
    """``now_s``: of the clock of the rollout's times."""
    return StoredRollout(
        good=rollout.good,
        target=rollout.target,
        phase=rollout.phase.value,
        started=utc_of(rollout.started_s, now_s),
        advanced=utc_of(rollout.advanced_s, now_s),
        reason=rollout.reason,
        canaries=rollout.canaries,
        is_proven=rollout.is_proven,
        others=rollout.others,
    )


def restored(deployment: str, kept: StoredRollout, now_s: float) -> Rollout:
    """The deadlines begin anew: time in which no balancer ran is not held against agents."""
    return Rollout(
        deployment=deployment,
        good=kept.good,
        target=kept.target,
        phase=RolloutPhase(kept.phase),
        started_s=now_s,
        advanced_s=now_s,
        reason=kept.reason,
        canaries=kept.canaries,
        is_proven=kept.is_proven,
        others=kept.others,
    )


def utc_of(time_s: float, now_s: float) -> str:
    """RFC 3339, to the second."""
    then = datetime.now(UTC) - timedelta(seconds=now_s - time_s)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
