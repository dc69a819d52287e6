"""A balancer: its ports bound, its parts made and wired together, its tree run."""

from __future__ import annotations

from collections.abc import Callable

import trio

from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.agents.held_changes import HeldChanges
from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.assembly.bound_balancer import SOCKET_NAMES, BoundBalancer, addresses_in
from paddler_trio.balancer.assembly.feed_assembly import addresses_of
from paddler_trio.balancer.assembly.hot_restart_assembly import (
    HotRestart,
    inheritance_of,
    state_locks,
)
from paddler_trio.balancer.assembly.joining_assembly import Joining
from paddler_trio.balancer.assembly.key_quotas import KeyQuotas
from paddler_trio.balancer.assembly.port_apps import PortApps
from paddler_trio.balancer.assembly.port_guards import PortGuards
from paddler_trio.balancer.assembly.request_watch import RequestWatch
from paddler_trio.balancer.assembly.upstream_assembly import REVERSE_PROXY
from paddler_trio.balancer.joining.advertised_address import AdvertisedAddress
from paddler_trio.balancer.reverse_proxy.tunnel_route import is_tunnel_path
from paddler_trio.net.networks import parse_networks
from paddler_trio.net.server.allowed_hosts import own_names
from paddler_trio.net.server.client_identity import FLAG as TRUSTED_PROXY_FLAG
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import PUBLIC_SHARE
from paddler_trio.net.server.listening import beyond_loopback
from paddler_trio.net.server.server import HttpServer
from paddler_trio.nursery_tree.balancer_tree import Addresses, BalancerParts, Serving, run_balancer
from paddler_trio.nursery_tree.state_owner import StateOwner
from paddler_trio.processes.model_store.store_messages import is_store_path
from paddler_trio.system.listen_fds import passed_sockets
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier


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
    activity = RequestActivity(Captures() if config.capture_prompts else None)
    watch = RequestWatch.of(config, activity, addresses["inference"])
    quotas = KeyQuotas.of(config, keys, activity.finished)
    core = BalancerCore.of(config, addresses, keys, activity, (*quotas.observers, *watch.observers))
    quotas.accounts.on_refused = core.history.collector.refused
    core.problems.history_problem = lambda: core.history.problem or quotas.problem
    guards = PortGuards.of(config, keys, host_names)
    listeners, names = bound.listeners, sorted(host_names, key=len)
    address = AdvertisedAddress(listeners["management"], tls is not None, names)
    joining = Joining.of(config, keys, tls, address)
    changes = HeldChanges()
    apps = PortApps(bound, core, guards, quotas, joining, watch.entrance, changes).by_service()
    serving = Serving()
    services = core.services() | watch.services
    if handover is not None:
        serving = hot = handover.serving(core, bound.inheritance)
        services |= handover.services(hot)
    if tls is not None:
        core.watch_certificate(lambda: tls.expires_in_s)
        services["certificate watch"] = tls.run
    return BalancerParts(
        core.dispatcher,
        load_state=core.states.load,
        ports=[(_server(name, app, bound, core), listeners[name]) for name, app in apps.items()],
        goodbyes=(core.moving, core.goodbye),
        drain_timeout_s=config.drain_timeout_s,
        services=services,
        owner=StateOwner(
            core.owned() | joining.owned(config) | dict(quotas.services),
            changes,
            (core.states, joining.registry),
        ),
        serving=serving,
        reloads=[
            *([keys.reload] if keys.path is not None or reloads else []),
            *([] if tls is None else [tls.reload]),
            *watch.reloads,
        ],
    )


def _server(name: str, app: App, bound: BoundBalancer, core: BalancerCore) -> HttpServer:
    is_private = name == "management"
    return HttpServer(
        app,
        name=name,
        limits=HttpLimits(
            max_connections=bound.config.max_connections,
            trusted_proxies=parse_networks(bound.config.trusted_proxies, TRUSTED_PROXY_FLAG),
        ),
        budget=core.budget,
        share=1.0 if is_private else PUBLIC_SHARE,
        passes=_passed_on(core) if is_private else lambda path: False,
        forwards=name == REVERSE_PROXY,
        tls=bound.tls,
    )


def _passed_on(core: BalancerCore) -> Callable[[str], bool]:
    """Return the paths of the management port whose connections leave HTTP."""
    if core.store is None:
        return is_tunnel_path
    return lambda path: is_store_path(path) or is_tunnel_path(path)
