"""What a plan for the fleet is made of: what is desired, what there is, and the next steps.

A *deployment* is named; a *host* is an agent's process, named by the id of its first connection; an
*instance* is one deployment on one host. A *digest* names what is served. Times are seconds of one
clock, sizes are bytes by device, ``host`` being the memory of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

import attrs

HostId: TypeAlias = str
Digest: TypeAlias = str
Bytes: TypeAlias = Mapping[str, int]


class Change(Enum):
    """What it takes an agent to get from one state to another: nothing; a new sampling or template
    while it serves; another context of the same weights; other weights."""

    NONE = "none"
    IN_PLACE = "in_place"
    CONTEXT = "context"
    WEIGHTS = "weights"


class RolloutPhase(Enum):
    """See ``docs/fleet.md``; the last three are over."""

    PREFETCHING = "prefetching"
    CANARY = "canary"
    ROLLING = "rolling"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    COMPLETE = "complete"
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


@attrs.frozen(kw_only=True)
class RolloutRules:
    """How a change goes from agent to agent; see
    :class:`~paddler_trio.wire.trio.fleet_state.RolloutSpec`."""

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


@attrs.frozen
class Replicas:
    """How many instances: from ``least`` to ``most``, or one on every host that may have one."""

    least: int
    most: int | None
    is_all: bool = False


@attrs.frozen(kw_only=True)
class Goal:
    """One deployment as it is desired.

    Args:
      where: conditions ``label=value`` or ``agent=NAME``; all must hold on a host.
      idle_ttl_s: how long an instance beyond the least number may be idle.
      fetches: the model comes from where it can be fetched ahead.
      needs: predicted memory of an instance by host; absent where it is unknown.
      change: from the last good state to the target.
    """

    deployment: str
    target: Digest
    is_empty: bool = False
    replicas: Replicas = Replicas(0, None, is_all=True)
    where: tuple[str, ...] = ()
    slots: int | None = None
    priority: int = 0
    idle_ttl_s: float | None = None
    rules: RolloutRules = RolloutRules()
    fetches: bool = False
    needs: Mapping[HostId, Bytes] = attrs.field(factory=dict)
    change: Change = Change.WEIGHTS


@attrs.frozen(kw_only=True)
class Instance:
    """A deployment on a host, as it is now.

    Args:
      assigned: what it was sent last; None if nothing was, or if that is unknown.
      serving: what it serves; may be what it was assigned before.
      phase: as in :class:`~paddler_trio.wire.trio.trio_link.Report`, or ``connecting``.
      problem: why it cannot serve what it was assigned; None while it may.
      slots: usable now.
      served_s: since when it serves that; None if it serves nothing.
      idle_s: since when it has no request; None while it has some.
      crashes: of its engine, since it was assigned.
      can_load_beside: whether it goes on serving while it loads; None if that is unknown.
    """

    deployment: str
    assigned: Digest | None = None
    serving: Digest | None = None
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


@attrs.frozen(kw_only=True)
class Host:
    """An agent's process.

    Args:
      is_ours: it can fetch ahead and run several instances; Paddler's agents cannot.
      is_drained: an operator drained it; nothing new is placed there.
      memory: what all models there may take; empty if it is unknown.
      held: what each instance takes.
      load_s: how long each state took to load.
    """

    id: HostId
    name: str = ""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    is_ours: bool = True
    is_drained: bool = False
    memory: Bytes = attrs.field(factory=dict)
    held: Mapping[str, Bytes] = attrs.field(factory=dict)
    on_disk: frozenset[Digest] = frozenset()
    fetching: frozenset[Digest] = frozenset()
    fetch_failed: Mapping[Digest, str] = attrs.field(factory=dict)
    load_s: Mapping[Digest, float] = attrs.field(factory=dict)
    instances: Mapping[str, Instance] = attrs.field(factory=dict)


@attrs.frozen
class Queue:
    """Requests of a deployment that wait, and how long the first one has waited."""

    waiting: int
    oldest_wait_s: float


@attrs.frozen(kw_only=True)
class Rollout:
    """A deployment on its way from one state to another; kept, so that a restart goes on with it.

    Args:
      good: the last state that was served everywhere; None if none ever was.
      advanced_s: when it last got further.
      reason: why it is paused, or went back.
    """

    deployment: str
    good: Digest | None
    target: Digest
    phase: RolloutPhase
    started_s: float
    advanced_s: float
    reason: str | None = None
    canaries: tuple[HostId, ...] = ()


@attrs.frozen(kw_only=True)
class FleetView:
    """Everything that a plan depends on."""

    now_s: float
    goals: tuple[Goal, ...] = ()
    hosts: tuple[Host, ...] = ()
    queues: Mapping[str, Queue] = attrs.field(factory=dict)
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict)


@attrs.frozen
class Prefetch:
    """Fetch the files of this state and serve nothing of it yet."""

    host: HostId
    deployment: str
    digest: Digest


@attrs.frozen
class Assign:
    """Serve this state; a host without an instance of the deployment gets one."""

    host: HostId
    deployment: str
    digest: Digest


@attrs.frozen
class Unload:
    """Run no instance of this deployment any more; what it answers now is finished."""

    host: HostId
    deployment: str


Step: TypeAlias = Prefetch | Assign | Unload


@attrs.frozen
class Expectation:
    """Why a deployment has no free slot, and when it is expected to have one."""

    reason: str
    ready_s: float


@attrs.frozen(kw_only=True)
class Plan:
    """What to do now.

    Args:
      steps: at most one a host.
      rollouts: as they are from now on.
      admissible: digests that instances of a deployment may serve to get requests.
      look_again_s: when to plan again though nothing changed; None for not at all.
    """

    steps: tuple[Step, ...] = ()
    rollouts: Mapping[str, Rollout] = attrs.field(factory=dict)
    admissible: Mapping[str, frozenset[Digest]] = attrs.field(factory=dict)
    expected: Mapping[str, Expectation] = attrs.field(factory=dict)
    look_again_s: float | None = None
