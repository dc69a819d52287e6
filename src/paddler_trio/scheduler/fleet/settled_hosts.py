"""Find the hosts that a plan can do without: those of a fleet at rest that serve what they are to
serve.

A fleet is at rest when each of its deployments is for all hosts that may have it and no rollout is
under way. What is due on one host then depends on no other: the plan without the settled hosts is
the same plan (a property test compares them). Only load times are measured on any host for all, so
those of the hosts that are left out are given to the plan as those of one that takes part in
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from paddler_trio.scheduler.fleet.fleet_index import may_have
from paddler_trio.scheduler.fleet.fleet_values import Goal, Host, Rollout, RolloutPhase
from paddler_trio.scheduler.fleet.instance_state import is_available, is_placed


def is_at_rest(goals: Iterable[Goal], rollouts: Mapping[str, Rollout]) -> bool:
    """Return whether the fleet is at rest, as the module's docstring says."""
    return all(
        goal.replicas.is_all
        and not goal.is_empty
        and (rollout := rollouts.get(goal.deployment)) is not None
        and rollout.phase is RolloutPhase.COMPLETE
        and rollout.target == rollout.good == goal.target
        for goal in goals
    )


def is_settled(host: Host, goals: Mapping[str, Goal]) -> bool:
    """Return whether the host serves what it is to serve, and nothing else; ``goals``, by name, are
    those of a fleet at rest."""
    for name, instance in host.instances.items():
        goal = goals.get(name)
        if goal is None or not may_have(goal, host):
            if is_placed(instance):
                return False
        elif instance.assigned != goal.target or not is_available(instance, {goal.target}):
            return False
    return all(name in host.instances or not may_have(goal, host) for name, goal in goals.items())


@attrs.define(eq=False)
class SettledLoads:
    """Load times of settled hosts, and the shortest by digest. All of them are looked at only after
    one that had a shortest one is settled no more."""

    _by_host: dict[str, Mapping[str, float]] = attrs.field(factory=dict, init=False)
    _shortest: dict[str, float] = attrs.field(factory=dict, init=False)
    _is_known: bool = attrs.field(default=True, init=False)

    def settled(self, host: Host) -> None:
        if host.load_s:
            self._by_host[host.id] = host.load_s
            self._count(host.load_s)

    def unsettled(self, host: str) -> None:
        """Note that it may not have been settled."""
        load_s = self._by_host.pop(host, None)
        if load_s is not None:
            had_one = any(self._shortest[digest] == each for digest, each in load_s.items())
            self._is_known = self._is_known and not had_one

    def shortest(self) -> Mapping[str, float]:
        """Return the shortest load times as they are now."""
        if not self._is_known:
            self._shortest, self._is_known = {}, True
            for load_s in self._by_host.values():
                self._count(load_s)
        return dict(self._shortest)

    def _count(self, load_s: Mapping[str, float]) -> None:
        shortest = self._shortest
        for digest, each in load_s.items():
            shortest[digest] = min(shortest.get(digest, each), each)


def without_settled(
    unsettled: Sequence[Host], settled_load_s: Mapping[str, float]
) -> tuple[Host, ...]:
    """Return the hosts to plan with.

    Args:
      settled_load_s: by digest, the shortest load of those that are left out.
    """
    if not settled_load_s:
        return tuple(unsettled)
    return *unsettled, Host(id="", is_drained=True, load_s=settled_load_s)
