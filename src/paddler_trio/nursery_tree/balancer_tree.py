"""The balancer, from its first socket to its last.

    services                         outlive everything
    ├─ systemd watchdog
    ├─ heap trim                     gives free memory back
    ├─ reload on SIGHUP              of keys, certificate and access log
    ├─ model store                   a child process, started again under a restart budget
    ├─ event loop lag                measured ten times a second
    ├─ fleet                         plans, and sends agents what they shall serve
    ├─ request activity              notes how the queue moves, once a second
    ├─ metrics history               a row every ten seconds
    ├─ event feed                    looks at what somebody watches, up to four times a second
    ├─ …                             what writes or sends, if there is such a thing: agents'
    │                                credentials, key usage, audit and access log, spans, StatsD;
    │                                the certificate watch
    └─ connections                   one task each: clients, operators
       └─ agents                     one task each, named after the agent; closed third
          └─ requests                one task each, from arrival to ending; drained second
             └─ listeners            the accept loops of every port; closed first

A request is not a child of its connection: it belongs to *requests*, so that draining is waiting
for one nursery, while the connections that carry the answers, and the agents that produce them,
still live. Nor is an agent: its connection hands it to *agents* when it has become an agent's.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import attrs
import structlog
import trio

from paddler_trio.daemon.heap_trim import run_heap_trim
from paddler_trio.daemon.signals import watch_hangups
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.errors import ModelStoreError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.drain_status import show_drain
from paddler_trio.nursery_tree.restart_budget import RestartBudget
from paddler_trio.nursery_tree.supervise import Child, supervise

log = structlog.get_logger("balancer")

Run: TypeAlias = Callable[[], Awaitable[None]]
"""A task that runs until it is cancelled."""

FLUSH_S = 2.0
"""How long connections may take to send what is written when everything else has ended."""
STORE_RESTARTS = 12
STORE_PERIOD_S = 60.0


@attrs.frozen
class Addresses:
    """What was bound, ``host:port`` each."""

    inference: list[str]
    management: list[str]
    compat_openai: list[str] = attrs.field(factory=list)
    reverse_proxy: list[str] = attrs.field(factory=list)
    web_admin_panel: list[str] = attrs.field(factory=list)


class Server(Protocol):
    """One port: its accept loop, and the connections that it accepted."""

    @property
    def name(self) -> str: ...

    async def serve(
        self,
        sockets: Iterable[socket.socket],
        *,
        connections: trio.Nursery,
        task_status: trio.TaskStatus[list[str]] = ...,
    ) -> None:
        """Accept until cancelled. Started with the addresses."""
        ...

    def close_idle(self) -> None: ...

    def cut_all(self) -> None: ...

    async def wait_all_closed(self) -> None: ...


@attrs.frozen(eq=False)
class BalancerParts:
    """What the tree gives tasks to.

    Args:
      load_state: reads the desired state, before any port accepts.
      ports: every server with its bound sockets, by the names of ``Addresses``.
      goodbye: set when sockets and event streams shall end.
      services: what runs beside everything else until cancelled, by the names of their tasks.
      reloads: what SIGHUP does, one after the other; without any it is not handled.
      model_store: one life of the store's process; None if there is no store.
    """

    dispatcher: Dispatcher
    load_state: Callable[[], Awaitable[None]]
    ports: list[tuple[Server, list[socket.socket]]]
    goodbye: trio.Event
    drain_timeout_s: float
    services: Mapping[str, Run]
    reloads: Sequence[Run] = ()
    model_store: Run | None = None


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
    servers = [server for server, _ in parts.ports]
    await parts.load_state()
    async with trio.open_nursery() as services:
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        services.start_soon(run_heap_trim, name="heap trim")
        for name, run in parts.services.items():
            services.start_soon(run, name=name)
        if parts.reloads:
            reload = partial(_reload, parts.reloads, notifier)
            await services.start(watch_hangups, reload, name="reload on SIGHUP")
        if parts.model_store is not None:
            services.start_soon(_keep_model_store, parts.model_store, name="model store")
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as agents:
                agents.start_soon(_cut_when_cancelled, servers, name="cutter")
                async with trio.open_nursery() as requests:
                    parts.dispatcher.open(agents=agents, requests=requests)
                    async with trio.open_nursery() as listeners:
                        listening = {
                            server.name.replace(" ", "_"): await listeners.start(
                                partial(server.serve, sockets, connections=connections),
                                name=f"{server.name} listener",
                            )
                            for server, sockets in parts.ports
                        }
                        addresses = Addresses(**listening)
                        task_status.started(addresses)
                        notifier.ready(f"inference on {', '.join(addresses.inference)}")
                        log.info("balancer up", **attrs.asdict(addresses))
                        await stop.wait()
                        listeners.cancel_scope.cancel(reason="stopping: no new connections")
                    notifier.stopping()
                    left = partial(len, parts.dispatcher.requests)
                    services.start_soon(show_drain, notifier, left, name="drain status")
                    parts.dispatcher.drain()
                    requests.cancel_scope.deadline = trio.current_time() + parts.drain_timeout_s
                parts.goodbye.set()
                with trio.move_on_after(FLUSH_S):
                    for server in servers:
                        server.close_idle()
                    for server in servers:
                        await server.wait_all_closed()
                agents.cancel_scope.cancel(reason="stopped: every answer had its time")
            connections.cancel_scope.cancel(reason="stopped: every answer had its time")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("balancer down")


async def _reload(reloads: Sequence[Run], notifier: SystemdNotifier) -> None:
    notifier.reloading()
    for reload in reloads:
        await reload()
    notifier.reloaded()


async def _keep_model_store(run: Callable[[], Awaitable[None]]) -> None:
    """Run it again after each crash; too many in a minute mean a pause, not the end: agents fetch
    from the source meanwhile."""
    budget = RestartBudget(max_restarts=STORE_RESTARTS, period_s=STORE_PERIOD_S)
    await supervise(
        Child(
            "model store", run, restart_on=(ModelStoreError,), budget=budget, wait_for_refill=True
        )
    )


async def _cut_when_cancelled(servers: list[Server]) -> None:
    """A write to a client that does not read is shielded: only closing its socket ends it."""
    try:
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.cut_all()
