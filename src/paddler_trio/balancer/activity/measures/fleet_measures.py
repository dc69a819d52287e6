"""Deployments and rollouts as they are at the moment, for ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import trio

from paddler_trio.balancer.activity.measures.agent_measures import writable
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.rollout_control import phase_of
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.telemetry.balancer_metrics import (
    DEPLOYMENT_AGENTS,
    DEPLOYMENT_REQUESTS_BUFFERED,
    DEPLOYMENT_REQUESTS_RUNNING,
    QUEUE_OLDEST_SECONDS,
    QUEUE_POSITION_SECONDS_ESTIMATE,
    REQUESTS_BUFFERED_LIMIT,
    ROLLOUT_PHASE,
    ROLLOUT_STALLED_SECONDS,
    ROLLOUT_STATE,
    SLOTS_USABLE,
)
from paddler_trio.telemetry.label_values import AGENT_STATES, ROLLOUT_PHASES
from paddler_trio.telemetry.metric_kind import MAX_LABEL_VALUES, OTHER, MetricDefinition
from paddler_trio.telemetry.recording import Family, family, single

_OVER = frozenset({RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK})


@attrs.define(eq=False)
class _Sums:
    """Gauges that are added up where several have one place: those beyond the bound."""

    values: dict[tuple[str, ...], float] = attrs.field(factory=dict)

    def add(self, value: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0) + value

    def of(self, definition: MetricDefinition) -> Family:
        return family(definition, self.values)


def _expected_wait_s(pool: Pool, now_s: float) -> float:
    """Nothing where a slot is free; else what a client that is refused now is advised."""
    counts = pool.ledger.statistics()
    is_free = counts.slots_total > counts.slots_processing and not counts.requests_buffered
    return 0.0 if is_free else pool.retry_after_s(now_s)


@attrs.frozen(eq=False)
class FleetMeasures:
    """Reads, and keeps nothing."""

    dispatcher: Dispatcher
    fleet: FleetController

    def deployments(self) -> Iterator[Family]:
        """Return the metrics of deployments of ``telemetry/balancer_metrics.py``; of the first
        thousand by name, the others added up as ``other``."""
        dispatcher = self.dispatcher
        yield single(REQUESTS_BUFFERED_LIMIT, dispatcher.limits.max_buffered)
        agents_here = dispatcher.agents.values()
        usable = sum(agent.usable_slots for agent in agents_here if agent.is_accepting)
        yield single(SLOTS_USABLE, usable)
        now_s = trio.current_time()
        oldest, estimate, waiting, running, agents = (_Sums() for _ in range(5))
        for name, pool in self._pools():
            demand = pool.demand(now_s)
            oldest.add(demand.oldest_wait_s, name)
            estimate.add(_expected_wait_s(pool, now_s), name)
            waiting.add(demand.waiting, name)
            running.add(demand.running, name)
            serving = sum(agent.is_accepting for agent in pool.agents.values())
            agents.add(serving, name, AGENT_STATES[0])
            agents.add(len(pool.agents) - serving, name, AGENT_STATES[1])
        yield oldest.of(QUEUE_OLDEST_SECONDS)
        yield estimate.of(QUEUE_POSITION_SECONDS_ESTIMATE)
        yield waiting.of(DEPLOYMENT_REQUESTS_BUFFERED)
        yield running.of(DEPLOYMENT_REQUESTS_RUNNING)
        yield agents.of(DEPLOYMENT_AGENTS)

    def _pools(self) -> Iterator[tuple[str, Pool]]:
        for place, pool in enumerate(self.dispatcher.pools.known()):
            yield (pool.name if place < MAX_LABEL_VALUES else OTHER), pool

    def rollouts(self) -> Iterator[Family]:
        """Return the metrics of rollouts, of the first thousand deployments in the same way."""
        phases, states, stalled = _Sums(), _Sums(), _Sums()
        now_s = trio.current_time()
        rollouts = self.fleet.rollouts
        for place, deployment in enumerate(sorted(rollouts)):
            rollout = rollouts[deployment]
            label = deployment if place < MAX_LABEL_VALUES else OTHER
            states.add(1, label, rollout.phase.value)
            if rollout.phase not in _OVER:
                stalled.add(max(0.0, now_s - rollout.advanced_s), label)
        for place, host in enumerate(self.fleet.observation.seen.values()):
            label = writable(host.name or host.id) if place < MAX_LABEL_VALUES else OTHER
            for deployment, instance in host.instances.items():
                found = rollouts.get(deployment)
                if found is not None and found.phase not in _OVER:
                    phase = phase_of(found, host, instance)
                    phases.add(1, label, phase if phase in ROLLOUT_PHASES else OTHER)
        yield phases.of(ROLLOUT_PHASE)
        yield states.of(ROLLOUT_STATE)
        yield stalled.of(ROLLOUT_STALLED_SECONDS)
