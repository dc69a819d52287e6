"""A balancer: its ports bound, its parts made and wired together, its tree run."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.activity.accounts.account_keeper import AccountKeeper
from paddler_trio.balancer.activity.accounts.account_spans import spans_of
from paddler_trio.balancer.activity.accounts.entrance import Entrance
from paddler_trio.balancer.activity.accounts.request_account import RequestAccount
from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.agents.held_changes import HeldChanges
from paddler_trio.balancer.assembly.balancer_core import BalancerCore, addresses_of
from paddler_trio.balancer.assembly.bound_balancer import (
    REVERSE_PROXY,
    SOCKET_NAMES,
    BoundBalancer,
    PortGuards,
    addresses_in,
)
from paddler_trio.balancer.assembly.joining_assembly import Joining
from paddler_trio.balancer.assembly.port_apps import KeyQuotas, PortApps
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.fleet.state_lock import StateLock, locked
from paddler_trio.balancer.hot_restart.bequest import Bequest, BoundPort
from paddler_trio.balancer.hot_restart.handover_channel import ONLY_LINUX
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.hot_restart.own_successor import OwnSuccessor
from paddler_trio.balancer.hot_restart.restartable import Restartable
from paddler_trio.balancer.joining.announcement import AdvertisedAddress
from paddler_trio.balancer.reverse_proxy.tunnel_exchange import is_tunnel_path
from paddler_trio.net.networks import parse_networks
from paddler_trio.net.server.allowed_hosts import own_names
from paddler_trio.net.server.client_identity import FLAG as TRUSTED_PROXY_FLAG
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import PUBLIC_SHARE
from paddler_trio.net.server.listening import beyond_loopback
from paddler_trio.net.server.server import HttpServer
from paddler_trio.nursery_tree.balancer_tree import Addresses, BalancerParts, Serving, run_balancer
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.state_owner import Run, StateOwner
from paddler_trio.processes.model_store.store_messages import is_store_path
from paddler_trio.system.kernel.process_descriptors import passed_sockets
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.telemetry.line_writer import LineWriter
from paddler_trio.telemetry.otlp_exporter import open_exporter
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.telemetry.trace_context import Sampling


@attrs.frozen(eq=False)
class RequestWatch:
    """``entrance`` goes in front of what answers clients of inference; ``observers`` see the
    requests that become of theirs; ``services`` and ``reloads`` are as in ``BalancerParts``."""

    entrance: Entrance
    observers: Sequence[DispatchObserver]
    services: dict[str, Run]
    reloads: Sequence[Run]

    @classmethod
    def of(
        cls, config: BalancerConfig, activity: RequestActivity, addresses: Sequence[str]
    ) -> RequestWatch:
        """Nothing observes a request if neither traces nor an access log are wanted.

        Args:
          addresses: of the inference port: the name of this balancer in traces.

        Errors:
          ConfigurationError: a bad endpoint, no OpenTelemetry, a file that cannot be written.
        """
        takers: list[Callable[[RequestAccount], None]] = []
        services: dict[str, Run] = {}
        reloads: list[Run] = []
        if config.otlp_endpoint is not None:
            exporter = open_exporter(
                config.otlp_endpoint,
                service="paddler-trio-balancer",
                instance=addresses[0] if addresses else "balancer",
            )
            export = SpanExport(exporter)
            takers.append(partial(_export, export))
            services["span export"] = export.run
        if config.access_log is not None:
            writer = LineWriter(config.access_log_file)
            form = config.access_log
            takers.append(lambda account: writer.put(account.entry().line(form)))
            services["access log"] = writer.run
            if writer.path is not None:
                reloads.append(writer.reopen)
        sampling = Sampling(config.otlp_endpoint is not None, config.trace_sample_ratio)
        if not takers:
            return cls(Entrance(sampling), (), services, reloads)
        keeper = AccountKeeper(activity.in_flight, takers)
        return cls(Entrance(sampling, keeper), (keeper,), services, reloads)


def _export(export: SpanExport, account: RequestAccount) -> None:
    if account.trace.is_exported:
        export.put(partial(spans_of, account))


log = structlog.get_logger("handover")

SUFFIX: Final = ".handover"
"""The ending of the socket beside a state file."""


def handover_path(config: BalancerConfig) -> Path | None:
    """Return where a balancer is asked to hand over; None without a state file: what it desires
    would be lost. ConfigurationError for a bad state database URL."""
    state = state_file(config.state_database)
    if state is None:
        return None
    return config.hot_restart_path or state.with_name(state.name + SUFFIX)


def handover_problem(config: BalancerConfig) -> str | None:
    """Return why no balancer can take over from one of this configuration; None if one can."""
    if handover_path(config) is None:
        return "the state is in memory only: give --state-database file:///absolute/path"
    return None if sys.platform == "linux" else ONLY_LINUX


async def inheritance_of(config: BalancerConfig) -> Inheritance | None:
    """Return what the balancer that runs hands over, if that is wanted and one runs.
    HandoverError."""
    path = handover_path(config)
    if not config.takes_over:
        return None
    found = None if path is None else await Inheritance.ask(path)
    if found is None:
        log.info("no balancer to take over from: starting", path=str(path))
    return found


@attrs.frozen(eq=False)
class HotRestart:
    """Let another process take over from a balancer.

    Args:
      addresses: of each service as it was configured.
    """

    config: BalancerConfig
    notifier: SystemdNotifier
    addresses: Mapping[str, str]
    listeners: Mapping[str, Sequence[socket.socket]]
    locks: Mapping[str, StateLock]

    def serving(self, core: BalancerCore, predecessor: Inheritance | None) -> Restartable:
        """Put hot restart around the tree of this balancer."""
        bequest, drain_s = self._bequest(core.dispatcher), self.config.hot_restart_drain_s
        return Restartable(bequest, predecessor, core.moving, core.moved, drain_s)

    def services(self, serving: Restartable) -> dict[str, Run]:
        """Return what runs beside everything else, by the names of the tasks."""
        return {"successor on SIGUSR2": self._own_successor(serving.bequest.given).run}

    def _bequest(self, dispatcher: Dispatcher) -> Bequest:
        return Bequest(
            handover_path(self.config),
            {
                name: BoundPort(self.addresses[name], sockets)
                for name, sockets in self.listeners.items()
            },
            {
                name: lock.descriptor
                for name, lock in self.locks.items()
                if lock.descriptor is not None
            },
            self._given,
            lambda: len(dispatcher.requests),
        )

    def _own_successor(self, given: trio.Event) -> OwnSuccessor:
        """Do what SIGUSR2 asks for; ``given`` is the bequest's."""
        return OwnSuccessor(self.notifier.variables(), given, handover_problem(self.config))

    def _given(self, pid: int) -> None:
        for lock in self.locks.values():
            lock.give_up()
        if self.notifier.is_listening:
            self.notifier.main_process(pid)


@contextmanager
def state_locks(
    config: BalancerConfig, inheritance: Inheritance | None
) -> Iterator[Mapping[str, StateLock]]:
    """Hold the locks of everything that one balancer alone may write; StateDatabaseError."""

    def passed(name: str) -> int | None:
        return None if inheritance is None else inheritance.take_lock(name)

    with (
        locked(state_file(config.state_database), inherited=passed("state")) as state,
        locked(config.agents_file, flag="--agents-file", inherited=passed("agents")) as agents,
    ):
        yield {"state": state, "agents": agents}


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
