"""What the planner looks at: goals, hosts, instances and queues, as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs
import trio

from paddler_trio.balancer.fleet.fleet_diff import change_between
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.host_knowledge import NONE_KNOWN, Bytes, HostKnowledge
from paddler_trio.balancer.fleet.placed_hosts import PlacedHost, PlacedHosts
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.fleet.fleet_values import (
    Change,
    FleetView,
    Goal,
    Host,
    Queue,
    Replicas,
    Rollout,
    RolloutRules,
)
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    HuggingFaceModel,
    UrlModel,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.fit_messages import FitQuestion
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec


@attrs.define(eq=False)
class FleetObservation:
    """Reads everything that a plan depends on; asks hosts for what is not known yet."""

    keeper: FleetKeeper
    dispatcher: Dispatcher
    hosts: PlacedHosts
    knowledge: HostKnowledge

    def view(
        self,
        rollouts: Mapping[str, Rollout],
        known: Mapping[tuple[str, str], DeploymentSpec],
        *,
        is_settling: bool,
    ) -> FleetView:
        """As it is now; synchronous, with no change in between.

        Args:
          known: by deployment and digest, also what rollouts come from.
          is_settling: agents are on their way back to a balancer that has just started.
        """
        specs = self.keeper.current.state.deployments
        hosts = tuple(self._host(host) for host in self.hosts.known.values())
        before = {name: known.get((name, each.good or "")) for name, each in rollouts.items()}
        goals = tuple(self._goal(spec, before.get(spec.name)) for spec in specs)
        self._ask_fits([*specs, *(spec for spec in before.values() if spec is not None)])
        return FleetView(
            now_s=trio.current_time(),
            goals=goals,
            hosts=hosts,
            queues={
                name: Queue(waiting=demand.waiting, oldest_wait_s=demand.oldest_wait_s)
                for name, demand in self.dispatcher.demand().items()
            },
            rollouts=rollouts,
            is_settling=is_settling,
        )

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

    def _host(self, host: PlacedHost) -> Host:
        instances = {name: placed.seen() for name, placed in host.instances.items()}
        agents, known = host.connections, self.knowledge.of(host.id)
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
            is_ours=all(agent.speaks_trio for agent in agents),
            is_drained=any(agent.is_drained for agent in agents),
            memory=known.memory,
            held=held_by(host),
            on_disk=frozenset(known.on_disk if agents else {*known.on_disk, *self._targets()}),
            fetching=frozenset(known.fetching),
            fetch_failed=dict(known.fetch_failed),
            load_s=dict(known.load_s),
            instances=instances,
        )

    def _targets(self) -> Iterable[str]:
        """A host whose connections are lost for a moment is asked to fetch nothing."""
        return (spec.digest for spec in self.keeper.current.state.deployments)

    def _ask_fits(self, specs: Iterable[DeploymentSpec]) -> None:
        """Ask for predictions where several deployments may meet on a host. An agent that has one
        model judges by itself whether it fits."""
        loaded = [spec for spec in specs if not spec.is_empty]
        if len({spec.name for spec in loaded}) < 2:
            return
        wanted = {spec.digest: spec for spec in loaded}
        for host in self.hosts.known.values():
            agent = host.first
            if agent is None or not agent.speaks_trio:
                continue
            for digest in self.knowledge.fit_questions(host.id, wanted)[:1]:
                spec = wanted[digest]
                others = sum_of(held for name, held in held_by(host).items() if name != DEFAULT)
                question = FitQuestion(
                    state=desired_state(spec), extras=spec.extras, slots=spec.slots
                )
                self.knowledge.ask_fit(agent, digest, question, others=others)


def desired_state(spec: DeploymentSpec) -> BalancerDesiredState:
    """A deployment in the shape of Paddler's desired state."""
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


def held_by(host: PlacedHost) -> dict[str, Bytes]:
    """What each instance takes, as allocated where that is known, else as predicted."""
    held: dict[str, Bytes] = {}
    for name, placed in host.instances.items():
        report = None if placed.agent is None else placed.agent.report
        if report is not None and report.memory is not None:
            held[name] = {
                each.device: (each.predicted if each.actual is None else each.actual) or 0
                for each in report.memory.devices
            }
    return held


def fetched_models(spec: DeploymentSpec) -> tuple[DesiredModel, ...]:
    """Those of its files that can be fetched ahead."""
    models = (spec.model, spec.projection)
    return tuple(model for model in models if isinstance(model, UrlModel | HuggingFaceModel))
