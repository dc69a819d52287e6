"""Views of a balancer's fleet: the revision in force, its deployments, and rollouts.

Fields that a newer balancer adds are ignored; ``raw`` is the whole answer, for ``--json``.
"""

from __future__ import annotations

from typing import Final

import attrs
from cattrs.gen import make_dict_structure_fn, override

from paddler_trio.cli.management_client import CONVERTER, Json

LIVE: Final = frozenset({"prefetching", "canary", "rolling", "paused", "rolling_back"})
"""Phases of a rollout that is not over."""
PLACES: Final = frozenset({"replicas", "where"})
"""Fields that say on which agents a deployment is."""


@attrs.frozen(kw_only=True)
class InstanceView:
    """One agent in a rollout: ``phase`` is ``waiting``, ``prefetching``, ``prefetched``,
    ``draining``, ``loading``, ``probing``, ``serving``, ``failed``, ``rolled_back`` or ``gone``.

    ``progress``: 0..1 of the download or of loading, None where there is none. ``download``: the
    file that is on its way, with the fields of ``CacheProgress``.
    """

    agent: str
    phase: str
    deployment: str = ""
    host: str | None = None
    detail: str | None = None
    progress: float | None = None
    download: Json | None = None


@attrs.frozen(kw_only=True)
class RolloutView:
    """One deployment on its way from the revision ``before`` to the revision ``to``.

    ``phase``: one of ``LIVE``, or ``complete``, ``rolled_back``, ``aborted``. ``waits_for`` and
    ``ready_in_s``: what its requests wait for, None if for nothing.
    """

    deployment: str
    phase: str
    reason: str | None = None
    before: int | None = None
    to: int | None = None
    started: object = None
    waits_for: str | None = None
    ready_in_s: float | None = None
    agents: list[InstanceView] = attrs.field(factory=list)

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE


@attrs.frozen(kw_only=True)
class RolloutsView:
    """All rollouts that the balancer shows, of deployments in the order of the fleet."""

    rollouts: list[RolloutView]
    raw: Json = attrs.field(factory=dict, eq=False)

    def of(self, deployment: str) -> RolloutView | None:
        """The rollout of this deployment; None if none is shown."""
        return next((each for each in self.rollouts if each.deployment == deployment), None)


@attrs.frozen(kw_only=True)
class RevisionView:
    """A fleet state as it was accepted; ``time`` is RFC 3339, ``state`` plain JSON.

    ``failed``: deployments whose rollout had failed when the next revision came.
    """

    revision: int
    author: str = ""
    time: str = ""
    note: str = ""
    failed: list[str] = attrs.field(factory=list)
    state: Json = attrs.field(factory=dict)

    def spec(self, deployment: str) -> Json | None:
        """The deployment of this name; None if there is none."""
        return next((each for each in self.specs if each.get("name") == deployment), None)

    @property
    def specs(self) -> list[Json]:
        """All deployments as plain JSON."""
        found = self.state.get("deployments")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@attrs.frozen(kw_only=True)
class ReplicasView:
    """Counts of the agents that serve a deployment, and of those that shall."""

    wanted: int | None = None
    serving: int = 0


@attrs.frozen(kw_only=True)
class DeploymentView:
    """One deployment as it is now; ``target`` is the digest of what it shall serve."""

    name: str
    target: str | None = None
    phase: str | None = None
    replicas: ReplicasView = attrs.field(factory=ReplicasView)
    rollout: RolloutView | None = None


@attrs.frozen(kw_only=True)
class FleetStateView:
    """The revision in force and how far it is carried out."""

    revision: RevisionView
    deployments: list[DeploymentView]
    raw: Json = attrs.field(factory=dict, eq=False)

    def deployment(self, name: str) -> DeploymentView | None:
        """The deployment of this name; None if there is none."""
        return next((each for each in self.deployments if each.name == name), None)


@attrs.frozen(kw_only=True)
class DeploymentChange:
    """The change of one deployment by a new fleet state.

    ``change``: ``none`` (what is served stays the same), ``in_place``, ``context``, ``weights``,
    ``added`` or ``removed``. ``fields``: the names of what differs.
    """

    deployment: str
    change: str
    fields: list[str] = attrs.field(factory=list)

    @property
    def takes_time(self) -> bool:
        """There is something to wait for: agents change, or other agents."""
        return self.change != "none" or not PLACES.isdisjoint(self.fields)


# ``from`` is a keyword of Python
CONVERTER.register_structure_hook(
    RolloutView, make_dict_structure_fn(RolloutView, CONVERTER, before=override(rename="from"))
)
