"""Choose the instances that make room for a deployment that has none.

Only deployments on demand are evicted, or replicas beyond ``least``, and only instances that serve
and have nothing to do: never one that is busy, loads, or has requests in its queue. An instance is
left alone for moments after its last request, since the next one of the same conversation is about
to come: a tenth of what it takes to load it again, 5 s at most.

Among them, lower priorities go first; then the one that is worth least to keep: the time it takes
to load it again, per second that it was not used. With equal load times that is the least recently
used one.

**A bound on waiting.** Requests of a deployment that runs keep it loaded, so requests are grouped
by model: A B A A C A B C is answered as A A A A B B C C. Whoever has waited ``MAX_WAIT_S``, or four
loads if that is longer, is *overdue*: then neither priority nor moments of grace protect another
deployment, and if all of them are busy, one must yield: it gets no more requests, finishes those
that it has, and is evicted when it is idle. A deployment that was loaded serves for ``TURN_S``, or
two loads, before it yields, so that no more than a third of the time goes into loading; and once it
has yielded its wait begins anew, however old its requests are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, HostState, Placed, Spare
from paddler_trio.scheduler.fleet.fleet_values import (
    NO_BYTES,
    Goal,
    Instance,
    RolloutPhase,
    Unload,
)
from paddler_trio.scheduler.fleet.instance_state import is_moving, is_placed

MAX_WAIT_S: Final = 30.0
WAIT_LOADS: Final = 4.0
TURN_S: Final = 10.0
TURN_LOADS: Final = 2.0
GRACE_LOADS: Final = 0.1
MAX_GRACE_S: Final = 5.0


def is_overdue(goal: Goal, index: FleetIndex) -> bool:
    """Return whether it has waited so long that another deployment must make room."""
    queue = index.queue(goal.deployment)
    if not queue.waiting:
        return False
    left_s = wait_left_s(goal, index)
    index.wake(index.now_s + left_s)
    return left_s <= 0


def wait_left_s(goal: Goal, index: FleetIndex) -> float:
    """Return the seconds until its oldest request is overdue; negative once it is."""
    longest_s = max(MAX_WAIT_S, WAIT_LOADS * index.load_s(goal.target))
    return longest_s - unserved_s(goal, index)


def unserved_s(goal: Goal, index: FleetIndex) -> float:
    """Return how long its oldest request has waited while the deployment did not serve."""
    wait_s = index.queue(goal.deployment).oldest_wait_s
    last_s = index.view.last_served_s.get(goal.deployment)
    return wait_s if last_s is None else min(wait_s, index.now_s - last_s)


def _may_go(spare: Spare, goal: Goal, index: FleetIndex, *, overdue: bool, busy_too: bool) -> bool:
    """Return whether ``spare`` may go for ``goal``; with ``busy_too``, whether it may be made to
    yield."""
    if not _is_one_too_many(spare.goal, index):
        return False
    if overdue and (spare.has_queue or busy_too):
        if busy_too or spare.is_idle:
            index.wake(spare.turn_ends_s)
            return index.now_s >= spare.turn_ends_s
        return False
    if overdue:
        return spare.is_idle
    if spare.idle_from_s is None or spare.goal.priority > goal.priority:
        return False
    index.wake(spare.idle_from_s)
    return index.now_s >= spare.idle_from_s


def spares_of(state: HostState, index: FleetIndex) -> Sequence[Spare]:
    """Return the instances there that may go at some time, those that go first before others."""
    if state.spares is None:
        found = []
        for name, instance in state.host.instances.items():
            goal = index.goals.get(name)
            if (
                goal is not None
                and not goal.replicas.is_all
                and is_placed(instance)
                and not is_moving(instance)
                and not _is_canary(state, goal, index)
            ):
                found.append(_spare(state, goal, instance, index))
        found.sort(key=lambda spare: spare.order)
        state.spares = found
    return state.spares


def _spare(state: HostState, goal: Goal, instance: Instance, index: FleetIndex) -> Spare:
    reload_s = index.load_s(instance.serving or goal.target, state.host)
    has_queue = index.queue(goal.deployment).waiting > 0
    is_idle = not instance.busy and instance.phase in ("serving", "failed")
    idle_from_s = None
    if is_idle and not has_queue:
        if instance.serving is None:
            idle_from_s = index.now_s
        elif instance.idle_s is not None:
            idle_from_s = instance.idle_s + min(MAX_GRACE_S, GRACE_LOADS * reload_s)
    return Spare(
        order=(goal.priority, worth(instance, state, index), goal.deployment),
        goal=goal,
        instance=instance,
        idle_from_s=idle_from_s,
        is_idle=is_idle,
        has_queue=has_queue,
        turn_ends_s=(instance.served_s or 0.0) + max(TURN_S, TURN_LOADS * reload_s),
    )


def _is_canary(state: HostState, goal: Goal, index: FleetIndex) -> bool:
    rollout = index.view.rollouts.get(goal.deployment)
    return (
        rollout is not None
        and rollout.phase is RolloutPhase.CANARY
        and state.host.id in rollout.canaries
    )


def _is_one_too_many(goal: Goal, index: FleetIndex) -> bool:
    count = len(index.usable(goal)) - index.unloads.get(goal.deployment, 0)
    return count > goal.replicas.least


def worth(instance: Instance, state: HostState, index: FleetIndex) -> float:
    """Return the seconds of loading that its eviction costs, per second that it was not used."""
    if instance.serving is None:
        return 0.0
    idle_s = 0.0 if instance.idle_s is None else index.now_s - instance.idle_s
    return index.load_s(instance.serving, state.host) / max(idle_s, 1.0)


def room_on(
    state: HostState,
    goal: Goal,
    index: FleetIndex,
    *,
    need: Mapping[str, int] | None,
    overdue: bool,
    busy_too: bool = False,
) -> tuple[Spare, ...] | None:
    """Return the instances that must go from there for ``goal`` to fit; None if that is not enough.

    To be asked only where it does not fit as things are, or where a step is under way.

    Args:
      need: what it takes there; None for unknown.
      busy_too: count those that would first have to finish what they do.
    """
    chosen = [
        spare
        for spare in spares_of(state, index)
        if spare.goal is not goal
        and _may_go(spare, goal, index, overdue=overdue, busy_too=busy_too)
    ]
    if not chosen and state.moving is None:
        return None
    fits = _fits_without(state, goal.deployment, need, index)
    if not fits(chosen):
        return None
    for spare in reversed(chosen[:]):  # those worth most are kept where that is possible
        fewer = [other for other in chosen if other is not spare]
        if fits(fewer):
            chosen = fewer
    return tuple(chosen)


def _fits_without(
    state: HostState, name: str, need: Mapping[str, int] | None, index: FleetIndex
) -> Callable[[Sequence[Spare]], bool]:
    """Return whether it would fit there without some instances, and without those that are
    leaving."""
    memory = state.memory(index)
    leaving = [i.deployment for i in state.host.instances.values() if i.is_unloading]
    free, charges = memory.free, memory.charges
    if need is None or free is None or leaving or name in charges:
        return lambda spares: memory.fits(
            name, need, without=[*leaving, *(spare.goal.deployment for spare in spares)]
        )
    missing = [(d, size - free[d]) for d, size in need.items() if size > free.get(d, size)]

    def fits(spares: Sequence[Spare]) -> bool:
        for device, size in missing:
            for spare in spares:
                size -= (charges.get(spare.goal.deployment) or NO_BYTES).get(device, 0)
            if size > 0:
                return False
        return True

    return fits


def evict(state: HostState, victim: Instance, index: FleetIndex) -> None:
    """Decide that ``victim`` goes."""
    name = victim.deployment
    index.unloads[name] = index.unloads.get(name, 0) + 1
    index.take(state, Unload(state.host.id, name))


def never_fits(goal: Goal, placed: Placed, index: FleetIndex) -> str | None:
    """Return why the target cannot take the place of what it serves there, whoever else is evicted;
    None if it can."""
    state = placed.state
    need = goal.needs.get(state.host.id)
    memory = state.memory(index)
    if need is None or memory.is_alone(goal.deployment) or memory.fits_beside(need):
        return None
    stay, go = _split(state, goal, index)
    if not stay or memory.fits(goal.deployment, need, without=go):
        return None
    if any(memory.charges.get(name, NO_BYTES) is None for name in stay):
        return None  # what one of them takes is not known yet
    return f"the model does not fit beside {', '.join(sorted(stay))}"


def _split(state: HostState, goal: Goal, index: FleetIndex) -> tuple[list[str], list[str]]:
    """Return the other deployments on the host: those that stay whatever comes, and those that may
    go."""
    stay: list[str] = []
    go: list[str] = []
    for name, instance in state.host.instances.items():
        if name == goal.deployment or not is_placed(instance):
            continue
        other = index.goals.get(name)
        can_go = (
            instance.is_unloading
            or other is None
            or (not other.replicas.is_all and other.replicas.least == 0)
        )
        (go if can_go else stay).append(name)
    return stay, go
