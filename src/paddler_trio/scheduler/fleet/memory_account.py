"""Account for what the models on one host take, and whether one more fits.

What runs is counted as it is measured, what loads as it was predicted; while a rollout runs, as the
larger one of both states, so that nothing else takes the room to go on or to go back. A model
whose memory is unknown may take all of it: it gets a host for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from paddler_trio.scheduler.fleet.fleet_values import (
    NO_BYTES,
    Goal,
    Host,
    Instance,
    Rollout,
    RolloutPhase,
)
from paddler_trio.scheduler.fleet.instance_state import is_moving, is_placed, loads_beside
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK, GOING_ON


@attrs.frozen
class HostMemory:
    """Bytes by device.

    Args:
      limits: what models may take; empty if unknown.
      charges: what each deployment takes, those that take nothing left out; None for unknown.
      free: what is left; None if that is unknown.
    """

    limits: Mapping[str, int]
    charges: Mapping[str, Mapping[str, int] | None]
    free: Mapping[str, int] | None

    def fits_beside(self, need: Mapping[str, int] | None) -> bool:
        """Return whether a deployment that is not there yet may take ``need``."""
        if not self.charges:
            return need is None or self.fits_alone(need)
        free = self.free
        if need is None or free is None:
            return False
        return fits_within(need, free)

    def fits_alone(self, need: Mapping[str, int]) -> bool:
        """Return whether ``need`` would fit if nothing else were there."""
        return fits_within(need, self.limits)

    def fits(
        self, deployment: str, need: Mapping[str, int] | None, *, without: Collection[str] = ()
    ) -> bool:
        """Return whether ``deployment`` may take ``need``, in the place of what it takes now.

        Args:
          without: other deployments, counted as gone.
        """
        charges = {
            name: charge
            for name, charge in self.charges.items()
            if name != deployment and name not in without
        }
        return account(self.limits, charges).fits_beside(need)

    def is_alone(self, deployment: str) -> bool:
        """Return whether nothing else takes memory there."""
        return not self.charges or self.charges.keys() == {deployment}


def fits_within(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """Return whether there is as much of each device. One that is not in ``free`` has no limit."""
    for device, size in need.items():  # noqa: SIM110  # a generator takes thrice as long
        if size > free.get(device, size):
            return False
    return True


def account(
    limits: Mapping[str, int], charges: Mapping[str, Mapping[str, int] | None]
) -> HostMemory:
    """Return the memory of a host with what is left of it."""
    free = dict(limits)
    is_known = bool(limits)
    for charge in charges.values():
        if charge is None:
            is_known = False
            break
        for device, size in charge.items():
            if device in free:
                free[device] -= size
    return HostMemory(limits, charges, free if is_known else None)


def memory_of(host: Host, goals: Mapping[str, Goal], rollouts: Mapping[str, Rollout]) -> HostMemory:
    """Return the account of ``host``, as it will be once rollouts have ended, either way."""
    charges: dict[str, Mapping[str, int] | None] = dict(host.held)
    for name, instance in host.instances.items():
        goal = goals.get(name)
        if goal is not None and name in charges and _is_steady(instance, goal, rollouts.get(name)):
            continue  # the usual case, and there are many
        if is_placed(instance):
            charges[name] = _charge(instance, host, goal, rollouts.get(name))
    for name in [name for name, charge in charges.items() if charge is not None and not charge]:
        del charges[name]
    return account(host.memory, charges)


def need_of(
    goal: Goal, rollout: Rollout | None, digest: str | None, host: str
) -> Mapping[str, int] | None:
    """Return what ``digest`` takes on ``host``, as predicted; None if unknown."""
    if digest == goal.target:
        return goal.needs.get(host)
    if rollout is not None and digest == rollout.good:
        return goal.good_needs.get(host)
    return None


def _is_steady(instance: Instance, goal: Goal, rollout: Rollout | None) -> bool:
    """Return whether it serves what it is to serve, and will go on to."""
    return instance.serving == instance.assigned == goal.target and (
        rollout is None or rollout.phase is RolloutPhase.COMPLETE
    )


def _charge(
    instance: Instance, host: Host, goal: Goal | None, rollout: Rollout | None
) -> Mapping[str, int] | None:
    """Return the most that it takes now, and once it serves what it is to serve or goes back to."""
    held = host.held.get(instance.deployment)
    if instance.is_unloading or goal is None or goal.is_empty:
        return held  # until it is gone
    serving = instance.serving
    will_be = serving if instance.assigned is None else instance.assigned
    if held is None:
        held = NO_BYTES if serving is None else need_of(goal, rollout, serving, host.id)
        if held is None:
            return None
    most = held
    for digest in _to_come(will_be, goal, rollout):
        if digest is None or digest == serving:
            continue
        need = need_of(goal, rollout, digest, host.id)
        if need is not None:
            is_beside = digest == will_be and is_moving(instance) and loads_beside(instance)
            most = _sum(held, need) if is_beside else _most(most, need)
        elif digest == will_be and serving is None:
            return None
    return most


def _to_come(will_be: str | None, goal: Goal, rollout: Rollout | None) -> tuple[str | None, ...]:
    """Return the digests that may be loaded there before the rollout has ended."""
    if rollout is not None and rollout.phase in GOING_BACK:
        return will_be, rollout.good
    if rollout is not None and rollout.phase in GOING_ON:
        return will_be, goal.target, rollout.good
    return will_be, goal.target


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    most = dict(one)
    for device, size in other.items():
        if size > most.get(device, 0):
            most[device] = size
    return most


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {d: one.get(d, 0) + other.get(d, 0) for d in {**one, **other}}
