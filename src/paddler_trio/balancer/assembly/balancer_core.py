"""Make what all ports of a balancer stand on: dispatcher, fleet, and what is kept of requests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.activity.agents_topic import AgentsTopic
from paddler_trio.balancer.activity.balancer_topic import BalancerStatus
from paddler_trio.balancer.activity.deadlines import Deadlines
from paddler_trio.balancer.activity.deployments_topic import DeploymentsTopic
from paddler_trio.balancer.activity.event_feed import EventFeed
from paddler_trio.balancer.activity.feed_topic import WholeTopic
from paddler_trio.balancer.activity.measures.agent_measures import AgentMeasures
from paddler_trio.balancer.activity.measures.balancer_measures import BalancerMeasures
from paddler_trio.balancer.activity.measures.request_measures import RequestMeasures
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_lanes import RequestLanes
from paddler_trio.balancer.activity.requests_topic import RequestsTopic
from paddler_trio.balancer.agents.agent_snapshot import capacity
from paddler_trio.balancer.capacity.arrival_log import ArrivalLog
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.fleet_routes import RolloutControl
from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.front.end_user import USER_NAMES
from paddler_trio.balancer.history import history_file
from paddler_trio.balancer.history.history_collector import HistoryCollector
from paddler_trio.balancer.history.history_keeper import HistoryKeeper
from paddler_trio.balancer.keys.audit_log import AuditLog
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.status.known_agents import SUFFIX, KnownAgents
from paddler_trio.balancer.status.problem_list import ProblemList
from paddler_trio.errors import ConfigurationError, ModelStoreError
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.net.server.listening import bound_address
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver, Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.processes.model_store.store_messages import MAX_MESSAGE_BYTES
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.system.logs.log_ring import RECENT
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.system.ready_sockets import run_ready_sockets
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.supervise import keep
from paddler_trio.telemetry.statsd import StatsdExporter
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    UrlModel,
)
from paddler_trio.wire.trio.default_deployment import PADDLERS_RULES

log = structlog.get_logger("store")

MAX_DESIRED_BYTES: Final = MAX_MESSAGE_BYTES * 3 // 4
"""More than the longest names of two models and their projections."""


def model_store_child(config: BalancerConfig, states: FleetKeeper) -> ModelStoreChild | None:
    """Return the store's process, not started yet; ConfigurationError for a folder that cannot be
    used."""
    if config.model_store is None:
        return None
    folder = Path(os.path.abspath(config.model_store))  # noqa: PTH100  # links stay as they are
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--model-store {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--model-store {folder}: this user may not write there")
    if config.model_store_size_bytes == 0:
        raise ConfigurationError(
            "--model-store needs --model-store-size, such as 200GB: what it may take of the disk"
        )
    return ModelStoreChild(
        folder,
        config.model_store_size_bytes,
        desired=lambda: desired_models(states.wanted_models()),
        desired_changes=states.published,
    )


def readable_models(
    states: FleetKeeper, dispatcher: Dispatcher, agent: AgentIdentity
) -> tuple[DesiredModel, ...]:
    """The models whose files an agent's credential opens: what is desired of deployments that it
    may serve, and what agents were just told to fetch or to judge."""
    asked = [model for each in dispatcher.agents.values() for model in each.questions.asked_models]
    return (*states.wanted_models(lambda spec: agent.may_meet(spec.where)), *asked)


def desired_models(models: Sequence[DesiredModel]) -> tuple[bytes, ...]:
    """Return the JSON of those models that agents fetch; as many as one message to the store
    holds."""
    texts: list[bytes] = []
    left_bytes = MAX_DESIRED_BYTES
    for model in models:
        if isinstance(model, UrlModel | HuggingFaceModel):
            text = dumps(unstructure(model, DesiredModel))
            left_bytes -= len(text)
            if left_bytes < 0:
                log.warning(
                    "the store may drop what is desired: too many long names", told=len(texts)
                )
                break
            texts.append(text)
    return tuple(texts)


_SHOWN: Final = {
    "compat openai": "openai",
    "compat ollama": "ollama",
    "web admin panel": "panel",
}
"""Names of services in the feed, where they have another one."""


def event_feed(
    activity: RequestActivity,
    states: FleetKeeper,
    rollouts: RolloutControl,
    metrics: MetricsHistory,
    addresses: Mapping[str, Sequence[str]],
    problems: ProblemList,
) -> EventFeed:
    """Return all topics, in the order in which events have them.

    Args:
      addresses: where each service listens.
    """
    activity.revision_of = states.revision_of
    dispatcher, captures = problems.dispatcher, activity.captures is not None
    status = BalancerStatus(dispatcher, states, problems.lag, addresses, captures)

    def rollouts_now(now_s: float) -> Mapping[str, object]:
        entries = rollouts.view()["rollouts"]
        assert isinstance(entries, Sequence)
        return {entry["deployment"]: entry for entry in entries}

    def logs_now(now_s: float) -> Mapping[str, object]:
        counts = {"seq": RECENT.seq, "warnings": RECENT.warnings, "errors": RECENT.errors}
        return {"last": counts}

    return EventFeed(
        (
            WholeTopic("balancer", status.values),
            AgentsTopic(dispatcher, RequestLanes(activity), states.revision_of),
            DeploymentsTopic(
                dispatcher, lambda: states.current.state.deployments, problems.progress
            ),
            WholeTopic("problems", lambda now_s: {each.id: each.view() for each in problems.now()}),
            WholeTopic(
                "gone",
                lambda now_s: {each.name: attrs.asdict(each) for each in problems.known.shown()},
                lambda: problems.known.changed.ordinal,
            ),
            RequestsTopic(activity),
            WholeTopic("rollouts", rollouts_now, lambda: rollouts.changes.ordinal),
            WholeTopic(
                "metrics",
                lambda now_s: {"current": metrics.current()},
                lambda: int(trio.current_time()),  # once a second
            ),
            WholeTopic("logs", logs_now, lambda: RECENT.seq),
        )
    )


def addresses_of(listeners: Mapping[str, Sequence[socket.socket]]) -> Mapping[str, Sequence[str]]:
    """Return where the sockets of each service listen, ``host:port`` each."""
    return {
        _SHOWN.get(name, name): [bound_address(each) for each in bound]
        for name, bound in listeners.items()
    }


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
            _history_keeper(config, collector),
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


IN_MEMORY_BYTES: Final = 16 * 1024**2
"""A history that ends with the process has so many at most."""


def _history_keeper(config: BalancerConfig, collector: HistoryCollector) -> HistoryKeeper:
    """Keep the history beside the state, if that is in a file and a history is wanted."""
    state = state_file(config.state_database)
    USER_NAMES.is_kept = config.usage_by_user
    path, limit_bytes = None, IN_MEMORY_BYTES
    if state is not None and config.history_bytes:
        path, limit_bytes = state.with_name(state.name + history_file.SUFFIX), config.history_bytes
    return HistoryKeeper(history_file.HistoryFile(path, limit_bytes), collector)
