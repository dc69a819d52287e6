"""Choose the hosts that are told to go over to the next digest now.

A host that serves nothing admissible costs nothing and goes at once. One that serves takes its
turn: ``max_unavailable`` at a time, broken hosts counted, and never under ``min_capacity`` slots. A
host that can load beside goes on serving, so it costs no slots and is not kept waiting by broken
hosts; but no more than ``max_unavailable`` of them load at the same time, since loading costs
bandwidth of memory. What changes in place costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.eviction import evict, room_on
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, HostState, Placed
from paddler_trio.scheduler.fleet.fleet_values import (
    Assign,
    Change,
    Goal,
    Rollout,
    RolloutPhase,
)
from paddler_trio.scheduler.fleet.instance_state import is_available, is_moving, loads_beside
from paddler_trio.scheduler.fleet.memory_account import need_of
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK

STILL_PHASES: Final = (RolloutPhase.PREFETCHING, RolloutPhase.PAUSED)
WAITING_PHASES: Final = (*STILL_PHASES, RolloutPhase.CANARY)
SETTLED_PHASES: Final = (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK)


@attrs.define
class Turns:
    """The number of hosts that may still be taken, of one deployment."""

    limit: int
    min_capacity: int
    is_free_of_charge: bool
    unavailable: int = 0
    moving: int = 0
    slots: int = 0

    def allows(self, placed: Placed) -> bool:
        """Return whether this host, which serves, may begin."""
        if self.is_free_of_charge:
            return True
        if self.moving >= self.limit:
            return False
        return loads_beside(placed.instance) or (
            self.unavailable < self.limit
            and self.slots - placed.instance.slots >= self.min_capacity
        )

    def count(self, placed: Placed) -> None:
        """Note that a host has begun."""
        self.moving += 1
        if not loads_beside(placed.instance):
            self.unavailable += 1
            self.slots -= placed.instance.slots

    def why_not(self) -> str:
        if self.slots and self.min_capacity and not self.moving and self.unavailable < self.limit:
            return f"min_capacity {self.min_capacity} leaves no host to swap"
        return f"{self.unavailable} hosts do not serve, max_unavailable is {self.limit}"


def turns_of(
    goal: Goal, rollout: Rollout, placed: Sequence[Placed], admissible: AbstractSet[str]
) -> Turns:
    """Return what the rules leave, as the hosts are."""
    rules = goal.rules
    limit = rules.max_unavailable
    if rules.max_unavailable_percent is not None:
        limit = rules.max_unavailable_percent * len(placed) // 100
    is_back_elsewhere = rollout.phase in GOING_BACK and goal.target != rollout.target
    turns = Turns(
        limit=max(1, limit),
        min_capacity=rules.min_capacity,
        is_free_of_charge=goal.change in (Change.NONE, Change.IN_PLACE)
        and not is_back_elsewhere
        and not rollout.others,
    )
    for p in placed:
        turns.moving += is_moving(p.instance)
        if is_available(p.instance, admissible):
            turns.slots += p.instance.slots
        else:
            turns.unavailable += 1
    return turns


def go_over(
    goal: Goal,
    rollout: Rollout,
    index: FleetIndex,
    placed: Sequence[Placed],
    admissible: AbstractSet[str],
) -> Rollout:
    """Decide the swaps of one deployment; the rollout with its canaries and what it waits for."""
    if rollout.phase in SETTLED_PHASES or rollout.good is None:
        _settle(goal, rollout, index, placed)
        return rollout
    candidates = _keep(goal, rollout, index, placed, admissible)
    if rollout.phase in STILL_PHASES:
        _return(goal, index, candidates)
        return rollout
    if rollout.phase is RolloutPhase.CANARY:
        return _canaries(goal, rollout, index, placed, candidates, admissible)
    return _others(goal, rollout, index, placed, candidates, admissible)


def _settle(goal: Goal, rollout: Rollout, index: FleetIndex, placed: Sequence[Placed]) -> None:
    """Tell whatever is not told to serve the aim to do so at once: no rollout runs."""
    aim = aim_of(rollout)
    for p in placed:
        if p.instance.assigned != aim:
            _assign(goal, p, aim, index)


def _keep(
    goal: Goal,
    rollout: Rollout,
    index: FleetIndex,
    placed: Sequence[Placed],
    admissible: AbstractSet[str],
) -> list[Placed]:
    """Give hosts that returned, or are on the way to something else, what they are to serve now.

    Returns:
      Those that serve and are not told to go over yet.
    """
    aim = aim_of(rollout)
    is_back, good, target = rollout.phase in GOING_BACK, rollout.good, rollout.target
    assert good is not None
    is_waiting = rollout.phase in WAITING_PHASES
    candidates: list[Placed] = []
    for p in placed:
        instance = p.instance
        if instance.assigned == aim:
            if _deserves_another_try(instance.phase, instance.assigned_s, rollout):
                _assign(goal, p, aim, index)
            continue
        if instance.serving == aim and instance.assigned is None:
            _assign(goal, p, aim, index)
        elif is_available(instance, admissible) and not is_moving(instance):
            candidates.append(p)
        elif is_moving(instance) and instance.assigned == good:
            pass  # it comes back with what it was told
        elif is_moving(instance) and instance.assigned == target and not is_back:
            pass
        elif not is_waiting:
            _assign(goal, p, aim, index)
        elif instance.assigned not in (good, target):
            _assign(goal, p, target if instance.serving == target else good, index)
    return candidates


def _deserves_another_try(phase: str, assigned_s: float, rollout: Rollout) -> bool:
    resumed_s = rollout.resumed_s
    if resumed_s is None or rollout.phase is RolloutPhase.PAUSED:
        return False
    return phase == "failed" and assigned_s < resumed_s


def _canaries(
    goal: Goal,
    rollout: Rollout,
    index: FleetIndex,
    placed: Sequence[Placed],
    candidates: list[Placed],
    admissible: AbstractSet[str],
) -> Rollout:
    here = {p.state.host.id for p in placed if p.instance.assigned == rollout.target}
    canaries = [c for c in rollout.canaries if c in here]
    missing = min(goal.rules.canary, len(placed)) - len(canaries)
    reason = None
    if missing > 0:
        canaries += sorted(here.difference(canaries))[:missing]
        missing = min(goal.rules.canary, len(placed)) - len(canaries)
    if missing > 0:
        begun, reason = _begin(goal, rollout, index, placed, candidates, admissible, most=missing)
        canaries += begun
    _return(goal, index, candidates)
    return _with(rollout, canaries=tuple(canaries), reason=reason)


def _others(
    goal: Goal,
    rollout: Rollout,
    index: FleetIndex,
    placed: Sequence[Placed],
    candidates: list[Placed],
    admissible: AbstractSet[str],
) -> Rollout:
    _, reason = _begin(goal, rollout, index, placed, candidates, admissible, most=len(candidates))
    _return(goal, index, candidates)
    if rollout.phase is not RolloutPhase.ROLLING:
        return rollout  # the reason says why it goes back
    return _with(rollout, canaries=rollout.canaries, reason=reason)


def _with(rollout: Rollout, *, canaries: tuple[str, ...], reason: str | None) -> Rollout:
    if rollout.canaries == canaries and rollout.reason == reason:
        return rollout
    return attrs.evolve(rollout, canaries=canaries, reason=reason)


def _begin(
    goal: Goal,
    rollout: Rollout,
    index: FleetIndex,
    placed: Sequence[Placed],
    candidates: list[Placed],
    admissible: AbstractSet[str],
    *,
    most: int,
) -> tuple[list[str], str | None]:
    """Take up to ``most`` of those that serve, the cheapest first."""
    if not candidates or index.view.is_settling:
        return [], None
    aim = aim_of(rollout)
    turns = turns_of(goal, rollout, placed, admissible)
    if turns.moving >= turns.limit and not turns.is_free_of_charge:
        return [], None
    begun: list[str] = []
    reason = None
    for p in sorted(candidates, key=lambda p: _cost(goal, p, aim, index)):
        if len(begun) >= most:
            break
        if not _can_begin(p.state, p):
            continue
        if not turns.allows(p):
            reason = None if turns.moving else turns.why_not()
            continue
        if not _makes_room(goal, p, aim, index):
            continue
        turns.count(p)
        index.take(p.state, Assign(p.state.host.id, goal.deployment, aim))
        begun.append(p.state.host.id)
    return begun, None if begun else reason


def _cost(goal: Goal, placed: Placed, digest: str, index: FleetIndex) -> tuple[object, ...]:
    """Return what a swap costs there: a download, then slots, then requests that must end, then
    time."""
    host, instance = placed.state.host, placed.instance
    return (
        instance.serving != digest,
        goal.fetches and digest not in host.on_disk,
        not loads_beside(instance),
        instance.busy,
        index.load_s(digest, host),
        placed.state.order,
    )


def _return(goal: Goal, index: FleetIndex, candidates: Sequence[Placed]) -> None:
    """Give a host that came back and serves what it serves until its turn."""
    for p in candidates:
        if p.instance.assigned is None and p.instance.serving is not None:
            _assign(goal, p, p.instance.serving, index)


def _can_begin(state: HostState, placed: Placed) -> bool:
    if state.step is not None or state.host.is_drained:
        return False
    return state.moving is None or state.moving is placed.instance


def _assign(goal: Goal, placed: Placed, digest: str, index: FleetIndex) -> None:
    """Tell the host, unless another instance moves there; a step of the same one is replaced."""
    if _can_begin(placed.state, placed) and _makes_room(goal, placed, digest, index):
        index.take(placed.state, Assign(placed.state.host.id, goal.deployment, digest))


def _makes_room(goal: Goal, placed: Placed, digest: str, index: FleetIndex) -> bool:
    """Return whether it fits beside the other models of the host; if not, one that may go is
    unloaded."""
    state, host = placed.state, placed.state.host
    if placed.instance.serving == digest or len(host.instances) == 1:
        return True
    need = need_of(goal, index.view.rollouts.get(goal.deployment), digest, host.id)
    memory, name = state.memory(index), goal.deployment
    if need is None or memory.is_alone(name) or memory.fits(name, need):
        return True
    victims = room_on(state, goal, index, overdue=True, need=need)
    if victims and state.moving is None:
        evict(state, victims[0].instance, index)
    index.problems[goal.deployment] = f"no memory on {state.name} beside the others"
    return False
