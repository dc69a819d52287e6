"""The balancer, from its first socket to its last.

    services                         outlive everything
    ├─ systemd watchdog
    ├─ heap trim                     gives free memory back
    ├─ reload on SIGHUP              of keys, certificate and access log
    ├─ drain status                  once it is asked to stop
    ├─ state owner                   what writes the state: see ``state_owner.py``
    │  └─ fleet, model store, …
    ├─ handover                      waits for a process that takes over
    ├─ successor on SIGUSR2          starts one
    ├─ event loop lag                measured ten times a second
    ├─ request activity              notes how the queue moves, once a second
    ├─ metrics history               a row every ten seconds
    ├─ event feed                    looks at what somebody watches, up to four times a second
    ├─ …                             what is wanted: audit, access log, spans, certificate watch
    └─ connections                   one task each: clients, operators
       └─ agents                     one task each, named after the agent; closed third
          ├─ departure               tells agents that another process takes over
          └─ requests                one task each, from arrival to ending; drained second
             ├─ predecessor            after a hot restart: until the process before has ended
             └─ listeners            the accept loops of every port; closed first

A request is not a child of its connection: it belongs to *requests*, so that draining is waiting
for one nursery, while the connections that carry the answers, and the agents that produce them,
still live. Nor is an agent: its connection hands it to *agents* when it has become an agent's.

A balancer from which another process takes over ends in the same order, with more time: see
``docs/upgrading.md``.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.net.server.server import HttpServer, wait_all_closed
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.ports import MANAGEMENT, Ports
from paddler_trio.nursery_tree.state_owner import Run, StateOwner
from paddler_trio.system.heap_trim import run_heap_trim
from paddler_trio.system.signals import watch_hangups
from paddler_trio.system.systemd_notify import SystemdNotifier, show_drain

log = structlog.get_logger("balancer")

FLUSH_S = 2.0
"""How long connections may take to send what is written when everything else has ended."""


@attrs.frozen
class Addresses:
    """All that was bound, ``host:port`` each."""

    inference: list[str]
    management: list[str]
    compat_openai: list[str] = attrs.field(factory=list)
    compat_ollama: list[str] = attrs.field(factory=list)
    reverse_proxy: list[str] = attrs.field(factory=list)
    web_admin_panel: list[str] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class BalancerParts:
    """All that the tree gives tasks to.

    Args:
      load_state: reads the desired state, before any port accepts.
      ports: every server with its bound sockets, by the names of ``Addresses``.
      goodbyes: set when sockets and event streams shall end.
      services: what runs beside everything else until cancelled, by the names of their tasks.
      owner: what only one balancer may run.
      serving: how it begins to serve, and how that ends.
      reloads: what SIGHUP does, one after the other; without any it asks for the end.
    """

    dispatcher: Dispatcher
    load_state: Run
    ports: Sequence[tuple[HttpServer, list[socket.socket]]]
    goodbyes: Sequence[trio.Event]
    drain_timeout_s: float
    services: Mapping[str, Run]
    owner: StateOwner = attrs.field(factory=lambda: StateOwner({}))
    serving: Serving = attrs.field(factory=lambda: Serving())
    reloads: Sequence[Run] = ()

    @property
    def servers(self) -> list[HttpServer]:
        """Return all of its ports."""
        return [server for server, _ in self.ports]


@attrs.frozen(eq=False)
class BalancerTree:
    """The nurseries of a balancer that is up, and what lives in them."""

    parts: BalancerParts
    stop: trio.Event
    notifier: SystemdNotifier
    ports: Ports
    services: trio.Nursery
    agents: trio.Nursery
    requests: trio.Nursery

    @property
    def status(self) -> str:
        """Return what ``systemctl status`` shows while it serves."""
        return f"inference on {', '.join(self.ports.addresses['inference'])}"


class Serving:
    """A balancer begins to serve, serves until something ends that, and drains.

    A balancer that takes over from another process, or from which one takes over, does more in each
    step: see ``balancer/hot_restart/restartable.py``.
    """

    async def prepare(self) -> None:
        """The state is read; nothing is served until this returns."""

    async def begin(self, tree: BalancerTree) -> None:
        """Accept on every port."""
        await tree.ports.open_management()
        await tree.ports.open_others()

    async def until_end(self, tree: BalancerTree) -> None:
        """Return when nothing new is to be accepted."""
        await tree.stop.wait()

    def drain(self, tree: BalancerTree) -> None:
        """Nothing new is accepted: bound the time that requests may take."""
        parts = tree.parts
        tree.notifier.stopping()
        left = partial(len, parts.dispatcher.requests)
        tree.services.start_soon(show_drain, tree.notifier, left, name="drain status")
        for server in parts.servers:
            if server.name != MANAGEMENT:  # there the drain is watched
                server.close_after_next()
        parts.dispatcher.drain()
        tree.requests.cancel_scope.deadline = trio.current_time() + parts.drain_timeout_s


async def run_balancer(
    assemble: Callable[[], BalancerParts],
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop``, then drain: listeners, requests, agents, connections, services.

    Started means: the state is read and every port accepts.

    Cancellation: everything ends at once; every client still connected is cut off.
    """
    parts = assemble()
    with trio.open_signal_receiver(signal.SIGHUP) if parts.reloads else nullcontext() as hangups:
        await _serve_and_drain(parts, stop, hangups, notifier, task_status)


async def _serve_and_drain(
    parts: BalancerParts,
    stop: trio.Event,
    hangups: AsyncIterator[int] | None,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses],
) -> None:
    """Run the whole tree.

    ``hangups``: those that come before it serves are kept until it does. Whoever is taken over from
    makes this the main process of a service, which may be reloaded, before that.
    """
    serving = parts.serving
    await parts.load_state()
    await serving.prepare()
    async with trio.open_nursery() as services:
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        services.start_soon(run_heap_trim, name="heap trim")
        for name, run in parts.services.items():
            services.start_soon(run, name=name)
        services.start_soon(parts.owner.run, name="state owner")
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as agents:
                agents.start_soon(_cut_when_cancelled, parts.servers, name="cutter")
                async with trio.open_nursery() as requests:
                    parts.dispatcher.open(agents=agents, requests=requests)
                    async with trio.open_nursery() as listeners:
                        ports = Ports(parts.ports, listeners, connections)
                        tree = BalancerTree(
                            parts, stop, notifier, ports, services, agents, requests
                        )
                        await serving.begin(tree)
                        _is_up(tree, hangups, task_status)
                        await serving.until_end(tree)
                        listeners.cancel_scope.cancel(reason="stopping: no new connections")
                    serving.drain(tree)
                parts.dispatcher.drain()
                for goodbye in parts.goodbyes:
                    goodbye.set()
                await _flush(parts.servers)
                agents.cancel_scope.cancel(reason="stopped: every answer had its time")
            connections.cancel_scope.cancel(reason="stopped: every answer had its time")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("balancer down")


def _is_up(
    tree: BalancerTree,
    hangups: AsyncIterator[int] | None,
    task_status: trio.TaskStatus[Addresses],
) -> None:
    addresses = Addresses(**tree.ports.addresses)
    task_status.started(addresses)
    tree.notifier.ready(tree.status)
    log.info("balancer up", **attrs.asdict(addresses))
    if hangups is not None:
        reload = partial(_reload, tree.parts.reloads, tree.notifier)
        tree.services.start_soon(watch_hangups, hangups, reload, name="reload on SIGHUP")


async def _flush(servers: Sequence[HttpServer]) -> None:
    """Give connections a moment to send what is written."""
    with trio.move_on_after(FLUSH_S):
        for server in servers:
            server.close_idle()
        await wait_all_closed(servers)


async def _reload(reloads: Sequence[Run], notifier: SystemdNotifier) -> None:
    notifier.reloading()
    for reload in reloads:
        await reload()
    notifier.reloaded()


async def _cut_when_cancelled(servers: list[HttpServer]) -> None:
    """A write to a client that does not read is shielded: only closing its socket ends it."""
    try:
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.cut_all()
