"""The state machine of a rollout.

```
PREFETCHING ── all have the files ──▶ CANARY ── min_ready ──▶ ROLLING ── all serve ──▶ COMPLETE
      └──────────────┬──────────────────┴──────────┬───────────┘
                  failure                     operator's order
             rollback │ pause                 PAUSED, ABORTED
   ROLLING_BACK ◀─────┴────▶ PAUSED
        └── all serve the good state ──▶ ROLLED_BACK
```

A failure is a model that could not be fetched before the rollout, one that does not load, an
engine that crashes, or no host that advances within ``progress_deadline_s``. A host that is lost is
none: it comes back, or the others go on without it. Where there is nothing to go back to, a failure
is only shown: agents try again by themselves. A failure of
files that paused it is over after :func:`fetch_again_s`, for the caller to resume it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.eviction import never_fits
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed
from paddler_trio.scheduler.fleet.fleet_values import (
    Change,
    Goal,
    Host,
    Prefetch,
    Rollout,
    RolloutPhase,
)
from paddler_trio.scheduler.fleet.instance_state import failure

PREFETCHING, CANARY, ROLLING = (
    RolloutPhase.PREFETCHING,
    RolloutPhase.CANARY,
    RolloutPhase.ROLLING,
)

FETCH_AGAIN_S: Final = 60.0
"""A file may appear, or a token that opens it: only agents and sources know, so they are asked."""


def fetch_again_s(rollout: Rollout, goal: Goal, hosts: Sequence[Host]) -> float | None:
    """Return when a rollout that paused by itself is to ask for files again; None if that is not
    what it waits for: its hosts have them, or one was sent the target already."""
    name, target = rollout.deployment, rollout.target
    if rollout.phase is not RolloutPhase.PAUSED or not goal.rules.prefetch or not goal.fetches:
        return None
    placed = [(host, host.instances[name]) for host in hosts if name in host.instances]
    if any(instance.assigned == target for _, instance in placed):
        return None
    lacks = any(host.is_ours and target not in host.on_disk for host, _ in placed)
    return rollout.advanced_s + FETCH_AGAIN_S if lacks else None


def advance(
    goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed], *, is_new: bool
) -> Rollout:
    """Return the rollout as the hosts are now; the same object if nothing has changed. None ends
    while hosts are on their way back: those that are here are not all."""
    match rollout.phase:
        case RolloutPhase.ROLLING_BACK | RolloutPhase.ABORTED:
            return rollout if index.view.is_settling else _back(rollout, placed)
        case RolloutPhase.PREFETCHING | RolloutPhase.CANARY | RolloutPhase.ROLLING:
            return _on(goal, rollout, index, placed, is_new=is_new)
        case RolloutPhase.COMPLETE if rollout.good != rollout.target and not goal.is_empty:
            # On demand, it was not loaded when it became the target; now it is proven too.
            serves = any(_serves(rollout.target, p) for p in placed)
            return attrs.evolve(rollout, good=rollout.target) if serves else rollout
        case _:
            return rollout


def needs_fetch(goal: Goal, placed: Placed) -> bool:
    """Return whether the files must be fetched there before the rollout begins."""
    host, instance = placed.state.host, placed.instance
    return (
        host.is_ours
        and goal.target not in host.on_disk
        and goal.target not in (instance.serving, instance.assigned)
    )


def _back(rollout: Rollout, placed: Sequence[Placed]) -> Rollout:
    good = rollout.good
    is_back = all(
        p.instance.assigned == good and (p.instance.serving == good or p.instance.phase == "failed")
        for p in placed
    )
    if not is_back or not placed:
        return rollout
    if rollout.phase is RolloutPhase.ABORTED:
        if rollout.is_proven or rollout.others:
            return attrs.evolve(rollout, is_proven=False, others=())
        return rollout
    return attrs.evolve(rollout, phase=RolloutPhase.ROLLED_BACK, is_proven=False, others=())


def _on(
    goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed], *, is_new: bool
) -> Rollout:
    rollout = _with_progress(goal, rollout, index, placed)
    problem = None if is_new else _failure(goal, rollout, index, placed)
    if problem is not None and rollout.good is not None:
        return _failed(goal, rollout, index, problem)
    if problem is not None and rollout.reason != problem:
        rollout = attrs.evolve(rollout, reason=problem)
    if rollout.phase is PREFETCHING and _is_fetched(goal, placed):
        rollout = attrs.evolve(rollout, phase=CANARY, advanced_s=index.now_s)
    if rollout.phase is CANARY and (rollout.is_proven or _has_passed(goal, rollout, index, placed)):
        rollout = attrs.evolve(rollout, phase=ROLLING, is_proven=True, advanced_s=index.now_s)
    is_everywhere = placed and all(_serves(goal.target, p) for p in placed)
    if rollout.phase is ROLLING and is_everywhere and not index.view.is_settling:
        return attrs.evolve(
            rollout,
            phase=RolloutPhase.COMPLETE,
            good=goal.target,
            others=(),
            reason=None,
            resumed_s=None,
        )
    index.wake(rollout.advanced_s + goal.rules.progress_deadline_s)
    return rollout


def _serves(digest: str, placed: Placed) -> bool:
    return placed.instance.serving == digest and placed.instance.assigned == digest


def _is_fetched(goal: Goal, placed: Sequence[Placed]) -> bool:
    if not goal.rules.prefetch or not goal.fetches or goal.change is not Change.WEIGHTS:
        return True
    return bool(placed) and not any(needs_fetch(goal, p) for p in placed)


def _has_passed(goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]) -> bool:
    canaries = [p for p in placed if p.state.host.id in rollout.canaries]
    if len(canaries) < min(goal.rules.canary, len(placed)) or not canaries:
        return False
    if not all(_serves(goal.target, p) for p in canaries):
        return False
    if goal.change in (Change.NONE, Change.IN_PLACE):
        return True
    served = [index.now_s if (s := p.instance.served_s) is None else s for p in canaries]
    ready_s = max(served) + goal.rules.min_ready_s
    index.wake(ready_s)
    return index.now_s >= ready_s


def _with_progress(
    goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]
) -> Rollout:
    """Note the progress of hosts: one advances when it is told to begin, serves the target, or has
    the files.

    The clock stands still while files arrive, which has deadlines of its own, and while there is no
    host at all.
    """
    target = goal.target
    newest_s, fetched = rollout.advanced_s, 0
    if not placed or index.view.is_settling:
        newest_s = index.now_s
    for p in placed:
        instance, host = p.instance, p.state.host
        fetched += target in host.on_disk
        if target in host.fetching:
            newest_s = index.now_s
        if instance.assigned == target:
            newest_s = max(newest_s, instance.assigned_s)
            if instance.phase == "downloading":
                newest_s = index.now_s
            if instance.serving == target and instance.served_s is not None:
                newest_s = max(newest_s, instance.served_s)
    if fetched > rollout.fetched:
        newest_s = index.now_s
    newest_s = min(newest_s, index.now_s)
    if newest_s == rollout.advanced_s and fetched == rollout.fetched:
        return rollout
    return attrs.evolve(rollout, advanced_s=newest_s, fetched=fetched)


def _failure(
    goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]
) -> str | None:
    target, is_fetching = goal.target, rollout.phase is PREFETCHING
    has_not_begun = rollout.phase is not ROLLING  # later it is what it waits for
    for p in placed:
        problem = failure(p.instance, target, since_s=rollout.resumed_s)
        host = p.state.host
        if problem is None and is_fetching and needs_fetch(goal, p) and target not in host.fetching:
            problem = _unfetched(goal, host.fetch_failed.get(target))
        if problem is None and has_not_begun and len(host.instances) > 1:
            problem = never_fits(goal, p, index)
        if problem is not None:
            return f"{p.state.name}: {problem}"
    deadline_s = goal.rules.progress_deadline_s
    if rollout.good is not None and index.now_s - rollout.advanced_s >= deadline_s:
        waits = f" ({rollout.reason})" if rollout.reason else ""
        return f"no host advanced for {deadline_s:g} s{waits}"
    return None


def _unfetched(goal: Goal, problem: str | None) -> str | None:
    if problem is None or goal.rules.on_failure == "rollback":
        return problem
    return f"{problem}; the next attempt is in {FETCH_AGAIN_S:.0f} s"


def _failed(goal: Goal, rollout: Rollout, index: FleetIndex, problem: str) -> Rollout:
    back = goal.rules.on_failure == "rollback"
    return attrs.evolve(
        rollout,
        phase=RolloutPhase.ROLLING_BACK if back else RolloutPhase.PAUSED,
        reason=problem,
        advanced_s=index.now_s,
    )


def prefetch(goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]) -> None:
    """Ask every host of the deployment for the files of the target."""
    if rollout.phase is not RolloutPhase.PREFETCHING:
        return
    for p in placed:
        state, host = p.state, p.state.host
        if state.step is None and not host.fetching and needs_fetch(goal, p):
            index.take(state, Prefetch(host.id, goal.deployment, goal.target))
