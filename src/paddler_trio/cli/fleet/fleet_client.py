"""Questions and orders of client commands about a balancer's fleet and its rollouts.

Views of a balancer's fleet: the revision in force, its deployments, and rollouts.

Fields that a newer balancer adds are ignored; ``raw`` is the whole answer, for ``--json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

import attrs
from cattrs.gen import make_dict_structure_fn, override

from paddler_trio.cli.balancer_http import (
    BalancerVersionError,
)
from paddler_trio.cli.management_client import CONVERTER, SILENCE_S, Json, ManagementClient

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


FLEET_PATH: Final = "/api/v2/fleet"
ROLLOUT_PATH: Final = "/api/v2/rollout"
STORED_S: Final = 30.0
"""A revision is answered when it is on the balancer's disk."""
CONFLICT: Final = 409


@attrs.frozen(eq=False)
class FleetClient:
    """A client that uses the conversation of ``management``; errors are those of its methods."""

    management: ManagementClient

    def state(self) -> FleetStateView:
        """The revision in force and how far it is carried out."""
        raw = self.management.ask("GET", FLEET_PATH)
        return attrs.evolve(self.management.structured(raw, FleetStateView), raw=raw)

    def changes(self, state: Mapping[str, object]) -> list[DeploymentChange]:
        """Return what storing ``state`` would change; nothing is stored."""
        raw = self.management.ask(
            "PUT",
            FLEET_PATH,
            body={"state": state, "note": "", "expected_revision": None},
            params={"dry_run": "true"},
            answer_s=STORED_S,
        )
        found = raw.get("changes")
        return [
            self.management.structured(each, DeploymentChange)
            for each in (found if isinstance(found, list) else [])
        ]

    def apply(
        self, state: Mapping[str, object], *, note: str, expected_revision: int
    ) -> RevisionView:
        """Store ``state`` as the next revision, unless another one than ``expected_revision`` is in
        force now: BalancerRefusedError with the status ``CONFLICT``."""
        body = {"state": state, "note": note, "expected_revision": expected_revision}
        return self._revision(self.management.ask("PUT", FLEET_PATH, body=body, answer_s=STORED_S))

    def history(self) -> tuple[list[RevisionView], Json]:
        """The revisions that are kept, the newest first; also as they came."""
        raw = self.management.ask("GET", f"{FLEET_PATH}/history")
        found = next((value for value in raw.values() if isinstance(value, list)), [])
        revisions = [self.management.structured(each, RevisionView) for each in found]
        return sorted(revisions, key=lambda each: -each.revision), raw

    def undo(self, *, to: int | None, expected_revision: int) -> RevisionView:
        """Make an earlier revision the next one; None for the one before the one in force.
        Refused as of :meth:`apply`."""
        body = {"to": to, "note": "", "expected_revision": expected_revision}
        return self._revision(
            self.management.ask("POST", f"{FLEET_PATH}/undo", body=body, answer_s=STORED_S)
        )

    def rollouts(self) -> RolloutsView:
        """The rollouts as they are now."""
        return self._rollouts(self.management.ask("GET", ROLLOUT_PATH))

    def watch_rollouts(self, *, silence_s: float = SILENCE_S) -> Iterator[RolloutsView]:
        """The rollouts now, after every change, and again, the same object, every few seconds
        without one; for ever."""
        raw, view = None, None
        for each in self.management.events(f"{ROLLOUT_PATH}/stream", silence_s=silence_s):
            if view is None or each is not raw:
                raw, view = each, self._rollouts(each)
            yield view

    def command(self, deployment: str, command: str) -> Json:
        """``pause``, ``resume``, ``abort`` or ``undo`` the rollout of a deployment."""
        path = f"{ROLLOUT_PATH}/{quote(deployment, safe='')}/{command}"
        return self.management.ask("POST", path, answer_s=STORED_S)

    def _rollouts(self, raw: Json) -> RolloutsView:
        return attrs.evolve(self.management.structured(raw, RolloutsView), raw=raw)

    def _revision(self, raw: Json) -> RevisionView:
        inner = raw.get("revision")
        found = inner if isinstance(inner, dict) else raw
        if not isinstance(found.get("revision"), int):
            raise BalancerVersionError(
                f"the balancer at {self.management.address} did not name the revision that it "
                "stored: see `paddler-trio fleet show`"
            )
        return self.management.structured(found, RevisionView)
