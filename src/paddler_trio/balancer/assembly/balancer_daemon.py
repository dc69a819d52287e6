"""A balancer: its ports bound, its parts made and wired together, its tree run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.accounts.entrance import Entrance
from paddler_trio.balancer.activity.event_routes import EventRoutes
from paddler_trio.balancer.activity.log_routes import LogRoutes
from paddler_trio.balancer.activity.metrics_routes import MetricsRoutes
from paddler_trio.balancer.activity.request_routes import RequestRoutes
from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.agents.held_changes import HeldChanges
from paddler_trio.balancer.agents.paddler_v1_agents import PaddlerV1Agents
from paddler_trio.balancer.apis.api_router import CORS_RULES
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.assembly.feed_assembly import addresses_of
from paddler_trio.balancer.assembly.hot_restart_assembly import (
    HotRestart,
    inheritance_of,
    state_locks,
)
from paddler_trio.balancer.assembly.hub_models import AnsweredHubModels
from paddler_trio.balancer.assembly.joining_assembly import Joining
from paddler_trio.balancer.assembly.key_quotas import KeyQuotas
from paddler_trio.balancer.assembly.panel_assembly import PANEL, panel_info, panel_site
from paddler_trio.balancer.assembly.port_guards import PortGuards
from paddler_trio.balancer.assembly.request_watch import RequestWatch
from paddler_trio.balancer.assembly.upstream_assembly import REVERSE_PROXY, Upstreams
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.front.cors import Cors
from paddler_trio.balancer.front.exposure import check_exposure
from paddler_trio.balancer.front.hub_routes import HubRoutes
from paddler_trio.balancer.front.inference_routes import PROBES, InferenceRoutes
from paddler_trio.balancer.front.management_routes import ManagementRoutes, may_change
from paddler_trio.balancer.front.model_store_routes import ModelStoreRoutes
from paddler_trio.balancer.front.no_model_store import no_model_store
from paddler_trio.balancer.front.paddler_v1_routes import PaddlerV1Routes
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.joining.advertised_address import AdvertisedAddress
from paddler_trio.balancer.keys.audit_routes import AuditRoutes
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.balancer.keys.key_accounts import KeyAccounts
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_routes import KeyRoutes
from paddler_trio.balancer.panel.panel_site import below
from paddler_trio.balancer.reverse_proxy.slot_paths import SLOT_PATHS
from paddler_trio.balancer.reverse_proxy.tunnel_route import TunnelRoute, is_tunnel_path
from paddler_trio.balancer.status.status_routes import StatusRoutes
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.networks import parse_networks
from paddler_trio.net.server.allowed_hosts import own_names
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import PUBLIC_SHARE
from paddler_trio.net.server.listening import adopt, beyond_loopback, listen, warn_of_plain_ports
from paddler_trio.net.server.router import by_path, http_only
from paddler_trio.net.server.server import HttpServer
from paddler_trio.net.server.trusted_proxies import FLAG as TRUSTED_PROXY_FLAG
from paddler_trio.net.tls.server_tls import ServerTls, server_tls
from paddler_trio.nursery_tree.balancer_tree import Addresses, BalancerParts, run_balancer
from paddler_trio.nursery_tree.state_owner import Run, StateOwner
from paddler_trio.processes.model_store.store_messages import PREFIX, is_store_path
from paddler_trio.system.listen_fds import passed_sockets
from paddler_trio.system.logs.log_ring import RECENT
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.telemetry.exposition import Exposition


@attrs.frozen(eq=False)
class BoundBalancer:
    """Ports are bound before anything runs: one in use is an error and nothing has started."""

    config: BalancerConfig
    listeners: Mapping[str, list[socket.socket]]
    """By the name of the service: inference, management and, if there are such ports, compat
    openai, reverse proxy and web admin panel."""
    keys: KeyRing = attrs.field(factory=KeyRing)
    tls: ServerTls | None = None
    """Of every port; None for ports without TLS."""
    inheritance: Inheritance | None = None
    """From the balancer that this one takes over from."""

    @classmethod
    def bind(
        cls,
        config: BalancerConfig,
        *,
        inheritance: Inheritance | None = None,
        passed: Mapping[str, list[socket.socket]] = MappingProxyType({}),
    ) -> BoundBalancer:
        """Raises ConfigurationError, with nothing left open; also for a port that would be open to
        a network without saying so.

        Args:
          inheritance: whose sockets are used where they are bound for the same address.
          passed: listening sockets of systemd, by :data:`SOCKET_NAMES`; used in any case.
        """
        listeners = {name.replace("-", " "): sockets for name, sockets in passed.items()}
        try:
            keys = KeyRing.read(config.api_key_file)
            tls = server_tls(config)
            addresses = addresses_in(config)
            for name in listeners.keys() - addresses.keys():
                raise ConfigurationError(
                    f"systemd passed a socket for {name}, and there is no such service: give "
                    "its address, which is not bound then"
                )
            # one by one: what was bound before an error is there to be closed
            for name, address in addresses.items():
                sockets = listeners.get(name)
                if sockets is None and inheritance is not None:
                    sockets = inheritance.take_port(name, address)
                if sockets is not None:
                    adopt(sockets)
                listeners[name] = listen(address) if sockets is None else sockets
            check_exposure(
                keys,
                inference=[
                    *listeners["inference"],
                    *listeners.get("compat openai", ()),
                    *listeners.get(REVERSE_PROXY, ()),
                ],
                management=listeners["management"],
                panel=listeners.get(PANEL, ()),
                insecure_management=config.insecure_management,
            )
            if tls is None:
                warn_of_plain_ports([each for bound in listeners.values() for each in bound])
        except BaseException:
            for bound in listeners.values():
                for each in bound:
                    each.close()
            raise
        return cls(config, listeners, keys, tls, inheritance)


SOCKET_NAMES: Final = frozenset(
    {"inference", "management", "compat-openai", "reverse-proxy", "web-admin-panel"}
)
"""Of the sockets that systemd may pass."""


def addresses_in(config: BalancerConfig) -> dict[str, str]:
    """The address of each service that there is to be."""
    addresses = {
        "inference": config.inference_addr,
        "management": config.management_addr,
        "compat openai": config.compat_openai_addr,
        REVERSE_PROXY: config.reverseproxy_addr,
        PANEL: config.web_admin_panel_addr,
    }
    return {name: address for name, address in addresses.items() if address is not None}


async def run_balancer_daemon(
    config: BalancerConfig, stop: trio.Event, *, notifier: SystemdNotifier
) -> None:
    """A balancer as a process of its own: it takes over from another one if it shall, and takes
    the sockets that systemd passed.

    Raises:
      ConfigurationError, StateDatabaseError, HandoverError: before anything is served.
    """
    passed = passed_sockets(SOCKET_NAMES)
    inheritance = await inheritance_of(config)
    try:
        bound = BoundBalancer.bind(config, inheritance=inheritance, passed=passed)
        await serve_balancer(bound, stop, notifier=notifier)
    finally:
        if inheritance is not None:
            inheritance.close()


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

    config, inheritance = bound.config, bound.inheritance
    if inheritance is not None:
        await inheritance.take_state()
    with state_locks(config, inheritance) as locks:
        handover = HotRestart(config, notifier, addresses_in(config), bound.listeners, locks)

        def assemble() -> BalancerParts:
            return balancer_parts(
                bound, host_names=names, reloads=notifier.is_listening, handover=handover
            )

        await run_balancer(assemble, stop, notifier=notifier, task_status=task_status)


def balancer_parts(
    bound: BoundBalancer,
    *,
    host_names: frozenset[str] = frozenset(),
    reloads: bool = False,
    handover: HotRestart | None = None,
) -> BalancerParts:
    """Call it inside the trio run; ConfigurationError for a bad state database URL, limit or name.

    Args:
      host_names: of this machine, under which ports answer that ask for no key.
      reloads: SIGHUP reloads the keys, also where there are none.
      handover: lets another process take over; None: none can.
    """
    config, keys, tls = bound.config, bound.keys, bound.tls
    addresses = addresses_of(bound.listeners)
    core = BalancerCore.of(config, addresses, keys)
    if tls is not None:
        core.measures.certificate_left_s = lambda: tls.expires_in_s
        core.problems.certificate_left_s = lambda: tls.expires_in_s
    watch = RequestWatch.of(config, core, addresses["inference"])
    quotas = KeyQuotas.of(config, keys, core)
    guards = PortGuards.of(config, keys, host_names)
    address = AdvertisedAddress(
        bound.listeners["management"], tls is not None, sorted(host_names, key=len)
    )
    joining = Joining.of(config, keys, tls, address)
    changes = HeldChanges()
    limits = HttpLimits(
        max_connections=config.max_connections,
        trusted_proxies=parse_networks(config.trusted_proxies, TRUSTED_PROXY_FLAG),
    )
    servers = [
        HttpServer(
            app,
            name=name,
            limits=limits,
            budget=core.budget,
            share=1.0 if name == "management" else PUBLIC_SHARE,
            passes=_passed_on(core) if name == "management" else lambda path: False,
            forwards=name == REVERSE_PROXY,
            tls=tls,
        )
        for name, app in port_apps(
            bound, core, guards, quotas, joining, watch.entrance, changes
        ).items()
    ]
    bequest = None if handover is None else handover.bequest(core.dispatcher)
    successors: dict[str, Run] = {}
    if handover is not None and bequest is not None:
        successors["successor on SIGUSR2"] = handover.own_successor(bequest.given).run
    return BalancerParts(
        core.dispatcher,
        load_state=core.states.load,
        ports=[(server, bound.listeners[server.name]) for server in servers],
        goodbye=core.goodbye,
        drain_timeout_s=config.drain_timeout_s,
        services=core.services()
        | watch.services
        | successors
        | ({} if tls is None else {"certificate watch": tls.run}),
        owner=StateOwner(
            core.owned() | {"agents' credentials": joining.registry.run} | dict(quotas.services),
            changes,
            (core.states, joining.registry),
        ),
        moving=core.moving,
        moved=core.moved,
        bequest=bequest,
        predecessor=bound.inheritance,
        handover_drain_s=config.hot_restart_drain_s,
        reloads=[
            *([keys.reload] if keys.path is not None or reloads else []),
            *([] if tls is None else [tls.reload]),
            *watch.reloads,
        ],
    )


def port_apps(
    bound: BoundBalancer,
    core: BalancerCore,
    guards: PortGuards,
    quotas: KeyQuotas,
    joining: Joining,
    entrance: Entrance,
    changes: HeldChanges,
) -> dict[str, App]:
    """The application of each port, guarded, by the name of its service."""
    config, listeners = bound.config, bound.listeners
    dispatcher, states = core.dispatcher, core.states
    deployments = Deployments(
        dispatcher,
        states,
        config.strict_model_names,
        states.find,
        lambda: states.current.state.deployments,
    )
    agents = joining.guard(config, guards.manage, core.problems.refused)
    core.problems.suspicious = joining.registry.suspicious
    inference = InferenceRoutes(dispatcher, states, core.goodbye, deployments, moved=core.moved)
    native = inference.routes()
    api, exact_api = api_routers(config, dispatcher, states, deployments)
    operators_app = audited(
        changes.before(
            management_routes(config, core, bound.keys, quotas.accounts, joining).app(), may_change
        ),
        core.audit,
        changes=may_change,
    )
    store_app = audited(
        no_model_store if core.store is None else ModelStoreRoutes(core.store),
        core.audit,
        changes=lambda exchange: False,
    )
    management_app = by_path(is_store_path, store_app, otherwise=operators_app)
    management_app = by_path(is_tunnel_path, TunnelRoute(core.dispatcher), otherwise=management_app)
    upstreams = Upstreams.of(config, core, guards, deployments)
    limited = quotas.limiter(http_only(api.routes_http, native))
    native_cors = Cors(config.inference_cors_allowed_hosts)
    api_cors = Cors(config.inference_cors_allowed_hosts, CORS_RULES)
    info = panel_info(
        listeners,
        agents_need_key=lambda: agents.agents_need_key,
        captures=config.capture_prompts,
        is_encrypted=bound.tls is not None,
    )
    site = panel_site(
        info,
        bound.keys,
        management=operators_app,
        inference=limited,
        apis=api,
        limited_apis=quotas.limited(api),
        use=guards.use,
        operators=guards.operate,
        pages=guards.management_pages,
        audit=core.audit,
    )
    public, private = listeners["inference"], listeners["management"]
    apps = {
        "inference": entrance(
            by_path(
                api.serves,
                guards.inference(
                    upstreams.front(quotas.limited(api), api.refuse, quotas.limiter),
                    public,
                    api_cors,
                    api.refuse,
                ),
                otherwise=guards.inference(limited, public, native_cors),
            ),
            lambda path: api.routes.find(path).pattern or native.pattern_of(path),
        ),
        "management": below(
            "/panel/",
            guards.hosts(private, guards.operate)(site.at("/panel/")),
            otherwise=guards.management(
                management_app, private, Cors(config.management_cors_allowed_hosts), agents
            ),
        ),
    }
    if (listener := listeners.get("compat openai")) is not None:
        refuse = exact_api.refuse
        apps["compat openai"] = entrance(
            by_path(
                PROBES.__contains__,
                guards.inference(inference.probes(), listener, native_cors, refuse),
                otherwise=guards.inference(quotas.limited(exact_api), listener, api_cors, refuse),
            ),
            lambda path: exact_api.routes.find(path).pattern,
        )
    if (listener := listeners.get(REVERSE_PROXY)) is not None:
        proxy = guards.forwarded(quotas.limiter(upstreams.proxy()), listener)
        apps[REVERSE_PROXY] = entrance(proxy, lambda path: path if path in SLOT_PATHS else "")
    if (listener := listeners.get(PANEL)) is not None:
        apps[PANEL] = guards.hosts(listener, guards.operate)(site.at("/"))
    return apps


def _passed_on(core: BalancerCore) -> Callable[[str], bool]:
    """The paths of the management port whose connections leave HTTP."""
    if core.store is None:
        return is_tunnel_path
    return lambda path: is_store_path(path) or is_tunnel_path(path)


def management_routes(
    config: BalancerConfig,
    core: BalancerCore,
    keys: KeyRing,
    accounts: KeyAccounts,
    joining: Joining,
) -> ManagementRoutes:
    """What operators and agents may ask of this balancer."""
    agents = AgentSocket(
        core.dispatcher,
        core.goodbye,
        silence_s=config.agent_silence_s,
        store_path=None if core.store is None else PREFIX,
    )
    return ManagementRoutes(
        core.dispatcher,
        core.states,
        agents,
        core.goodbye,
        keys,
        core.rollouts,
        attrs.evolve(core.problems.progress, rollouts=core.rollouts.of),
        more=(
            EventRoutes(core.feed, core.moving),
            RequestRoutes(core.activity),
            HubRoutes(AnsweredHubModels()),
            MetricsRoutes(core.metrics),
            Exposition(config.metrics_prefix, core.measures.collect),
            LogRoutes(RECENT),
            joining.exchange,
            joining.tokens,
            AuditRoutes(core.audit),
            StatusRoutes(core.problems, core.problems.known),
            KeyRoutes(keys, accounts.used),
            PaddlerV1Routes(PaddlerV1Agents(core.dispatcher), core.goodbye),
        ),
        moving=core.moving,
    )
