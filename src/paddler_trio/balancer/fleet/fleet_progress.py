"""Tell how far a deployment is carried out, as its agents report it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import trio

from paddler_trio.balancer.agents.agent_snapshot import phase_of
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.truth.agent_truth import MOVING, UNLOADED
from paddler_trio.scheduler.truth.deployment_truth import (
    AgentCounts,
    DeploymentFacts,
    RolloutFacts,
    truth_of_deployment,
)
from paddler_trio.wire.trio.fleet_state import AGENT_KEY, DEFAULT, DeploymentSpec


@attrs.frozen(eq=False)
class AgentsProgress:
    """Tell what is known of the way to the desired fleet, from the agents that are connected.

    The phase is ``empty`` (no model is desired), ``serving`` (by as many agents as are wanted),
    ``updating`` (by fewer of them), ``failed`` (by none, and one reports why), ``loading`` (by
    none yet), ``unloaded`` (none is wanted now) or ``waiting`` (there is no agent for it).
    """

    dispatcher: Dispatcher
    rollouts: Callable[[str], Mapping[str, object] | None] = lambda deployment: None
    """Finds the rollout of a deployment, as plain JSON; None if there is none."""
    rolling: Callable[[str], RolloutFacts | None] = lambda deployment: None
    """Finds what is said of it."""
    offline: Callable[[str], int] = lambda deployment: 0
    """The number of agents of a deployment that were lost and have not come back."""

    def facts(self, specs: Sequence[DeploymentSpec]) -> Iterator[DeploymentFacts]:
        """Yield the facts from which follows what is said of each deployment."""
        hosts = [agent for agent in self.dispatcher.agents.with_models() if agent.host == agent.id]
        counted: dict[tuple[bool, tuple[str, ...]], int] = {}
        now_s = trio.current_time()
        for spec in specs:
            pool = self.dispatcher.pools.find(spec.name)
            wanted = spec.replicas.least
            if spec.replicas.is_all:
                key = (spec.name == DEFAULT, spec.where)
                if key not in counted:
                    counted[key] = sum(_may_serve(agent, spec) for agent in hosts)
                wanted = counted[key]
            held = None if pool is None else pool.held
            left_s = math.inf if held is None else held.until_s - now_s
            limits = self.dispatcher.limits
            waiting = 0 if pool is None else pool.ledger.num_waiting
            rollout = self.rolling(spec.name)
            agents = [] if pool is None else list(pool.agents.values())
            if rollout is not None:
                done = sum(agent.revision == rollout.aim for agent in agents)
                rollout = attrs.evolve(rollout, done=done, total=len(agents))
            yield DeploymentFacts(
                is_empty=spec.is_empty,
                wanted=wanted,
                is_all=spec.replicas.is_all,
                agents=counts_of(agents, spec),
                offline=self.offline(spec.name),
                waiting=waiting,
                is_full=waiting >= limits.max_buffered,
                expected="" if held is None else held.reason,
                left_s=math.ceil(left_s) if math.isfinite(left_s) else None,
                timeout_s=limits.buffered_timeout_s,
                rollout=rollout,
            )

    def progress(self, specs: Sequence[DeploymentSpec]) -> Iterator[Mapping[str, object]]:
        """Yield plain JSON of each deployment: ``phase``, ``replicas`` (``wanted`` and ``serving``
        agents), ``state`` (what is true of it, in words), ``agents`` in numbers, what a request
        ``meets`` and ``rollout``, which is null where there is none."""
        for spec, facts in zip(specs, self.facts(specs), strict=True):
            pool = self.dispatcher.pools.find(spec.name)
            agents = [] if pool is None else list(pool.agents.values())
            serving = sum(_serves(agent, spec) for agent in agents)
            yield {
                "phase": _phase(spec, agents, wanted=facts.wanted, serving=serving),
                "state": truth_of_deployment(facts).view(),
                "meets": facts.meets,
                "agents": {
                    "connected": facts.agents.connected,
                    "answering": facts.agents.answering,
                    "offline": facts.offline,
                    "slots": facts.agents.slots,
                    "free": facts.agents.free,
                },
                "replicas": {"wanted": facts.wanted, "serving": serving},
                "rollout": self.rollouts(spec.name),
            }


def counts_of(agents: Iterable[AgentConnection], spec: DeploymentSpec) -> AgentCounts:
    """Agents of a deployment in numbers; there may be thousands, and this is asked often."""
    counts: Counter[str] = Counter()
    reason = ""
    for agent in agents:
        counts["connected"] += 1
        phase = phase_of(agent)
        if agent.is_accepting:
            if agent.usable_slots > 0:
                counts["answering"] += 1
                counts["slots"] += agent.usable_slots
                counts["free"] += max(0, agent.usable_slots - agent.slots_processing)
                if agent.upstream is not None or _serves(agent, spec):
                    counts["current"] += 1
        elif phase in UNLOADED:
            counts["unloaded"] += 1
        elif agent.is_drained:
            counts["drained"] += 1
        if phase == "failed":
            counts["failed"] += 1
            detail = None if agent.report is None else agent.report.detail
            reason = reason or detail or ""
        elif phase in MOVING:
            counts["moving"] += 1
        elif phase == "serving" and not agent.is_accepting and not agent.is_drained:
            counts["ejected"] += agent.health.is_ejected(agent.label, trio.current_time())
    return AgentCounts(**counts, reason=reason)


def _may_serve(agent: AgentConnection, spec: DeploymentSpec) -> bool:
    """Return whether a deployment may run on the host of this first connection."""
    is_able = agent.kind.runs_instances or spec.name == DEFAULT
    return is_able and all(_meets(agent, condition) for condition in spec.where)


def _meets(agent: AgentConnection, condition: str) -> bool:
    key, _, value = condition.partition("=")
    if key == AGENT_KEY:
        return value in (agent.name, agent.id)
    return agent.labels.get(key) == value


def _serves(agent: AgentConnection, spec: DeploymentSpec) -> bool:
    if agent.kind.reports_state:
        return agent.report is not None and agent.report.served_state == spec.digest
    return agent.serves_desired


def _phase(
    spec: DeploymentSpec, agents: Sequence[AgentConnection], *, wanted: int, serving: int
) -> str:
    if spec.is_empty:
        return "empty"
    if serving:
        return "serving" if serving >= wanted else "updating"
    if any(agent.report is not None and agent.report.phase == "failed" for agent in agents):
        return "failed"
    if agents:
        return "loading"
    return "waiting" if wanted or spec.replicas.is_all else "unloaded"
