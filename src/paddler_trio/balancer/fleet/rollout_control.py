"""Show operators rollouts, and take what they may order: pause, resume, abort, undo."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_keeper import RevisionConflictError
from paddler_trio.balancer.fleet.fleet_routes import RolloutRefusedError
from paddler_trio.balancer.fleet.placed_hosts import PlacedHost
from paddler_trio.balancer.fleet.rollout_facts import utc_of
from paddler_trio.balancer.fleet.stored_fleet import PAUSED_BY
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_values import Host, Instance, Rollout
from paddler_trio.scheduler.fleet.rollout_begin import ASKED_AGAIN
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK, aborted, paused, resumed
from paddler_trio.scheduler.truth.deployment_truth import RolloutFacts
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.trio.cache_commands import CacheProgress
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState

GONE: Final = "gone"
"""The phase of an agent that is lost: it keeps its place for a moment, and then is not shown."""
_FINDING = frozenset({"resolving", "downloading"})
"""Phases of an agent that has no files to load yet, or looks whether they are still right."""


def rollouts_document(fleet: FleetController) -> Mapping[str, object]:
    """Return all rollouts of deployments that are desired, those that are over among them."""
    return {"rollouts": [rollout_document(fleet, each) for each in fleet.rollouts.values()]}


def rollout_document(fleet: FleetController, rollout: Rollout) -> Mapping[str, object]:
    """Return one rollout, with every host that has an instance of its deployment."""
    hosts = fleet.observation.seen
    name, now_s = rollout.deployment, trio.current_time()
    expected = fleet.last.expected.get(name)
    before = rollout.origin or rollout.good
    target = fleet.keeper.revision_of(name, rollout.target)
    origin = None
    if before == rollout.target:
        origin = target
    elif before is not None:  # a rollback stores it once more, after the target
        origin = fleet.keeper.revision_of(name, before, earlier_than=target)
    return {
        "deployment": name,
        "phase": rollout.phase.value,
        "reason": rollout.reason or fleet.last.problems.get(name),
        "from": origin,
        "to": target,
        "started": utc_of(rollout.started_s, now_s),
        "waits_for": None if expected is None else expected.reason,
        "ready_in_s": None if expected is None else max(0.0, round(expected.ready_s - now_s, 1)),
        "agents": [
            _agent(fleet, rollout, placed, hosts[placed.id])
            for placed in fleet.hosts.known.values()
            if placed.id in hosts and name in hosts[placed.id].instances
        ],
    }


def _agent(
    fleet: FleetController, rollout: Rollout, placed: PlacedHost, host: Host
) -> Mapping[str, object]:
    instance = host.instances[rollout.deployment]
    agent = (
        placed.instances[rollout.deployment].agent
        if rollout.deployment in placed.instances
        else None
    )
    report = None if agent is None else agent.report
    progress = None if report is None else report.progress
    fetched = fleet.knowledge.of(host.id).fetching.get(rollout.target)
    if fetched is None and agent is not None and instance.assigned == rollout.target:
        fetched = download_under_way(agent)
    if fetched is not None and fetched.total_bytes:
        progress = fetched.current_bytes / fetched.total_bytes
    return {
        "agent": host.name,
        "host": host.id,
        "deployment": rollout.deployment,
        "phase": phase_of(rollout, host, instance) if placed.connections else GONE,
        "detail": instance.problem or host.fetch_failed.get(rollout.target),
        "progress": None if progress is None or math.isnan(progress) else progress,
        "download": None if fetched is None or not fetched.filename else _download(fetched),
    }


def _download(fetched: CacheProgress) -> Mapping[str, object]:
    return {name: value for name, value in attrs.asdict(fetched).items() if name != "id"}


def download_under_way(agent: AgentConnection) -> CacheProgress | None:
    """Return how far the agent is with what it fetches to serve it; None if it fetches nothing."""
    status, report = agent.status, agent.report
    if report is None or report.phase != "downloading" or report.download is None:
        return None
    download = report.download
    return CacheProgress(
        id="",
        phase=download.phase,
        source=download.source,
        filename=status.download_filename or "",
        file_index=download.file_index,
        file_count=download.file_count,
        current_bytes=status.download_current,
        total_bytes=None if status.download_indeterminate else status.download_total,
        bytes_per_s=download.bytes_per_s,
        remaining_s=download.remaining_s,
    )


def phase_of(rollout: Rollout, host: Host, instance: Instance) -> str:
    """Return what an instance is doing for a rollout."""
    target = rollout.target
    if rollout.phase in GOING_BACK and instance.serving == rollout.good:
        return "rolled_back" if instance.assigned == rollout.good else "waiting"
    is_turning_back = rollout.phase in GOING_BACK and instance.assigned == rollout.good
    if instance.serving == target and not is_turning_back:
        return "serving"
    if instance.assigned == target or rollout.phase in GOING_BACK:
        if instance.phase in _FINDING:
            return "loading" if target in host.on_disk else "prefetching"
        return "loading" if instance.phase == "connecting" else instance.phase
    if target in host.fetching:
        return "prefetching"
    if target in host.fetch_failed:
        return "failed"
    return "prefetched" if target in host.on_disk else "waiting"


@attrs.frozen(eq=False)
class FleetRollouts:
    """A :class:`~paddler_trio.balancer.fleet.fleet_routes.RolloutControl` of the controller."""

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
