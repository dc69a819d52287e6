"""Tell of rollouts what a look at the fleet, or a balancer after a restart, has to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from paddler_trio.balancer.fleet.stored_fleet import (
    MAX_LOAD_MS,
    PAUSED_BY,
    StoredRollout,
)
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_values import (
    FleetView,
    Plan,
    Rollout,
    RolloutPhase,
)
from paddler_trio.scheduler.fleet.rollout_orders import GOING_ON, resumed
from paddler_trio.scheduler.fleet.rollout_phases import fetch_again_s
from paddler_trio.wire.trio.fleet_state import DeploymentSpec

log = structlog.get_logger("fleet")

IDLE_LOOKS: Final = 10
"""The number of looks in the time after which something idle is unloaded."""
LEAST_IDLE_PAUSE_S: Final = 1.0
NOTABLE: Final = 0.25
"""A load time that differs by more than this part of it is another one."""
MOVING: Final = frozenset(
    {RolloutPhase.CANARY, RolloutPhase.ROLLING, RolloutPhase.ROLLING_BACK, RolloutPhase.ABORTED}
)
"""Phases in which hosts go over."""

FAILING: Final = frozenset(
    {RolloutPhase.PAUSED, RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK}
)
"""Phases that nobody ordered: somebody is to know of them."""


def is_ordered(rollout: Rollout) -> bool:
    """Return whether an operator paused it."""
    return (rollout.reason or "").startswith(PAUSED_BY)


def log_phase(rollout: Rollout) -> None:
    """Log what a rollout does now; a warning if that is what nobody ordered."""
    has_failed = rollout.phase in FAILING and not is_ordered(rollout)
    (log.warning if has_failed else log.info)(
        "rollout",
        deployment=rollout.deployment,
        phase=rollout.phase.value,
        target=rollout.target[:12],
        reason=rollout.reason,
    )


def kept_load_s(kept: Mapping[str, float], view: FleetView | None) -> Mapping[str, float]:
    """Return what loads took, by digest, with what hosts measured of goals since. A file is not
    written for a few hundredths: a figure is replaced by one that differs by more than a quarter.
    """
    if view is None:
        return kept
    measured = dict(kept)
    for goal in view.goals:
        found = [h.load_s[goal.target] for h in view.hosts if goal.target in h.load_s]
        if not found:
            continue
        shortest_s = round(min(*found, MAX_LOAD_MS / 1000), 3)
        before_s = measured.get(goal.target)
        if before_s is None or abs(shortest_s - before_s) > NOTABLE * before_s:
            measured[goal.target] = shortest_s
    return measured


def coming_of(rollout: Rollout | None) -> str | None:
    """Return the digest that more and more hosts are to serve, while a rollout moves."""
    if rollout is None or rollout.phase not in MOVING:
        return None
    return aim_of(rollout)


def pool_settings(specs: Iterable[DeploymentSpec], made: Plan) -> list[PoolSettings]:
    """Return how the pools of these deployments are to be opened."""
    return [
        PoolSettings(
            name=spec.name,
            aliases=spec.aliases,
            admissible=made.admissible.get(spec.name, frozenset({spec.digest})),
            coming=coming_of(made.rollouts.get(spec.name)),
            empty=spec.is_empty,
        )
        for spec in specs
    ]


def with_repaired_resumed(view: FleetView) -> Mapping[str, Rollout]:
    """A rollout that paused by itself goes on when all agents that failed serve after all: agents
    try again by themselves, so a file that was missing only needs to appear."""
    rollouts = dict(view.rollouts)
    for name, rollout in view.rollouts.items():
        if rollout.phase is not RolloutPhase.PAUSED or is_ordered(rollout):
            continue
        placed = (host.instances.get(name) for host in view.hosts)
        sent = [each for each in placed if each and each.assigned == rollout.target]
        if sent and all(each.serving == rollout.target for each in sent):
            rollouts[name] = resumed(rollout, now_s=view.now_s) or rollout
    return rollouts


def fetches_again_s(view: FleetView) -> Mapping[str, float]:
    """Return, by deployment, when a rollout that paused by itself asks for its files again."""
    goals = {goal.deployment: goal for goal in view.goals}
    times_s = {
        name: fetch_again_s(rollout, goals[name], view.hosts)
        for name, rollout in view.rollouts.items()
        if name in goals and not is_ordered(rollout)
    }
    return {name: time_s for name, time_s in times_s.items() if time_s is not None}


def with_fetches_due(view: FleetView) -> Mapping[str, Rollout]:
    """Return those rollouts that ask for their files again now."""
    due = {name for name, time_s in fetches_again_s(view).items() if view.now_s >= time_s}
    again = {name: resumed(view.rollouts[name], now_s=view.now_s) for name in due}
    return {name: rollout for name, rollout in again.items() if rollout is not None}


def targets_of(rollouts: Mapping[str, Rollout]) -> frozenset[str]:
    """Return the digests whose files are wanted."""
    return frozenset(each.target for each in rollouts.values() if each.phase in GOING_ON)


def phases_of(rollouts: Mapping[str, Rollout]) -> dict[str, tuple[str, RolloutPhase]]:
    """Return what changes a few times in a rollout, and not with each report of an agent."""
    return {name: (each.target, each.phase) for name, each in rollouts.items()}


def idle_look_s(view: FleetView) -> float | None:
    """Return when to look whether a deployment that is unloaded when it is idle has become so:
    requests that end are no change of the fleet."""
    ttls_s = {
        goal.deployment: goal.idle_ttl_s for goal in view.goals if goal.idle_ttl_s is not None
    }
    pauses_s = [
        max(LEAST_IDLE_PAUSE_S, ttls_s[name] / IDLE_LOOKS)
        for host in view.hosts
        for name in ttls_s.keys() & host.instances.keys()
    ]
    return view.now_s + min(pauses_s) if pauses_s else None


# ------------------------------------------------------------ kept over restarts


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
