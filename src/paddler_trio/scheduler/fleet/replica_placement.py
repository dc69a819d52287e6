"""Choose which hosts get a deployment, and which lose it, with as few changes as possible.

Deployments that wait choose first: those that are overdue, then by priority, then by how long their
oldest request has waited. A replica more than ``least`` never evicts anything: that would take
memory from others for speed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.demand import counts, has_been_idle, wanted
from paddler_trio.scheduler.fleet.eviction import evict, is_overdue, room_on, unserved_s
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed, Spare
from paddler_trio.scheduler.fleet.fleet_values import (
    Assign,
    Goal,
    Rollout,
    RolloutPhase,
    Unload,
)
from paddler_trio.scheduler.fleet.host_choice import (
    EvictThere,
    HostChoice,
    LoadThere,
    WaitFor,
)
from paddler_trio.scheduler.fleet.instance_state import is_available
from paddler_trio.scheduler.fleet.memory_account import need_of
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK, GOING_ON

MOST_SEARCHES: Final = 2
"""Deployments that search all hosts in vain in one plan, which is what costs most; then as many as
that have their turn."""


@attrs.frozen(kw_only=True)
class Deployment:
    """One goal with its rollout, while a plan is made."""

    goal: Goal
    rollout: Rollout
    placed: Sequence[Placed]
    admissible: frozenset[str]

    @property
    def name(self) -> str:
        return self.goal.deployment

    @property
    def replicas(self) -> Sequence[Placed]:
        """The deployment's instances, without those that failed, unless that is the rollout's
        business."""
        if self.is_rolling:
            return self.placed
        return [p for p in self.placed if counts(p)]

    @property
    def is_rolling(self) -> bool:
        rollout = self.rollout
        if rollout.phase is RolloutPhase.ABORTED:
            return any(p.instance.assigned != rollout.good for p in self.placed)
        return rollout.phase in GOING_ON or rollout.phase is RolloutPhase.ROLLING_BACK


def digest_for_new(rollout: Rollout) -> str:
    """Return the digest that a host is told to load which has nothing of the deployment."""
    if rollout.good is None:
        return rollout.target
    if rollout.phase in GOING_BACK:
        return rollout.good
    if rollout.phase is RolloutPhase.COMPLETE or rollout.phase is RolloutPhase.ROLLING:
        return rollout.target
    return rollout.good


def place(deployments: Sequence[Deployment], index: FleetIndex) -> None:
    """Load what is missing."""
    missing = []
    for d in deployments:
        if d.goal.is_empty:
            continue
        if d.goal.replicas.is_all:
            order = (True, -d.goal.priority, 0.0, d.name)
            missing.append((order, d, 0, False))
            continue
        there = d.replicas
        number = wanted(d.goal, index, there) - len(there)
        if number > 0:
            overdue = not there and is_overdue(d.goal, index)
            order = (not overdue, -d.goal.priority, -unserved_s(d.goal, index), d.name)
            missing.append((order, d, number, overdue))
    missing.sort(key=lambda m: m[0])
    turn = _turn(len(missing), index.now_s)
    failed = 0
    for position, (_, d, number, overdue) in enumerate(missing):
        if d.goal.replicas.is_all:
            _place_everywhere(d, index)
            continue
        is_narrow = failed >= MOST_SEARCHES and position not in turn
        failed += not _place_some(d, number, index, overdue=overdue, is_narrow=is_narrow)


def _turn(number: int, now_s: float) -> Container[int]:
    """Return who may search all hosts though many have searched in vain: it goes round every
    second."""
    first = int(now_s) * MOST_SEARCHES
    return {(first + n) % number for n in range(MOST_SEARCHES)} if number else ()


def _place_everywhere(d: Deployment, index: FleetIndex) -> None:
    goal, digest = d.goal, digest_for_new(d.rollout)
    for state in index.eligible(goal):
        if not state.is_free or state.has(d.name):
            continue
        memory = state.memory(index)
        need = need_of(goal, d.rollout, digest, state.host.id)
        # Alone on a host, the agent judges, and says in words what would fit.
        if memory.is_alone(d.name) or memory.fits(d.name, need):
            index.take(state, Assign(state.host.id, d.name, digest))
            continue
        victims = room_on(state, goal, index, need=need, overdue=False)
        if victims:
            evict(state, victims[0].instance, index)
        index.problems[d.name] = f"no memory on {state.name}"


def _place_some(
    d: Deployment, number: int, index: FleetIndex, *, overdue: bool, is_narrow: bool
) -> bool:
    """Load up to ``number`` more; False if a host was looked for in vain."""
    goal, digest = d.goal, digest_for_new(d.rollout)
    must = max(goal.replicas.least, 1) - len(d.placed)
    choice = HostChoice(goal, digest, index, overdue=overdue, is_narrow=is_narrow)
    for n in range(number):
        match choice.next(may_evict=n < must):
            case LoadThere(state):
                index.take(state, Assign(state.host.id, d.name, digest))
            case EvictThere(state, victims):
                state.is_claimed = True
                evict(state, victims[0].instance, index)
            case WaitFor(state):
                state.is_claimed = True
            case None:
                if is_narrow:
                    index.wake(index.now_s + 1.0)
                    return True
                if overdue:
                    _yield_to(d, choice, index)
                index.problems[d.name] = _why_nowhere(goal, index)
                if choice.is_hopeless:
                    index.hopeless.add(d.name)
                return False
    return True


def _why_nowhere(goal: Goal, index: FleetIndex) -> str:
    eligible = index.eligible(goal)
    if not eligible:
        return "no host matches " + " ".join(goal.where) if goal.where else "no host is connected"
    if all(s.has(goal.deployment) for s in eligible):
        return f"only {len(eligible)} hosts may have it"
    return "no host has the memory for it"


def _yield_to(d: Deployment, choice: HostChoice, index: FleetIndex) -> None:
    """Make another deployment yield: it gets no more requests until one of its instances is
    idle."""
    best: tuple[tuple[int, float, str], tuple[Spare, ...]] | None = None
    for state in choice.candidates_for_eviction():
        need = need_of(d.goal, d.rollout, digest_for_new(d.rollout), state.host.id)
        victims = room_on(state, d.goal, index, need=need, overdue=True, busy_too=True)
        if not victims:
            continue
        cost = (
            max(v.goal.priority for v in victims),
            sum(index.load_s(v.instance.serving or "", state.host) for v in victims),
            state.host.id,
        )
        if best is None or cost < best[0]:
            best = cost, victims
    if best is not None:
        index.yielding.update(v.goal.deployment for v in best[1])


def clear_unwanted(index: FleetIndex) -> None:
    """Unload what has no goal, or an empty one."""
    for name, placed in index.placed.items():
        goal = index.goals.get(name)
        if goal is None or goal.is_empty:
            for p in placed:
                _unload(p, index)


def clear(deployments: Sequence[Deployment], index: FleetIndex) -> None:
    """Unload what is idle, too many, or where it may not be any more."""
    for d in deployments:
        if not d.goal.is_empty and not index.view.is_settling:
            _clear_misplaced(d, index)
            if not d.goal.replicas.is_all:
                _clear_surplus(d, index)


def _clear_misplaced(d: Deployment, index: FleetIndex) -> None:
    """Unload instances where they may not be, once those that may be serve."""
    everywhere = index.placed.get(d.name, ())
    if len(everywhere) == len(d.placed):
        return
    goal = d.goal
    kept = set(map(id, d.placed))
    outside = [
        p
        for p in everywhere
        if id(p) not in kept
        and not p.instance.is_unloading
        and (not p.state.host.is_drained or not goal.replicas.is_all)
    ]
    if not outside:
        return
    eligible = index.eligible(goal)
    number = len(eligible)
    if not goal.replicas.is_all:
        number = min(number, max(goal.replicas.least, 1 if index.queue(d.name).waiting else 0))
    serving = sum(is_available(p.instance, d.admissible) for p in d.placed)
    if serving >= number:
        for p in outside:
            _unload(p, index)


def _clear_surplus(d: Deployment, index: FleetIndex) -> None:
    goal, replicas = d.goal, d.goal.replicas
    most = len(index.states) if replicas.most is None else max(replicas.most, replicas.least)
    there = len(d.placed) - index.unloads.get(d.name, 0)
    if there <= replicas.least or d.is_rolling:
        return
    number = len(d.replicas)
    may_go = [
        p for p in d.placed if number > most or not counts(p) or has_been_idle(goal, index, p)
    ]
    if not may_go:
        return
    serving = sum(is_available(p.instance, d.admissible) for p in d.placed)
    for p in sorted(may_go, key=lambda p: _keeping(p, d)):
        serves = is_available(p.instance, d.admissible)
        if counts(p):
            is_too_many = number > most and (not serves or serving > most)
            goes = is_too_many or (there > replicas.least and has_been_idle(goal, index, p))
        else:
            goes = serving >= max(replicas.least, 1)
        if goes and _unload(p, index):
            there -= 1
            number -= counts(p)
            serving -= serves


def _keeping(placed: Placed, d: Deployment) -> tuple[object, ...]:
    """Return the order in which instances go: what does not serve, is not busy, was not used for
    longest."""
    instance = placed.instance
    return (
        is_available(instance, d.admissible),
        instance.busy,
        float("inf") if instance.idle_s is None else instance.idle_s,
        placed.state.order,
    )


def _unload(placed: Placed, index: FleetIndex) -> bool:
    state, instance = placed.state, placed.instance
    if instance.is_unloading or state.step is not None:
        return False
    if state.moving is not None and state.moving is not instance:
        return False
    name = instance.deployment
    index.unloads[name] = index.unloads.get(name, 0) + 1
    index.take(state, Unload(state.host.id, name))
    return True
