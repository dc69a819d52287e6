"""Make what all ports of a balancer stand on: dispatcher, fleet, and what is kept of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from paddler_trio.balancer.activity.deadlines import Deadlines
from paddler_trio.balancer.activity.event_feed import EventFeed
from paddler_trio.balancer.activity.measures.agent_measures import AgentMeasures
from paddler_trio.balancer.activity.measures.balancer_measures import BalancerMeasures
from paddler_trio.balancer.activity.measures.request_measures import RequestMeasures
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.agents.agent_snapshot import capacity
from paddler_trio.balancer.assembly.feed_assembly import event_feed
from paddler_trio.balancer.assembly.history_assembly import history_keeper
from paddler_trio.balancer.assembly.store_assembly import model_store_child
from paddler_trio.balancer.capacity.arrival_log import ArrivalLog
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.history.history_collector import HistoryCollector
from paddler_trio.balancer.history.history_keeper import HistoryKeeper
from paddler_trio.balancer.keys.audit_log import AuditLog
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.status.known_agents import SUFFIX, KnownAgents
from paddler_trio.balancer.status.problem_list import ProblemList
from paddler_trio.errors import ModelStoreError
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver, Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.system.ready_sockets import run_ready_sockets
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.supervise import keep
from paddler_trio.telemetry.statsd import StatsdExporter
from paddler_trio.wire.trio.default_deployment import PADDLERS_RULES


@attrs.frozen(eq=False)
class BalancerCore:
    """One of each for a balancer; made inside the trio run."""

    dispatcher: Dispatcher
    activity: RequestActivity
    states: FleetKeeper
    fleet: FleetController
    rollouts: FleetRollouts
    metrics: MetricsHistory
    history: HistoryKeeper
    feed: EventFeed
    store: ModelStoreChild | None
    budget: InputBudget
    lag: LoopLag
    measures: BalancerMeasures
    audit: AuditLog
    statsd: StatsdExporter | None
    problems: ProblemList
    deadlines: Deadlines
    arrivals: ArrivalLog
    goodbye: trio.Event = attrs.field(factory=trio.Event)
    """Set when sockets shall end."""
    moving: trio.Event = attrs.field(factory=trio.Event)
    """Set when another process has the management port, or at the goodbye: event streams end."""
    moved: trio.Event = attrs.field(factory=trio.Event)
    """Set when another process has all ports: clients' sockets end as soon as they are idle."""

    @classmethod
    def of(
        cls,
        config: BalancerConfig,
        addresses: Mapping[str, Sequence[str]],
        keys: KeyRing,
        activity: RequestActivity,
        observers: Sequence[DispatchObserver] = (),
    ) -> BalancerCore:
        """Make the core; ConfigurationError for a bad state database URL, limit or folder.

        Args:
          addresses: where each service listens, as the feed shows them.
          activity: sees every request first.
          observers: see it next.
        """
        requests = RequestMeasures(
            activity.finished,
            lambda deployment: dispatcher.pools.serves(deployment),
            AgentMeasures(lambda: dispatcher.agents),
        )
        metrics = MetricsHistory(lambda: capacity(dispatcher.agents.values()))
        recorder = MetricsObserver(metrics, activity.finished)
        collector = HistoryCollector(activity, metrics)
        placed, deadlines = _placing()
        arrivals = ArrivalLog(activity)
        all_observers = Observers(
            (placed, deadlines, activity, *observers, requests, recorder, collector, arrivals)
        )
        dispatcher = Dispatcher(_limits(config), all_observers, placed.placement)
        states = _states(config, dispatcher)
        fleet, lag = FleetController(states, dispatcher), LoopLag()
        budget = InputBudget(config.input_memory_bytes)
        measures = BalancerMeasures(dispatcher, fleet, requests, budget, lag, keys)
        measures.placed = placed
        measures.store = store = model_store_child(config, states)
        rollouts = FleetRollouts(fleet)
        problems = _problems(config, dispatcher, states, rollouts, lag)
        shown = {**addresses, **({"statsd": [config.statsd_addr]} if config.statsd_addr else {})}
        feed = event_feed(activity, states, rollouts, metrics, shown, problems)
        return cls(
            dispatcher,
            activity,
            states,
            fleet,
            rollouts,
            metrics,
            history_keeper(config, collector),
            feed,
            store,
            budget,
            lag,
            measures,
            problems.audit,
            StatsdExporter.of(config, dispatcher.statistics),
            problems,
            deadlines,
            arrivals,
        )

    def watch_certificate(self, left_s: Callable[[], float]) -> None:
        """Show how long the certificate of the ports is still good."""
        self.measures.certificate_left_s = self.problems.certificate_left_s = left_s

    def services(self) -> dict[str, Run]:
        """Return what of it runs beside everything else, by the names of the tasks."""
        dispatcher = self.dispatcher
        return {
            **({} if self.audit.file is None else {"audit log": self.audit.file.run}),
            "event loop lag": self.lag.run,
            "request deadlines": partial(self.deadlines.run, dispatcher.pools),
            "ready sockets": run_ready_sockets,
            "request activity": partial(
                self.activity.run, dispatcher.pools.position, dispatcher.pools.obstacle
            ),
            "metrics history": self.metrics.run,
            "history": self.history.run,
            "event feed": self.feed.run,
        }

    def owned(self) -> dict[str, Run]:
        """Return what of it only one balancer may run."""
        return {
            "fleet": self.fleet.run,
            "known agents": self.problems.known.run,
            **({} if self.statsd is None else {"statsd": self.statsd.run}),
            **(
                {}
                if self.store is None
                else {"model store": partial(keep, "model store", ModelStoreError, self.store.run)}
            ),
        }


def _placing() -> tuple[PlacementObserver, Deadlines]:
    """Return what places requests, and what ends those whose clients wait no longer."""
    placed = PlacementObserver(WarmPlacement(trio.current_time))
    return placed, Deadlines(placed.placement)


def _states(config: BalancerConfig, dispatcher: Dispatcher) -> FleetKeeper:
    rules = attrs.evolve(PADDLERS_RULES, min_ready_s=config.rollout_min_ready_s)
    return FleetKeeper(open_fleet_database(config.state_database), dispatcher, rules=rules)


def _limits(config: BalancerConfig) -> DispatchLimits:
    return DispatchLimits(
        max_buffered=config.max_buffered_requests,
        buffered_timeout_s=config.buffered_request_timeout_s,
        item_timeout_s=config.inference_item_timeout_s,
        continuation=ContinuationLimits(max_continuations=config.max_continuations),
        continuation_wait_s=config.continuation_wait_s,
    )


def _problems(
    config: BalancerConfig,
    dispatcher: Dispatcher,
    states: FleetKeeper,
    rollouts: FleetRollouts,
    lag: LoopLag,
) -> ProblemList:
    state = state_file(config.state_database)
    known = KnownAgents(dispatcher, None if state is None else state.with_name(state.name + SUFFIX))
    return ProblemList(
        dispatcher,
        lambda: states.current.state.deployments,
        AgentsProgress(dispatcher, rolling=rollouts.facts, offline=known.offline),
        known,
        lag,
        AuditLog.of(config.audit_log),
    )
