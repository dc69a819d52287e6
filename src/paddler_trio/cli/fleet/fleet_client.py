"""Questions and orders of client commands about a balancer's fleet and its rollouts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

import attrs

from paddler_trio.cli.balancer_http import (
    BalancerRefusedError,
    BalancerUnreachableError,
    BalancerVersionError,
)
from paddler_trio.cli.fleet.fleet_views import (
    DeploymentChange,
    FleetStateView,
    RevisionView,
    RolloutsView,
)
from paddler_trio.cli.management_client import SILENCE_S, Json, ManagementClient

FLEET_PATH: Final = "/api/v2/fleet"
ROLLOUT_PATH: Final = "/api/v2/rollout"
STORED_S: Final = 30.0
"""A revision is answered when it is on the balancer's disk."""
SHOWN_S: Final = 1.0
CONFLICT: Final = 409


@attrs.frozen(eq=False)
class FleetClient:
    """A client that uses the conversation of ``management``; errors are those of its methods."""

    management: ManagementClient

    def shows_rollout(self, deployment: str) -> bool:
        """Return whether the balancer rolls out what was just stored, which it shows at once.
        Paddler's does not, nor does one of ours from before there were rollouts."""
        give_up_s = time.monotonic() + SHOWN_S
        try:
            for view in self.watch_rollouts(silence_s=SHOWN_S):
                if view.of(deployment) is not None:
                    return True
                if time.monotonic() >= give_up_s:
                    break
        except BalancerVersionError:
            raise
        except BalancerUnreachableError:
            return False  # silent, or gone: whoever watches the agents next gets the error
        except BalancerRefusedError as error:
            if error.status != 404:
                raise
        return False

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
