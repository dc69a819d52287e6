"""The view of one plan, arranged for look-ups, and the steps decided so far.

Everything is read once. What only some plans need (memory, labels, files on disk, load times) is
made when it is first asked for: a plan in which nothing is to do costs one pass over the instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import attrs

from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    FleetView,
    Goal,
    Host,
    Instance,
    Queue,
    Step,
)
from paddler_trio.scheduler.fleet.instance_state import is_moving, is_placed
from paddler_trio.scheduler.fleet.memory_account import HostMemory, memory_of

LOAD_S: Final = 30.0
"""The time of a load where none was measured."""
NO_QUEUE: Final = Queue()


@attrs.define
class Spare:
    """An instance of a deployment on demand, and when it may go.

    Args:
      order: what goes first: priority, then ``worth``.
      idle_from_s: it may go for any request from then on; None if it is busy, or about to be.
      is_idle: it has nothing to do now.
      turn_ends_s: from then on it may be made to yield.
    """

    order: tuple[int, float, str]
    goal: Goal
    instance: Instance
    idle_from_s: float | None
    is_idle: bool
    has_queue: bool
    turn_ends_s: float


@attrs.define(eq=False)
class HostState:
    """One host while a plan is made.

    ``moving`` is the instance on which a step is under way; ``is_claimed``: what is being unloaded
    there makes room for a deployment that waits.
    """

    host: Host
    order: int
    busy: int = 0
    moving: Instance | None = None
    step: Step | None = None
    is_claimed: bool = False
    spares: list[Spare] | None = None
    _memory: HostMemory | None = None

    @property
    def is_free(self) -> bool:
        """Return whether the host may get a step."""
        return self.step is None and self.moving is None and not self.host.is_drained

    def has(self, deployment: str) -> bool:
        instance = self.host.instances.get(deployment)
        return instance is not None and is_placed(instance)

    def memory(self, index: FleetIndex) -> HostMemory:
        if self._memory is None:
            self._memory = memory_of(self.host, index.goals, index.view.rollouts)
        return self._memory

    @property
    def name(self) -> str:
        return self.host.name or self.host.id


@attrs.define(eq=False)  # not frozen: thousands are made in each plan, thrice as fast
class Placed:
    """A deployment on a host; stuck if its step takes longer than the progress deadline."""

    state: HostState
    instance: Instance
    is_stuck: bool = False


class FleetIndex:
    """The working state of one plan."""

    def __init__(self, view: FleetView) -> None:
        self.view = view
        self.now_s = view.now_s
        self.goals = {goal.deployment: goal for goal in view.goals}
        self.states: list[HostState] = []
        self.placed: dict[str, list[Placed]] = {}
        self.unloads: dict[str, int] = {}
        self.yielding: set[str] = set()
        self.hopeless: set[str] = set()
        self.problems: dict[str, str] = {}
        self.look_again_s: float | None = None
        self.steps: list[Step] = []
        self._usable: dict[str, Sequence[Placed]] = {}
        self._eligible: dict[tuple[bool, tuple[str, ...]], list[HostState]] = {}
        for order, host in enumerate(view.hosts):
            self._read(HostState(host, order))

    def _read(self, state: HostState) -> None:
        self.states.append(state)
        placed = self.placed
        for name, instance in state.host.instances.items():
            if not is_placed(instance):
                continue
            state.busy += instance.busy
            is_stuck = False
            if is_moving(instance):
                is_stuck = self._is_stuck(instance)
                if not is_stuck:
                    state.moving = instance
            try:
                placed[name].append(Placed(state, instance, is_stuck))
            except KeyError:
                placed[name] = [Placed(state, instance, is_stuck)]

    def _is_stuck(self, instance: Instance) -> bool:
        """Return whether a step hangs: it must not keep the host from all other deployments for
        ever."""
        goal = self.goals.get(instance.deployment)
        if goal is None or instance.is_unloading or instance.phase == "downloading":
            return False
        ends_s = instance.assigned_s + goal.rules.progress_deadline_s
        self.wake(ends_s)
        return self.now_s >= ends_s

    def queue(self, deployment: str) -> Queue:
        return self.view.queues.get(deployment, NO_QUEUE)

    def take(self, state: HostState, step: Step) -> None:
        """Decide a step; the host gets no other one."""
        assert state.step is None, f"two steps on {state.name}"
        state.step = step
        self.steps.append(step)

    def wake(self, at_s: float) -> None:
        """Note that the plan may change at ``at_s``; what is past is not waited for."""
        if at_s > self.now_s and (self.look_again_s is None or at_s < self.look_again_s):
            self.look_again_s = at_s

    def eligible(self, goal: Goal) -> Sequence[HostState]:
        """Return hosts that may have the deployment, and are not drained."""
        key = (goal.deployment == DEFAULT, goal.where)
        found = self._eligible.get(key)
        if found is None:
            states: Iterable[HostState] = self.states
            for term in goal.where:
                matching = self._by_term.get(term, ())
                states = matching if states is self.states else [s for s in states if s in matching]
            found = [s for s in states if not s.host.is_drained and (key[0] or s.host.is_ours)]
            self._eligible[key] = found
        return found

    @cached_property
    def _by_term(self) -> dict[str, dict[HostState, None]]:
        terms = {term for goal in self.goals.values() for term in goal.where}
        return {
            term: {state: None for state in self.states if _matches(term, state.host)}
            for term in terms
        }

    def usable(self, goal: Goal) -> Sequence[Placed]:
        """Return the deployment's instances that count: on eligible hosts that are not drained, and
        not being ended."""
        found = self._usable.get(goal.deployment)
        if found is None:
            found = self._usable[goal.deployment] = self._find_usable(goal)
        return found

    def _find_usable(self, goal: Goal) -> Sequence[Placed]:
        placed = self.placed.get(goal.deployment, ())
        if goal.where:
            return [
                p
                for p in placed
                if not p.state.host.is_drained
                and not p.instance.is_unloading
                and may_have(goal, p.state.host)
            ]
        return [p for p in placed if not p.state.host.is_drained and not p.instance.is_unloading]

    @cached_property
    def with_file(self) -> dict[str, list[HostState]]:
        """The hosts with the files of each digest."""
        found: dict[str, list[HostState]] = {}
        for state in self.states:
            for digest in state.host.on_disk:
                found.setdefault(digest, []).append(state)
        return found

    @cached_property
    def _load_s(self) -> dict[str, float]:
        shortest: dict[str, float] = {}
        for state in self.states:
            for digest, length_s in state.host.load_s.items():
                shortest[digest] = min(shortest.get(digest, length_s), length_s)
        return {**self.view.load_s, **shortest}

    def load_s(self, digest: str, host: Host | None = None) -> float:
        """Return the seconds that a load takes: as measured there, or anywhere, or by default."""
        measured = None if host is None else host.load_s.get(digest)
        return self._load_s.get(digest, LOAD_S) if measured is None else measured

    @cached_property
    def by_load(self) -> list[HostState]:
        """Least busy first; those with fewer models before others."""
        return sorted(self.states, key=lambda s: (s.busy, len(s.host.instances), s.name, s.host.id))


def may_have(goal: Goal, host: Host) -> bool:
    """Return whether the deployment may be there, by kind of agent and by labels."""
    if not host.is_ours and goal.deployment != DEFAULT:
        return False
    return all(_matches(term, host) for term in goal.where)


def _matches(term: str, host: Host) -> bool:
    key, _, value = term.partition("=")
    return host.labels.get(key) == value or (key == "agent" and host.name == value)
