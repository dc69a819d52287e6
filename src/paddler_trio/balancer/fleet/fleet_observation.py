"""Observe what the planner looks at: goals, hosts, instances and queues, as they are now.

Decide what hosts are asked, and when: would a model fit, and would they go on serving while they
load.

Their answers become part of what is known of them (``host_knowledge.py``), and so of the next plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import attrs
import trio

from paddler_trio.balancer.agents.agent_snapshot import phase_of
from paddler_trio.balancer.fleet.fleet_diff import change_between
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.host_knowledge import (
    NONE_KNOWN,
    Bytes,
    Digest,
    HostId,
    HostKnowledge,
)
from paddler_trio.balancer.fleet.placed_hosts import PlacedHost, PlacedHosts
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_values import (
    Change,
    FleetView,
    Goal,
    Host,
    Queue,
    Replicas,
    Rollout,
    RolloutPhase,
    RolloutRules,
)
from paddler_trio.scheduler.fleet.settled_hosts import (
    SettledLoads,
    is_at_rest,
    is_settled,
    without_settled,
)
from paddler_trio.scheduler.truth.agent_truth import UNLOADED
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    HuggingFaceModel,
    UrlModel,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.fit_messages import FitQuestion
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetRevision

UNDER_WAY: Final = frozenset(
    {
        RolloutPhase.CANARY,
        RolloutPhase.ROLLING,
        RolloutPhase.ROLLING_BACK,
        RolloutPhase.ABORTED,
    }
)
"""Phases of a rollout in which a host may have its turn. Files are on their disks by then, so no
question waits for headers from a slow source."""
LOADED: Final = frozenset({Change.CONTEXT, Change.WEIGHTS})
"""Changes for which an engine is started."""


@attrs.frozen(eq=False)
class HostQuestions:
    """Puts the questions that are due; ``knowledge`` keeps what was asked and answered."""

    hosts: PlacedHosts
    knowledge: HostKnowledge

    def ask_fits(self, wanted: Mapping[Digest, DeploymentSpec]) -> None:
        """Ask hosts that were not asked yet which of these states fit, each one at a time."""
        if not wanted:
            return
        for host in self.hosts.in_order():
            agent = host.first
            if agent is None or not agent.kind.answers_questions:
                continue
            for digest in self.knowledge.fit_questions(host.id, wanted)[:1]:
                spec = wanted[digest]
                others = sum_of(held for name, held in host.held.items() if name != DEFAULT)
                self.knowledge.ask_fit(agent, digest, question_of(spec), others=others)

    def ask_beside(
        self,
        rollouts: Mapping[str, Rollout],
        known: Mapping[tuple[str, str], DeploymentSpec],
    ) -> float | None:
        """Ask hosts that wait for their turn whether they would go on serving in it: one that would
        takes no slots away. Call it when a plan is carried out.

        Returns:
          When to call it again though nothing changed; None for never.
        """
        aims = {
            name: known[name, aim_of(rollout)]
            for name, rollout in rollouts.items()
            if rollout.phase in UNDER_WAY and (name, aim_of(rollout)) in known
        }
        if not aims:
            return None
        again_s: list[float] = []
        loads: dict[tuple[str, str | None], bool] = {}  # hosts are many, states are few
        for host in self.hosts.known.values():
            known_host = self.knowledge.of(host.id)
            for name, placed in host.instances.items():
                aim, agent = aims.get(name), placed.agent
                if aim is None or agent is None or Feature.BESIDE not in agent.features:
                    continue
                if not placed.waits_for(aim.digest, slots=aim.slots):
                    continue
                if (way := (name, agent.revision)) not in loads:
                    served = known.get((name, agent.revision or ""))
                    loads[way] = served is None or change_between(served, aim) in LOADED
                if not loads[way]:
                    continue
                at_s = known_host.asks_beside_s(name, aim.digest)
                if at_s is None:
                    continue
                if at_s <= trio.current_time():
                    self.knowledge.ask_beside(agent, name, aim.digest, question_of(aim))
                else:
                    again_s.append(at_s)
        return min(again_s, default=None)


def question_of(spec: DeploymentSpec) -> FitQuestion:
    """Would it fit?"""
    return FitQuestion(state=desired_state(spec), extras=spec.extras, slots=spec.slots)


def fits_to_ask(specs: Iterable[DeploymentSpec]) -> dict[Digest, DeploymentSpec]:
    """Predictions are asked for where several deployments may meet on a host. An agent that has one
    model judges by itself whether it fits."""
    loaded = [spec for spec in specs if not spec.is_empty]
    if len({spec.name for spec in loaded}) < 2:
        return {}
    return {spec.digest: spec for spec in loaded}


def desired_state(spec: DeploymentSpec) -> BalancerDesiredState:
    """Return a deployment in the shape of Paddler's desired state."""
    template = None if spec.template is None else ChatTemplate(spec.template)
    return BalancerDesiredState(
        chat_template_override=template,
        inference_parameters=spec.parameters,
        model=spec.model,
        multimodal_projection=spec.projection,
        use_chat_template_override=template is not None,
    )


def sum_of(sizes: Iterable[Bytes]) -> Bytes:
    """Device by device."""
    total: Counter[str] = Counter()
    for each in sizes:
        total.update(each)
    return total


@attrs.define(eq=False)
class FleetObservation:
    """Reads everything that a plan depends on; has hosts asked for what is not known yet.

    Settled hosts are not read again, and a plan goes without them: see
    ``scheduler/fleet/settled_hosts.py``.

    Args:
      seen: every host as it was read last.
    """

    keeper: FleetKeeper
    dispatcher: Dispatcher
    hosts: PlacedHosts
    knowledge: HostKnowledge
    questions: HostQuestions
    seen: dict[HostId, Host] = attrs.field(factory=dict, init=False)
    _settled_in: FleetRevision | None = attrs.field(default=None, init=False)
    """What was desired when hosts were settled."""
    _settled_loads: SettledLoads = attrs.field(factory=SettledLoads, init=False)

    def follow(self) -> list[PlacedHost]:
        """Note which hosts came, changed and went.

        Returns:
          Those that are to be looked at now.
        """
        for host in self.hosts.follow():
            self.knowledge.forget(host)
            self.seen.pop(host, None)
            self._settled_loads.unsettled(host)
        for host in self.knowledge.changed_hosts.take():
            self.hosts.unsettle(host)
        if self.keeper.current is not self._settled_in:
            self.hosts.unsettle_all()
        return self.hosts.in_order()

    def view(
        self,
        rollouts: Mapping[str, Rollout],
        known: Mapping[tuple[str, str], DeploymentSpec],
        *,
        is_settling: bool,
    ) -> FleetView:
        """Return the fleet as it is now; synchronous, with no change in between.

        Args:
          known: by deployment and digest, also what rollouts come from.
          is_settling: agents are on their way back to a balancer that has just started.
        """
        specs = self.keeper.current.state.deployments
        before = {name: known.get((name, each.good or "")) for name, each in rollouts.items()}
        goals = tuple(self._goal(spec, before.get(spec.name)) for spec in specs)
        asked = fits_to_ask([*specs, *(spec for spec in before.values() if spec is not None)])
        hosts = self._hosts(goals, rollouts, asked)
        self.questions.ask_fits(asked)
        return FleetView(
            now_s=trio.current_time(),
            goals=goals,
            hosts=hosts,
            queues={
                name: Queue(waiting=demand.waiting, oldest_wait_s=demand.oldest_wait_s)
                for name, demand in self.dispatcher.pools.demand().items()
            },
            rollouts=rollouts,
            is_settling=is_settling,
        )

    def _hosts(
        self, goals: Sequence[Goal], rollouts: Mapping[str, Rollout], asked: Iterable[Digest]
    ) -> tuple[Host, ...]:
        """Return those to plan with. ``asked``: the states whose fit is to be known on each
        host."""
        if not is_at_rest(goals, rollouts):
            self._settled_in = None
            self.hosts.unsettle_all()
            aims = {name: aim_of(rollout) for name, rollout in rollouts.items()}
            self.seen = {host.id: self.read(host, aims) for host in self.hosts.known.values()}
            self._settled_loads = SettledLoads()
            return tuple(self.seen.values())
        by_name = {goal.deployment: goal for goal in goals}
        unsettled = []
        for placed in self.hosts.in_order():
            host = self.seen[placed.id] = self.read(placed)
            self._settled_loads.unsettled(host.id)
            if is_settled(host, by_name) and self._fits_are_known(placed, asked):
                del self.hosts.unsettled[host.id]
                self._settled_loads.settled(host)
            else:
                unsettled.append(host)
        self._settled_in = self.keeper.current
        return without_settled(unsettled, self._settled_loads.shortest())

    def _fits_are_known(self, host: PlacedHost, asked: Iterable[Digest]) -> bool:
        """Return whether no question is due to it."""
        if host.first is None or not host.first.kind.answers_questions:
            return True
        needs = self.knowledge.needs
        return all(host.id in needs.get(digest, NONE_KNOWN) for digest in asked)

    def _goal(self, spec: DeploymentSpec, good: DeploymentSpec | None) -> Goal:
        """``good``: what its rollout goes back to."""
        rules, needs = spec.rollout, self.knowledge.needs
        return Goal(
            deployment=spec.name,
            target=spec.digest,
            is_empty=spec.is_empty,
            replicas=Replicas(
                least=spec.replicas.least, most=spec.replicas.most, is_all=spec.replicas.is_all
            ),
            where=spec.where,
            slots=spec.slots,
            priority=spec.priority,
            idle_ttl_s=spec.idle_ttl,
            rules=RolloutRules(
                max_unavailable=rules.max_unavailable,
                max_unavailable_percent=rules.max_unavailable_percent,
                min_capacity=rules.min_capacity,
                canary=rules.canary,
                min_ready_s=rules.min_ready_s,
                drain_deadline_s=rules.drain_deadline_s,
                progress_deadline_s=rules.progress_deadline_s,
                on_failure=rules.on_failure.value,
                mixed=rules.mixed.value,
                prefetch=rules.prefetch,
            ),
            fetches=bool(fetched_models(spec)),
            needs=needs.get(spec.digest, NONE_KNOWN),
            good_needs=NONE_KNOWN if good is None else needs.get(good.digest, NONE_KNOWN),
            change=Change.WEIGHTS if good is None else change_between(good, spec),
        )

    def read(self, host: PlacedHost, aims: Mapping[str, str] = MappingProxyType({})) -> Host:
        """Return one host as it is now.

        Args:
          aims: by deployment, the state that a rollout brings to its instances.
        """
        agents, known = host.connections, self.knowledge.of(host.id)
        instances = {
            name: placed.seen(can_load_beside=known.loads_beside(name, aims.get(name)))
            for name, placed in host.instances.items()
        }
        for placed in host.instances.values():
            report = None if placed.agent is None else placed.agent.report
            if report is not None and report.served_state is not None:
                known.on_disk.add(report.served_state)
                if report.load_s is not None:
                    known.load_s[report.served_state] = report.load_s
                if report.room:
                    known.memory = {room.device: room.most for room in report.room}
        return Host(
            id=host.id,
            name=host.label,
            labels=host.labels,
            is_ours=all(agent.kind.runs_instances for agent in agents),
            is_drained=any(agent.is_drained or phase_of(agent) in UNLOADED for agent in agents),
            memory=known.memory,
            held=host.held,
            on_disk=frozenset(known.on_disk if agents else {*known.on_disk, *self._targets()}),
            fetching=frozenset(known.fetching),
            fetch_failed=dict(known.fetch_failed),
            load_s=dict(known.load_s),
            back_until_s=host.back_until_s,
            instances=instances,
        )

    def _targets(self) -> Iterable[str]:
        """A host whose connections are lost for a moment is asked to fetch nothing."""
        return (spec.digest for spec in self.keeper.current.state.deployments)


def fetched_models(spec: DeploymentSpec) -> tuple[DesiredModel, ...]:
    """Return those of its files that can be fetched ahead."""
    return tuple(model for model in spec.sources if isinstance(model, UrlModel | HuggingFaceModel))
