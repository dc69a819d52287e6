"""Gather what is wrong now from everywhere; ``scheduler/truth`` says what that means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from paddler_trio.balancer.agents.agent_snapshot import agent_facts
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.keys.audit_log import AuditLog
from paddler_trio.balancer.status.known_agents import KnownAgents
from paddler_trio.balancer.status.refused_agents import RefusedAgents
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.truth.agent_truth import AgentFacts
from paddler_trio.scheduler.truth.problems import (
    BalancerFacts,
    FleetFacts,
    GoneFacts,
    Problem,
    problems_of,
)
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.wire.trio.fleet_state import DeploymentSpec


@attrs.define(eq=False)
class ProblemList:
    """All problems of a balancer and its fleet.

    Args:
      specs: the deployments that are desired now.
      certificate_left_s, history_problem, suspicious: as in ``BalancerFacts``.
    """

    dispatcher: Dispatcher
    specs: Callable[[], Sequence[DeploymentSpec]]
    progress: AgentsProgress
    known: KnownAgents
    lag: LoopLag
    audit: AuditLog
    refused: RefusedAgents = attrs.field(factory=RefusedAgents)
    certificate_left_s: Callable[[], float | None] = lambda: None
    history_problem: Callable[[], str] = str
    suspicious: Callable[[], Sequence[str]] = tuple

    def now(self) -> list[Problem]:
        """Those that there are, the worst first."""
        return problems_of(self.facts())

    def facts(self) -> FleetFacts:
        """Return the facts from which the list follows."""
        specs, dispatcher = self.specs(), self.dispatcher
        limits, counts, file = dispatcher.limits, dispatcher.statistics(), self.audit.file
        self.known.follow()
        return FleetFacts(
            deployments={
                spec.name: facts
                for spec, facts in zip(specs, self.progress.facts(specs), strict=True)
            },
            agents=list(self._agents()),
            gone=[
                GoneFacts(
                    name=each.name,
                    said_goodbye=each.said_goodbye,
                    last_words=each.last_words,
                    reason=each.reason,
                )
                for each in self.known.gone.values()
            ],
            refused=self.refused.facts(),
            balancer=BalancerFacts(
                is_draining=dispatcher.is_draining,
                waiting=counts.requests_buffered,
                most_waiting=limits.max_buffered,
                lag_s=self.lag.worst_s,
                certificate_left_s=self.certificate_left_s(),
                audit_problem="" if file is None else file.problem or "",
                history_problem=self.history_problem(),
                suspicious=self.suspicious(),
            ),
        )

    def _agents(self) -> Iterator[AgentFacts]:
        """Those that do not simply serve: of thousands nearly all do."""
        for agent in self.dispatcher.agents.values():
            if not agent.is_accepting or agent.status.issues:
                yield agent_facts(agent, agent.slots_processing)
