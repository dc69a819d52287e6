"""Show operators rollouts, and take what they may order: pause, resume, abort, undo."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_keeper import RevisionConflictError
from paddler_trio.balancer.fleet.rollout_document import rollout_document, rollouts_document
from paddler_trio.balancer.fleet.rollout_routes import RolloutRefusedError
from paddler_trio.balancer.fleet.stored_fleet import PAUSED_BY
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_values import Rollout
from paddler_trio.scheduler.fleet.rollout_begin import ASKED_AGAIN
from paddler_trio.scheduler.fleet.rollout_orders import aborted, paused, resumed
from paddler_trio.scheduler.truth.deployment_truth import RolloutFacts
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState


@attrs.frozen(eq=False)
class FleetRollouts:
    """A :class:`~paddler_trio.balancer.fleet.rollout_routes.RolloutControl` of the controller."""

    fleet: FleetController

    @property
    def changes(self) -> Changes:
        """Return what tells when :meth:`view` may return something else."""
        return self.fleet.changed

    def view(self) -> Mapping[str, object]:
        """Return the document of ``GET /api/v2/rollout``."""
        return rollouts_document(self.fleet)

    def of(self, deployment: str) -> Mapping[str, object] | None:
        """Return one rollout of that document; None if there is none."""
        rollout = self.fleet.rollouts.get(deployment)
        return None if rollout is None else rollout_document(self.fleet, rollout)

    def facts(self, deployment: str) -> RolloutFacts | None:
        """Return the facts from which follows what is said of a rollout; None if there is none."""
        rollout = self.fleet.rollouts.get(deployment)
        if rollout is None:
            return None
        aim = aim_of(rollout)
        revision = self.fleet.keeper.revision_of(deployment, aim)
        return RolloutFacts(
            phase=rollout.phase.value,
            aim=aim,
            revision="the state before" if revision is None else f"revision {revision}",
            is_wanted=rollout.reason == ASKED_AGAIN,
            reason=rollout.reason or self.fleet.last.problems.get(deployment) or "",
        )

    async def pause(self, deployment: str, *, author: str) -> None:
        """Begin no further step; raises RolloutRefusedError, as the others do."""
        reason = f"{PAUSED_BY}{author}"
        self.fleet.replace_rollout(
            self._ordered(
                deployment, "paused", lambda r, now_s: paused(r, now_s=now_s, reason=reason)
            )
        )

    async def resume(self, deployment: str, *, author: str) -> None:
        """Go on after a pause, or after a failure that paused it."""
        self.fleet.replace_rollout(
            self._ordered(deployment, "resumed", lambda r, now_s: resumed(r, now_s=now_s))
        )
        self.fleet.forget_failed_fetches(deployment)

    async def abort(self, deployment: str, *, author: str) -> None:
        """Desire the state before, and go back to it; also StateDatabaseError."""
        reason = f"aborted by {author}"
        await self.fleet.abort_rollout(
            self._ordered(
                deployment, "aborted", lambda r, now_s: aborted(r, now_s=now_s, reason=reason)
            )
        )

    async def undo(self, deployment: str, *, author: str) -> None:
        """Desire what its last rollout would go back to, or once that is complete what was desired
        before; also StateDatabaseError."""
        keeper = self.fleet.keeper
        current = keeper.current.state
        spec = current.find(deployment)
        if spec is None:
            raise RolloutRefusedError(404, f"there is no deployment {deployment[:80]!r}")
        before, number = self._before(spec)
        deployments = tuple(before if each is spec else each for each in current.deployments)
        try:
            await keeper.apply(
                FleetState(deployments),
                author=author,
                note=f"undo of {deployment}: as in revision {number}",
                expected_revision=keeper.current.revision,
            )
        except RevisionConflictError as error:
            raise RolloutRefusedError(409, str(error)) from error

    def _before(self, spec: DeploymentSpec) -> tuple[DeploymentSpec, int | None]:
        """And its revision. What was tried in vain, since it was served or before, is not gone back
        to."""
        keeper, name = self.fleet.keeper, spec.name
        rollout = self.fleet.rollouts.get(name)
        if rollout is not None and rollout.good is not None:
            good = keeper.spec(name, rollout.good)
            if good is not None and good != spec:
                return good, keeper.revision_of(name, rollout.good)
        failed: int | None = None
        for revision in keeper.history[1:]:
            before = revision.state.find(name)
            if name in revision.failed:
                failed = revision.revision
            elif before == spec and failed is not None:
                raise RolloutRefusedError(
                    409,
                    f"what failed of {name!r} in revision {failed} is undone already: say which "
                    "revision to go back to (`paddler-trio fleet undo --to-revision`)",
                )
            elif before is not None and before != spec:
                return before, revision.revision
        raise RolloutRefusedError(
            409, f"no other state of {name!r} is kept: there is nothing to undo"
        )

    def _ordered(
        self, deployment: str, done: str, order: Callable[[Rollout, float], Rollout | None]
    ) -> Rollout:
        """Return the rollout after an order; RolloutRefusedError if there is none, or not at this
        time."""
        rollout = self.fleet.rollouts.get(deployment)
        if rollout is None:
            raise RolloutRefusedError(404, f"there is no rollout of {deployment[:80]!r}")
        changed = order(rollout, trio.current_time())
        if changed is None:
            raise RolloutRefusedError(
                409, f"the rollout of {deployment!r} is {rollout.phase.value}: it cannot be {done}"
            )
        return changed
