"""Rollouts as operators see them: the JSON of ``GET /api/v2/rollout``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.placed_hosts import PlacedHost
from paddler_trio.balancer.fleet.rollout_facts import utc_of
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.fleet.fleet_values import Host, Instance, Rollout
from paddler_trio.scheduler.fleet.rollout_orders import GOING_BACK
from paddler_trio.wire.trio.cache_commands import CacheProgress

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
