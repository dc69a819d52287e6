"""How far a deployment is carried out, as its agents report it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.trio.fleet_state import AGENT_KEY, DEFAULT, DeploymentSpec


class FleetProgress(Protocol):
    """What is known of the way to the desired fleet."""

    def progress(self, specs: Sequence[DeploymentSpec]) -> Iterator[Mapping[str, object]]:
        """Of each deployment: ``phase``, ``replicas`` (``wanted`` and ``serving`` agents) and
        ``rollout``, as plain JSON; ``rollout`` is null where there is none."""
        ...


class Rollouts(Protocol):
    """Finds the rollout of a deployment, as plain JSON; None if there is none."""

    def __call__(self, deployment: str, /) -> Mapping[str, object] | None: ...


def no_rollouts(deployment: str) -> None:
    """There are none."""


@attrs.frozen(eq=False)
class AgentsProgress:
    """A :class:`FleetProgress`, from the agents that are connected.

    The phase is ``empty`` (no model is desired), ``serving`` (by as many agents as are wanted),
    ``updating`` (by fewer of them), ``failed`` (by none, and one reports why), ``loading`` (by
    none yet), ``unloaded`` (none is wanted now) or ``waiting`` (there is no agent for it).
    """

    dispatcher: Dispatcher
    rollouts: Rollouts = no_rollouts

    def progress(self, specs: Sequence[DeploymentSpec]) -> Iterator[Mapping[str, object]]:
        hosts = [agent for agent in self.dispatcher.agents_with_models() if agent.host == agent.id]
        counted: dict[tuple[bool, tuple[str, ...]], int] = {}
        for spec in specs:
            pool = self.dispatcher.pools.find(spec.name)
            agents = [] if pool is None else list(pool.agents.values())
            serving = sum(_serves(agent, spec) for agent in agents)
            wanted = spec.replicas.least
            if spec.replicas.is_all:
                key = (spec.name == DEFAULT, spec.where)
                if key not in counted:
                    counted[key] = sum(_may_serve(agent, spec) for agent in hosts)
                wanted = counted[key]
            yield {
                "phase": _phase(spec, agents, wanted=wanted, serving=serving),
                "replicas": {"wanted": wanted, "serving": serving},
                "rollout": self.rollouts(spec.name),
            }


def _may_serve(agent: AgentConnection, spec: DeploymentSpec) -> bool:
    """Whether a deployment may run on the host of this first connection."""
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
