"""One agent as JSON, as operators are shown it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.scheduler.truth.agent_truth import AgentFacts, paddlers_phase, truth_of_agent
from paddler_trio.wire.codec import unstructure


def agent_facts(agent: AgentConnection, busy: int) -> AgentFacts:
    """Return the facts from which follows what is said of an agent with so many requests."""
    report, status = agent.report, agent.status
    progress = None if report is None or report.progress is None else report.progress
    return AgentFacts(
        label=agent.label,
        phase=phase_of(agent),
        progress=None if progress is None or math.isnan(progress) else progress,
        detail="" if report is None or report.detail is None else report.detail,
        gets_work=agent.is_accepting,
        serves_target=agent.serves_desired,
        is_drained=agent.is_drained,
        is_ejected=agent.health.is_ejected(agent.label, trio.current_time()),
        slots=agent.usable_slots,
        busy=busy,
        issues=len(status.issues),
    )


def capacity(agents: Iterable[AgentConnection]) -> int:
    """Return the slots that requests may get now: not those of agents that are drained, ejected, or
    have nothing to serve."""
    return sum(agent.usable_slots for agent in agents if agent.is_accepting)


def phase_of(agent: AgentConnection) -> str:
    """Return what it is doing: as it reports, or as the status of a Paddler agent means it."""
    if agent.report is not None:
        return agent.report.phase
    status = agent.status
    return paddlers_phase(
        str(status.state_application_status.value),
        slots=status.slots_total,
        downloads=status.download_filename is not None,
        has_model=status.model_path is not None,
    )


def snapshot(agent: AgentConnection, slots_processing: int) -> Mapping[str, object]:
    """Return Paddler's AgentControllerSnapshot as plain JSON: the status with our slot count."""
    fields = unstructure(agent.status)
    assert isinstance(fields, dict)
    del fields["version"]
    return {
        **fields,
        "id": agent.id,
        "name": agent.name,
        "slots_processing": slots_processing,
    }


def snapshot_v2(agent: AgentConnection, slots_processing: int) -> Mapping[str, object]:
    """Return a snapshot with what Paddler's schema has no room for."""
    report = agent.report
    return {
        **snapshot(agent, slots_processing),
        "deployment": agent.deployment,
        "host": agent.host,
        "labels": dict(agent.labels),
        "protocol": agent.kind.protocol,
        "is_accepting": agent.is_accepting,
        "is_drained": agent.is_drained,
        "usable_slots": agent.usable_slots,
        "state": truth_of_agent(agent_facts(agent, slots_processing)).view(),
        "phase": None if report is None else report.phase,
        "wanted_state": None if report is None else report.wanted_state,
        "served_state": None if report is None else report.served_state,
        "progress": None
        if report is None or report.progress is None or math.isnan(report.progress)
        else report.progress,
        "detail": None if report is None else report.detail,
        "load_s": None if report is None else report.load_s,
        "engine": None if report is None else report.engine,
        "download": None
        if report is None or report.download is None
        else unstructure(report.download),
        "upstream": None if agent.upstream is None else attrs.asdict(agent.upstream),
        "memory": None if report is None or report.memory is None else unstructure(report.memory),
    }
