"""A balancer: its ports bound, its parts made and wired together, its tree run."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.apis.api_router import CORS_RULES
from paddler_trio.apis.api_routes import api_routers
from paddler_trio.assembly.feed_assembly import addresses_of, event_feed
from paddler_trio.assembly.hub_models import AnsweredHubModels
from paddler_trio.assembly.panel_assembly import PANEL, panel_site
from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.event_routes import EventRoutes
from paddler_trio.balancer.activity.log_routes import LogRoutes
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.metrics_routes import MetricsRoutes
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_routes import RequestRoutes
from paddler_trio.balancer.agent_socket import AgentSocket
from paddler_trio.balancer.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.hub_routes import HubRoutes
from paddler_trio.balancer.inference_routes import PROBES, InferenceRoutes
from paddler_trio.balancer.management_routes import ManagementRoutes
from paddler_trio.balancer.model_store_child import ModelStoreChild
from paddler_trio.balancer.model_store_routes import ModelStoreRoutes
from paddler_trio.balancer.no_model_store import no_model_store
from paddler_trio.balancer.state_database import state_file
from paddler_trio.balancer.state_lock import locked
from paddler_trio.config import BalancerConfig
from paddler_trio.daemon.log_ring import RECENT
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.errors import ConfigurationError
from paddler_trio.http.allowed_hosts import AllowedHosts, allowed_names, own_names
from paddler_trio.http.api_keys import KeyScope
from paddler_trio.http.asgi import App
from paddler_trio.http.authentication import Authentication, Refuse, refuse_in_plain_text
from paddler_trio.http.connection_limits import HttpLimits
from paddler_trio.http.cors import Cors
from paddler_trio.http.exposure import beyond_loopback, check_exposure
from paddler_trio.http.input_budget import PUBLIC_SHARE, InputBudget
from paddler_trio.http.key_ring import KeyRing
from paddler_trio.http.listening import listen
from paddler_trio.http.origins import Origins
from paddler_trio.http.router import by_path
from paddler_trio.http.server import HttpServer
from paddler_trio.model_store.store_messages import MAX_MESSAGE_BYTES, PREFIX, is_store_path
from paddler_trio.nursery_tree.balancer_tree import Addresses, BalancerParts, run_balancer
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.loop_lag import LoopLag
from paddler_trio.panel.panel_site import below
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits
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


@attrs.frozen(eq=False)
class BoundBalancer:
    """Ports are bound before anything runs: one in use is an error and nothing has started."""

    config: BalancerConfig
    listeners: Mapping[str, list[socket.socket]]
    """By the name of the service: inference, management and, if there are such ports, compat
    openai and web admin panel."""
    keys: KeyRing = attrs.field(factory=KeyRing)

    @classmethod
    def bind(cls, config: BalancerConfig) -> BoundBalancer:
        """Raises ConfigurationError, with nothing left open; also for a port that would be open to
        a network without saying so."""
        keys = KeyRing.read(config.api_key_file)
        listeners: dict[str, list[socket.socket]] = {}
        addresses = {
            "inference": config.inference_addr,
            "management": config.management_addr,
            "compat openai": config.compat_openai_addr,
            PANEL: config.web_admin_panel_addr,
        }
        try:
            # one by one: what was bound before an error is there to be closed
            for name, address in addresses.items():
                if address is not None:
                    listeners[name] = listen(address)
            check_exposure(
                keys,
                inference=[*listeners["inference"], *listeners.get("compat openai", ())],
                management=listeners["management"],
                panel=listeners.get(PANEL, ()),
                insecure_management=config.insecure_management,
            )
        except BaseException:
            for bound in listeners.values():
                for each in bound:
                    each.close()
            raise
        return cls(config, listeners, keys)


async def serve_balancer(
    bound: BoundBalancer,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Assemble a balancer and run its tree; see :func:`run_balancer`.

    Raises:
      ConfigurationError, StateDatabaseError: before anything is served.
    """

    sockets = [each for listener in bound.listeners.values() for each in listener]
    names = await own_names() if beyond_loopback(sockets) else frozenset[str]()

    def assemble() -> BalancerParts:
        return balancer_parts(bound, host_names=names, reloads=notifier.is_listening)

    with locked(state_file(bound.config.state_database)):
        await run_balancer(assemble, stop, notifier=notifier, task_status=task_status)


def balancer_parts(
    bound: BoundBalancer,
    *,
    host_names: frozenset[str] = frozenset(),
    reloads: bool = False,
) -> BalancerParts:
    """Call it inside the trio run; ConfigurationError for a bad state database URL, limit or name.

    Args:
      host_names: of this machine, under which ports answer that ask for no key.
      reloads: SIGHUP reloads the keys, also where there are none.
    """
    config, keys = bound.config, bound.keys
    goodbye = trio.Event()
    dispatcher = Dispatcher(
        DispatchLimits(
            max_buffered=config.max_buffered_requests,
            buffered_timeout_s=config.buffered_request_timeout_s,
            item_timeout_s=config.inference_item_timeout_s,
            continuation=ContinuationLimits(max_continuations=config.max_continuations),
            continuation_wait_s=config.continuation_wait_s,
        )
    )
    activity = RequestActivity(Captures() if config.capture_prompts else None)
    dispatcher.observer = activity
    states = FleetKeeper(
        open_fleet_database(config.state_database),
        dispatcher,
        rules=attrs.evolve(PADDLERS_RULES, min_ready_s=config.rollout_min_ready_s),
    )
    store = model_store_child(config, states)
    fleet = FleetController(states, dispatcher)
    agents = AgentSocket(
        dispatcher,
        goodbye,
        silence_s=config.agent_silence_s,
        store_path=None if store is None else PREFIX,
    )
    deployments = Deployments(
        dispatcher,
        states,
        config.strict_model_names,
        states.find,
        lambda: states.current.state.deployments,
    )
    inference = InferenceRoutes(dispatcher, states, goodbye, deployments)
    budget, lag = InputBudget(config.input_memory_bytes), LoopLag()
    rollouts = FleetRollouts(fleet)
    metrics = MetricsHistory(lambda: dispatcher.statistics().slots_total)
    activity.then = MetricsObserver(metrics, activity.finished)
    feed = event_feed(
        dispatcher,
        activity,
        states,
        lag,
        rollouts,
        metrics,
        addresses_of(bound.listeners),
        captures=config.capture_prompts,
    )
    management = ManagementRoutes(
        dispatcher,
        states,
        agents,
        goodbye,
        budget,
        lag,
        keys,
        config.metrics_prefix,
        rollouts,
        AgentsProgress(dispatcher, rollouts.of),
        (
            EventRoutes(feed, goodbye),
            RequestRoutes(activity),
            HubRoutes(AnsweredHubModels()),
            MetricsRoutes(metrics),
            LogRoutes(RECENT),
        ),
    )
    operators_app = management.app()
    store_app = no_model_store if store is None else ModelStoreRoutes(store)
    management_app = by_path(is_store_path, store_app, otherwise=operators_app)
    api, exact_api = api_routers(config, dispatcher, states, deployments)
    use = Authentication(keys, KeyScope.INFERENCE)
    manage = Authentication(keys, KeyScope.MANAGEMENT, is_waived=config.insecure_management)
    origins = config.inference_cors_allowed_hosts
    changes = Origins(origins, flag="--inference-cors-allowed-host")
    native_cors, api_cors = Cors(origins), Cors(origins, CORS_RULES)
    names = allowed_names(config.allowed_hosts) | host_names

    def hosts(listener: Sequence[socket.socket], keys: Authentication) -> AllowedHosts:
        return AllowedHosts(
            names, is_loopback=not beyond_loopback(listener), requires_key=lambda: keys.requires_key
        )

    def guarded(
        app: App,
        listener: Sequence[socket.socket],
        *,
        cors: Cors,
        changes: Origins = changes,
        keys: Authentication = use,
        refuse: Refuse = refuse_in_plain_text,
    ) -> App:
        """``app`` as its port serves it: under which names, to which pages, for which keys."""
        named = hosts(listener, keys)
        return cors(named(changes(keys(app, refuse=refuse), refuse=refuse), refuse=refuse))

    inference_sockets = bound.listeners["inference"]
    management_sockets = bound.listeners["management"]
    apps = {
        "inference": by_path(
            api.serves,
            guarded(api, inference_sockets, cors=api_cors, refuse=api.refuse),
            otherwise=guarded(inference.routes(), inference_sockets, cors=native_cors),
        ),
        "management": guarded(
            management_app,
            management_sockets,
            cors=Cors(config.management_cors_allowed_hosts),
            changes=Origins(
                config.management_cors_allowed_hosts, flag="--management-cors-allowed-host"
            ),
            keys=manage,
        ),
    }
    if (listener := bound.listeners.get("compat openai")) is not None:
        refuse = exact_api.refuse
        apps["compat openai"] = by_path(
            PROBES.__contains__,
            guarded(inference.probes(), listener, cors=native_cors, refuse=refuse),
            otherwise=guarded(exact_api, listener, cors=api_cors, refuse=refuse),
        )
    operators = Authentication(keys, KeyScope.MANAGEMENT)
    pages = Origins(config.management_cors_allowed_hosts, flag="--management-cors-allowed-host")
    site = panel_site(
        bound.listeners,
        keys,
        management=operators_app,
        inference=inference.routes(),
        apis=api,
        use=use,
        operators=operators,
        agents=manage,
        pages=pages,
        captures=config.capture_prompts,
    )
    apps["management"] = below(
        "/panel/",
        hosts(management_sockets, operators)(site.at("/panel/")),
        otherwise=apps["management"],
    )
    if (listener := bound.listeners.get(PANEL)) is not None:
        apps[PANEL] = hosts(listener, operators)(site.at("/"))
    limits = HttpLimits(max_connections=config.max_connections)
    servers = [
        HttpServer(
            app,
            name=name,
            limits=limits,
            budget=budget,
            share=1.0 if name == "management" else PUBLIC_SHARE,
            passes=is_store_path
            if name == "management" and store is not None
            else lambda path: False,
        )
        for name, app in apps.items()
    ]
    return BalancerParts(
        dispatcher,
        load_state=states.load,
        ports=[(server, bound.listeners[server.name]) for server in servers],
        goodbye=goodbye,
        drain_timeout_s=config.drain_timeout_s,
        measure_lag=lag.run,
        run_fleet=fleet.run,
        run_activity=partial(activity.run, dispatcher.position, dispatcher.pools.obstacle),
        run_metrics=metrics.run,
        run_feed=feed.run,
        reload=keys.reload if keys.path is not None or reloads else None,
        model_store=None if store is None else store.run,
    )


def model_store_child(config: BalancerConfig, states: FleetKeeper) -> ModelStoreChild | None:
    """The store's process, not started yet; ConfigurationError for a folder that cannot be used."""
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


def desired_models(models: Sequence[DesiredModel]) -> tuple[bytes, ...]:
    """The JSON of those models that agents fetch; as many as one message to the store holds."""
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
