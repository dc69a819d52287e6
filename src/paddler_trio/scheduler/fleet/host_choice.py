"""Choose the host on which a replica is loaded: file on disk, then memory free, then least busy.

Taken literally: a host with the file is better than one without, even if another model must be
evicted there, since a download takes longer than to load that one again. Memory is free where the
model fits beside everything else. A host that is already making room is waited for before another
model is evicted elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.eviction import room_on, spares_of
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, HostState, Spare
from paddler_trio.scheduler.fleet.fleet_values import Goal
from paddler_trio.scheduler.fleet.memory_account import fits_within

MOST_LOOKED_AT: Final = 16
"""Hosts on which evictions are compared, of those with the file and of those without."""


@attrs.frozen
class LoadThere:
    """It fits."""

    state: HostState


@attrs.frozen
class EvictThere:
    """It will fit when these have gone; the first of them goes now."""

    state: HostState
    victims: tuple[Spare, ...]


@attrs.frozen
class WaitFor:
    """That host will have room when the step that is under way there has ended."""

    state: HostState


@attrs.frozen
class _Tier:
    """Hosts that are equally good by their files.

    Args:
      states: those that may have the deployment and were looked at; all once ``free`` has ended.
      free: those on which it fits now, the best first.
    """

    states: list[HostState]
    free: Iterator[HostState]


class HostChoice:
    """The hosts for the next replicas of one deployment, the best first; each is used once.

    Args:
      is_narrow: look only at hosts that have the file, which are few.
    """

    def __init__(
        self, goal: Goal, digest: str, index: FleetIndex, *, overdue: bool, is_narrow: bool
    ) -> None:
        self._goal, self._index, self._overdue = goal, index, overdue
        self._digest = digest
        self._needs = goal.needs if digest == goal.target else goal.good_needs
        self._usual_s = index.load_s(digest)
        eligible = index.eligible(goal)
        self._allowed = None if len(eligible) == len(index.states) else set(eligible)
        self._tiers: list[_Tier] = []
        if goal.fetches:
            self._tiers.append(self._tier(sorted(index.with_file.get(digest, ()), key=self._cost)))
        if not is_narrow:
            self._tiers.append(self._tier(index.by_load))
        self.is_narrow = is_narrow

    def next(self, *, may_evict: bool) -> LoadThere | EvictThere | WaitFor | None:
        """Return where the next replica is loaded; None if nowhere."""
        for tier in self._tiers:
            state = next(tier.free, None)
            if state is not None:
                return LoadThere(state)
            if not may_evict:
                continue
            state = self._making_room(tier.states)
            if state is not None:
                return WaitFor(state)
            choice = self._cheapest_eviction(tier.states)
            if choice is not None:
                return choice
        return None

    @property
    def is_hopeless(self) -> bool:
        """Return whether no host could hold the deployment even if it were empty."""
        return not any(self._could_hold(s) for tier in self._tiers for s in tier.states)

    def candidates_for_eviction(self) -> Iterator[HostState]:
        """Yield hosts that could hold the deployment if others went."""
        for tier in self._tiers:
            yield from self._with_spares(tier.states)

    def _cost(self, state: HostState) -> tuple[float, ...]:
        measured_s = state.host.load_s.get(self._digest)
        return state.busy, self._usual_s if measured_s is None else measured_s, state.order

    def _tier(self, states: Sequence[HostState]) -> _Tier:
        looked_at: list[HostState] = []
        return _Tier(looked_at, self._free(states, looked_at))

    def _could_hold(self, state: HostState) -> bool:
        """Return whether it would fit if nothing else were there."""
        need = self._needs.get(state.host.id)
        return need is None or fits_within(need, state.host.memory)

    def _free(self, states: Sequence[HostState], looked_at: list[HostState]) -> Iterator[HostState]:
        """Yield the hosts on which it fits beside everything else; all others are ``looked_at``
        too."""
        index, needs, allowed = self._index, self._needs, self._allowed
        name = self._goal.deployment
        for state in states:
            host = state.host
            if (allowed is not None and state not in allowed) or host.is_drained:
                continue
            if name in host.instances and state.has(name):
                continue
            looked_at.append(state)
            if (
                state.step is None
                and state.moving is None
                and not state.is_claimed
                and state.memory(index).fits_beside(needs.get(host.id))
            ):
                yield state

    def _making_room(self, states: Sequence[HostState]) -> HostState | None:
        """Return a host on which a step is under way, and that will have room afterwards."""
        for state in states:
            moving = state.moving
            if moving is None or state.is_claimed or state.host.is_drained:
                continue
            if not moving.is_unloading and self._overdue:
                continue  # it loads, and may do so for long
            room = self._room_on(state)
            if room == () or (room is not None and moving.is_unloading):
                return state
        return None

    def _cheapest_eviction(self, states: Sequence[HostState]) -> EvictThere | None:
        index = self._index
        best: tuple[tuple[float, ...], EvictThere] | None = None
        for state in self._with_spares(states):
            victims = self._room_on(state)
            if not victims:
                continue
            cost = (
                max(v.goal.priority for v in victims),
                sum(v.order[1] for v in victims),
                index.load_s(self._digest, state.host),
                state.busy,
                state.order,
            )
            if best is None or cost < best[0]:
                best = cost, EvictThere(state, victims)
        return None if best is None else best[1]

    def _room_on(self, state: HostState) -> tuple[Spare, ...] | None:
        need = self._needs.get(state.host.id)
        return room_on(state, self._goal, self._index, need=need, overdue=self._overdue)

    def _with_spares(self, states: Sequence[HostState]) -> Iterator[HostState]:
        """Yield the hosts with something that may go at some time, no more than ``MOST_LOOKED_AT``.

        A plan must not take long when forty deployments wait for five hundred hosts.
        """
        found = 0
        for state in states:
            if not state.is_free or state.is_claimed or not self._could_hold(state):
                continue
            if spares_of(state, self._index):
                found += 1
                yield state
                if found == MOST_LOOKED_AT:
                    return
