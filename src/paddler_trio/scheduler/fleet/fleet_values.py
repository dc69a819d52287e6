"""Values that a plan is made from, and what it says.

A **deployment** is a named desired state with replicas. A **host** is one agent process; an
**instance** is one deployment on one host, with an engine and slots of its own. A **digest** names
what is served: the extended digest of a desired state. A **rollout** is the way of one deployment
from one digest, the *good* one, to another, the *target*.

**Times.** Fields that end in ``_s`` and say *when* (``now_s``, ``assigned_s``, ``served_s``,
``idle_s``, ``started_s``, ``advanced_s``, ``last_served_s``, ``ready_s``, ``look_again_s``) are
points on the caller's one monotonic clock, in seconds. ``oldest_wait_s``, ``load_s`` and everything
in :class:`RolloutRules` are lengths of time.

Memory is in bytes, by device as llama.cpp names it (``CUDA0``; ``host`` for that of the machine).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs

DEFAULT: Final = "default"
"""The deployment that the first link of a host serves, and the only one of Paddler's agents."""

NO_BYTES: Final[Mapping[str, int]] = {}


class Change(Enum):
    """The parts that differ between the good state and the target; the later ones cost more."""

    NONE = "none"
    IN_PLACE = "in_place"
    CONTEXT = "context"
    WEIGHTS = "weights"


@attrs.frozen(kw_only=True)
class RolloutRules:
    """Rules for how a rollout goes about it.

    Args:
      max_unavailable: hosts that may be without service at once, >= 1.
      max_unavailable_percent: the same in hundredths of the hosts, rounded down, at least one host;
        takes the place of ``max_unavailable`` where it is given.
      min_capacity: slots of the deployment that go on serving; no host begins that would take them
        below it.
      canary: hosts that go first; 0 for none.
      min_ready_s: how long the canaries must serve without a crash before the others begin.
      drain_deadline_s: carried out by agents and dispatcher, not by the planner.
      progress_deadline_s: how long no host may advance before the rollout has failed.
      mixed: ``hold`` sends nothing to the old state once the first host serves the new one.
      prefetch: every host fetches the model before the first one gives up what it serves.
    """

    max_unavailable: int = 1
    max_unavailable_percent: int | None = None
    min_capacity: int = 0
    canary: int = 1
    min_ready_s: float = 10.0
    drain_deadline_s: float = 60.0
    progress_deadline_s: float = 600.0
    on_failure: Literal["rollback", "pause"] = "rollback"
    mixed: Literal["allow", "hold"] = "allow"
    prefetch: bool = True


@attrs.frozen(kw_only=True)
class Replicas:
    """The number of hosts on which a deployment is served: ``all``, n (``least == most``) or
    min..max.

    With ``least == 0`` and not ``all`` it is on demand: loaded for the first waiting request.
    """

    least: int = 0
    most: int | None = None
    is_all: bool = False


@attrs.frozen(kw_only=True)
class Goal:
    """One deployment as the operator wants it.

    Args:
      target: digest of the desired state.
      is_empty: the desired state has no model; every instance is unloaded.
      where: ``key=value`` of a label, or ``agent=NAME``; a host must match all of them.
      slots: of each instance; None for what the agent has.
      priority: the higher one gets memory first, and is not evicted for a lower one until that one
        has waited too long.
      idle_ttl_s: an idle instance beyond ``replicas.least`` is unloaded after it; None for never.
      fetches: the model comes from a source that agents fetch; False for a path on their disks.
      needs: by host id, what the target takes there (predicted); None or missing if unknown.
      good_needs: the same of the rollout's good state, so that room is kept for going back.
      change: from the rollout's good state to the target.
    """

    deployment: str
    target: str
    is_empty: bool = False
    replicas: Replicas = attrs.field(factory=lambda: Replicas(is_all=True))
    where: tuple[str, ...] = ()
    slots: int | None = None
    priority: int = 0
    idle_ttl_s: float | None = None
    rules: RolloutRules = attrs.field(factory=RolloutRules)
    fetches: bool = False
    needs: Mapping[str, Mapping[str, int] | None] = attrs.field(factory=dict, repr=False)
    good_needs: Mapping[str, Mapping[str, int] | None] = attrs.field(factory=dict, repr=False)
    change: Change = Change.WEIGHTS


@attrs.frozen(kw_only=True)
class Instance:
    """One deployment on one host, as last reported.

    Args:
      assigned: digest last sent on its link; None if none was since it connected, and after an
        ``Unload``.
      serving: digest of what its engine serves; None for nothing. While a new engine loads beside
        the old one, the old one's.
      phase: as the agent reports it: ``waiting``, ``resolving``, ``downloading``, ``draining``,
        ``loading``, ``probing``, ``serving``, ``failed``, ``leaving``.
      problem: in words, with phase ``failed``.
      slots: of the instance, whether it serves or not.
      busy: requests in its slots.
      assigned_s: when ``assigned`` was sent.
      served_s: since when it serves what it serves.
      idle_s: since when no request is in its slots; None while one is.
      crashes: of its engine since ``assigned_s``.
      can_load_beside: it loads beside what is served, or says that it would load what it is to
        serve next so; None if unknown. Memory that is taken until then is its to find out: then it
        drains.
      is_unloading: an ``Unload`` was sent and it is not gone yet (``default``: still serves).
    """

    deployment: str
    assigned: str | None = None
    serving: str | None = None
    phase: str = "waiting"
    problem: str | None = None
    slots: int = 0
    busy: int = 0
    assigned_s: float = 0.0
    served_s: float | None = None
    idle_s: float | None = None
    crashes: int = 0
    can_load_beside: bool | None = None
    is_ours: bool = True
    is_unloading: bool = False


@attrs.frozen(kw_only=True)
class Host:
    """One agent process.

    Args:
      id: of its first link.
      is_ours: False for one of Paddler's agents: only ``default``, no prefetch, no load beside.
      is_drained: by the operator: it gets no steps and does not count.
      memory: what models may take there in all; a device that is not in it has no limit, and an
        empty one is unknown.
      held: what the engine of each deployment takes now.
      on_disk: digests whose files are there, whole.
      fetching: digests whose files are on their way.
      fetch_failed: digests whose files could not be fetched, with the reason; an agent that still
        tries is ``fetching``. The caller drops an entry when it sends a ``Prefetch`` of it, and
        when a rollout to it begins or is resumed.
      load_s: measured seconds of the last load, by digest.
      back_until_s: until when its links, which broke, may be up again; None while one is up.
      instances: by deployment; from the ``Assign`` on, before the instance has a link. That of
        ``default`` is there as long as the first link is.
    """

    id: str
    name: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    is_ours: bool = True
    is_drained: bool = False
    memory: Mapping[str, int] = attrs.field(factory=dict)
    held: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict, repr=False)
    on_disk: frozenset[str] = frozenset()
    fetching: frozenset[str] = frozenset()
    fetch_failed: Mapping[str, str] = attrs.field(factory=dict)
    load_s: Mapping[str, float] = attrs.field(factory=dict, repr=False)
    back_until_s: float | None = None
    instances: Mapping[str, Instance] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class Queue:
    """Requests that wait for a deployment."""

    waiting: int = 0
    oldest_wait_s: float = 0.0


class RolloutPhase(Enum):
    """The phases of a rollout.

    ``ABORTED`` is a rolling back that the operator ordered, from the order on; else a rollout goes
    by ``ROLLING_BACK`` to ``ROLLED_BACK``.
    """

    PREFETCHING = "prefetching"
    CANARY = "canary"
    ROLLING = "rolling"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    COMPLETE = "complete"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


@attrs.frozen(kw_only=True)
class Rollout:
    """The way of one deployment from ``good`` to ``target``. The caller keeps it between plans.

    Args:
      good: what is gone back to; None if there is nothing to go back to (the first state, or
        nothing was served). Once complete it is the target itself, if that was ever served. It may
        change when a newer target comes in the middle: then it is whichever proven state serves
        more slots.
      advanced_s: when a host last advanced; the progress deadline counts from it.
      reason: why it was rolled back, paused or aborted, or what it waits for.
      canaries: ids of the hosts that went first.
      origin: what was served when it began; for display.
      is_proven: the canaries have passed, so the target may serve while it is rolled back.
      others: states of rollouts that this one superseded, which had been proven and are served
        somewhere still. They serve on, and take their turns as the good state does.
      fetched: hosts that had the target's files when this was planned.
      resumed_s: failures of before do not count.
      is_settled: since it was rolled back, the caller's goal was the good state: the same target
        again is a new rollout.
    """

    deployment: str
    good: str | None
    target: str
    phase: RolloutPhase
    started_s: float
    advanced_s: float
    reason: str | None = None
    canaries: tuple[str, ...] = ()
    origin: str | None = None
    is_proven: bool = False
    others: tuple[str, ...] = ()
    fetched: int = 0
    resumed_s: float | None = None
    is_settled: bool = False


@attrs.frozen(kw_only=True)
class FleetView:
    """Everything a plan depends on.

    Args:
      goals: each deployment at most once.
      hosts: those that are connected, each id once.
      queues: by deployment; a missing one is empty.
      rollouts: those of the last plan, with what the operator changed since (see
        ``rollout_orders``).
      last_served_s: that of the last plan; empty at the start.
      load_s: by digest, what its last load took on any host, if none of ``hosts`` has loaded it.
      is_settling: the balancer has just started, and hosts are on their way back: nothing that
        serves is taken out of service.
    """

    now_s: float
    goals: tuple[Goal, ...] = ()
    hosts: tuple[Host, ...] = ()
    queues: Mapping[str, Queue] = attrs.field(factory=dict)
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict)
    last_served_s: Mapping[str, float] = attrs.field(factory=dict)
    load_s: Mapping[str, float] = attrs.field(factory=dict)
    is_settling: bool = False


@attrs.frozen
class Prefetch:
    """Fetch the files of ``digest`` and keep serving."""

    host: str
    deployment: str
    digest: str


@attrs.frozen
class Assign:
    """Send this state, to a new instance where there is none.

    The agent drains, or loads beside, by itself.
    """

    host: str
    deployment: str
    digest: str


@attrs.frozen
class Unload:
    """End the instance once it is drained; for ``default``, send the empty state."""

    host: str
    deployment: str


Step: TypeAlias = Prefetch | Assign | Unload


@attrs.frozen
class Expectation:
    """Requests of a deployment wait for something that is under way.

    Args:
      reason: in words, for waiting streams.
      ready_s: when it is expected to serve, from measured load times.
    """

    reason: str
    ready_s: float


@attrs.frozen(kw_only=True)
class Plan:
    """The steps to take now.

    Args:
      steps: at most one a host.
      rollouts: of every deployment that has a goal; the next view's.
      admissible: by deployment, the digests whose instances may get requests: of the good one, the
        target, and proven ones before them. Empty while the deployment yields its memory to one
        that has waited too long.
      expected: deployments whose requests wait for a step.
      look_again_s: when the plan changes though nothing else does; None for never.
      problems: by deployment, why it has fewer replicas than wanted.
      last_served_s: when each deployment on demand last served; the next view's. A deployment that
        has just made room for another one does not wait since long, though its requests may.
    """

    steps: tuple[Step, ...] = ()
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict)
    admissible: Mapping[str, frozenset[str]] = attrs.field(factory=dict)
    expected: Mapping[str, Expectation] = attrs.field(factory=dict)
    look_again_s: float | None = None
    problems: Mapping[str, str] = attrs.field(factory=dict)
    last_served_s: Mapping[str, float] = attrs.field(factory=dict)
