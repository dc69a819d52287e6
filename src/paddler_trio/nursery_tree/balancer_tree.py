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
    ├─ …                             what writes or sends, if there is such a thing: audit and
    │                                access log, spans; the certificate watch
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

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.daemon.heap_trim import run_heap_trim
from paddler_trio.daemon.signals import watch_hangups
from paddler_trio.daemon.systemd_notify import SystemdNotifier
from paddler_trio.nursery_tree.departure import Departure
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.drain_status import show_drain
from paddler_trio.nursery_tree.state_owner import Run, StateOwner
from paddler_trio.nursery_tree.synchronization import wait_any

log = structlog.get_logger("balancer")

FLUSH_S = 2.0
"""How long connections may take to send what is written when everything else has ended."""
SETTLE_S = 0.5
"""How long clients are given to make new connections, which another process accepts next."""
FRESH_S = 2.0
"""How long clients of connections that were accepted here have for their first request."""
MANAGEMENT = "management"
"""The name of the service that agents dial."""


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

    def close_after_next(self) -> None:
        """Every connection, new ones too, ends with the response that is next."""
        ...

    @property
    def num_fresh(self) -> int:
        """How many connections have sent no request yet."""
        ...

    def close_quiet(self, *, fresh: bool) -> None:
        """End connections on which nothing happens; also new ones if ``fresh``."""
        ...

    def close_idle(self) -> None: ...

    def cut_all(self) -> None: ...

    async def wait_all_closed(self) -> None: ...


class Bequest(Protocol):
    """Waits for a process that takes over; see ``hot_restart/bequest.py``."""

    given: trio.Event
    agents_may_come: trio.Event
    all_may_come: trio.Event

    async def run(self, state: StateOwner) -> None: ...


class Predecessor(Protocol):
    """The process that this one takes over from; see ``hot_restart/inheritance.py``."""

    async def ready(self) -> None:
        """Returns when the management port is this process's."""
        ...

    async def wait_all(self) -> None: ...

    async def wait_end(self, show: Callable[[int], None]) -> None: ...


@attrs.frozen(eq=False)
class BalancerParts:
    """What the tree gives tasks to.

    Args:
      load_state: reads the desired state, before any port accepts.
      ports: every server with its bound sockets, by the names of ``Addresses``.
      goodbye: set when sockets and event streams shall end.
      services: what runs beside everything else until cancelled, by the names of their tasks.
      owner: what only one balancer may run.
      moving: set when another process has the management port.
      moved: set when it has all ports: sockets of clients end as soon as they are idle.
      bequest: None: no process can take over.
      predecessor: None: there was none.
      handover_drain_s: how long requests may take then.
      reloads: what SIGHUP does, one after the other; without any it is not handled.
    """

    dispatcher: Dispatcher
    load_state: Run
    ports: list[tuple[Server, list[socket.socket]]]
    goodbye: trio.Event
    drain_timeout_s: float
    services: Mapping[str, Run]
    owner: StateOwner = attrs.field(factory=lambda: StateOwner({}))
    moving: trio.Event = attrs.field(factory=trio.Event)
    moved: trio.Event = attrs.field(factory=trio.Event)
    bequest: Bequest | None = None
    predecessor: Predecessor | None = None
    handover_drain_s: float = 3600.0
    reloads: Sequence[Run] = ()


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
    await parts.load_state()
    if parts.predecessor is not None:
        await parts.predecessor.ready()  # until here nothing was served, and all can go back
    servers = [server for server, _ in parts.ports]
    given = trio.Event() if parts.bequest is None else parts.bequest.given
    async with trio.open_nursery() as services:
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        services.start_soon(run_heap_trim, name="heap trim")
        for name, run in parts.services.items():
            services.start_soon(run, name=name)
        if parts.reloads:
            reload = partial(_reload, parts.reloads, notifier)
            await services.start(watch_hangups, reload, name="reload on SIGHUP")
        services.start_soon(parts.owner.run, name="state owner")
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as agents:
                agents.start_soon(_cut_when_cancelled, servers, name="cutter")
                async with trio.open_nursery() as requests:
                    parts.dispatcher.open(agents=agents, requests=requests)
                    async with trio.open_nursery() as listeners:
                        ports = _Ports(parts.ports, listeners, connections)
                        await ports.open(parts.predecessor)
                        addresses = Addresses(**ports.addresses)
                        status = f"inference on {', '.join(addresses.inference)}"
                        task_status.started(addresses)
                        notifier.ready(status)
                        log.info("balancer up", **attrs.asdict(addresses))
                        if parts.predecessor is not None:
                            show = partial(_show_predecessor, notifier, status)
                            requests.start_soon(
                                parts.predecessor.wait_end, show, name="predecessor"
                            )
                        if parts.bequest is not None:
                            services.start_soon(parts.bequest.run, parts.owner, name="handover")
                        await wait_any(stop, given)
                        if given.is_set():
                            await _hand_over(parts, ports, agents)
                        listeners.cancel_scope.cancel(reason="stopping: no new connections")
                    if given.is_set():
                        requests.cancel_scope.deadline = (
                            trio.current_time() + parts.handover_drain_s
                        )
                        hasten = partial(_hasten, stop, requests, parts.drain_timeout_s)
                        services.start_soon(hasten, name="stop watch")
                        # a call may ask for more while its connection is open
                        requests.start_soon(_finish_connections, servers, name="connections")
                    else:
                        notifier.stopping()
                        left = partial(len, parts.dispatcher.requests)
                        services.start_soon(show_drain, notifier, left, name="drain status")
                        parts.dispatcher.drain()
                        requests.cancel_scope.deadline = trio.current_time() + parts.drain_timeout_s
                parts.dispatcher.drain()
                parts.moving.set()
                parts.goodbye.set()
                with trio.move_on_after(FLUSH_S):
                    for server in servers:
                        server.close_idle()
                    await _wait_all_closed(servers)
                agents.cancel_scope.cancel(reason="stopped: every answer had its time")
            connections.cancel_scope.cancel(reason="stopped: every answer had its time")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("balancer down")


@attrs.define(eq=False)
class _Ports:
    """The accept loops; that of the management port can be ended before the others."""

    ports: Sequence[tuple[Server, list[socket.socket]]]
    listeners: trio.Nursery
    connections: trio.Nursery
    addresses: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _management: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def open(self, predecessor: Predecessor | None) -> None:
        """Accept: management first, and the others when the predecessor has let go of them."""
        for server, sockets in self.ports:
            if server.name == MANAGEMENT:
                await self._start(server, sockets, self._management)
        if predecessor is not None:
            await predecessor.wait_all()
        for server, sockets in self.ports:
            if server.name != MANAGEMENT:
                await self._start(server, sockets, trio.CancelScope())

    def close_management(self) -> None:
        """Accept no operator and no agent any more; those that wait in the queue of the socket are
        the other process's."""
        self._management.cancel(reason="another process accepts")

    async def _start(
        self, server: Server, sockets: list[socket.socket], scope: trio.CancelScope
    ) -> None:
        async def serve(*, task_status: trio.TaskStatus[list[str]]) -> None:
            with scope:
                await server.serve(sockets, connections=self.connections, task_status=task_status)

        found = await self.listeners.start(serve, name=f"{server.name} listener")
        self.addresses[server.name.replace(" ", "_")] = found


async def _hand_over(parts: BalancerParts, ports: _Ports, agents: trio.Nursery) -> None:
    """The state is another process's. Let it have the agents, then the clients; requests that this
    one has begun go on."""
    assert parts.bequest is not None
    log.info("handing over: agents first")
    ports.close_management()
    parts.bequest.agents_may_come.set()
    parts.moving.set()
    departure = Departure(parts.dispatcher)
    await agents.start(departure.run, name="departure")
    for server, _ in parts.ports:
        server.close_after_next()
    async with trio.open_nursery() as both:
        both.start_soon(trio.sleep, SETTLE_S)
        both.start_soon(departure.wait_followed)
    ports.listeners.cancel_scope.cancel(reason="another process accepts")
    parts.bequest.all_may_come.set()
    parts.moved.set()
    servers = [server for server, _ in parts.ports]
    for server in servers:
        server.close_quiet(fresh=False)
    departure.let_go(lambda: sum(each.num_fresh for each in servers if each.name != MANAGEMENT))
    log.info("handed over: finishing what runs", requests=len(parts.dispatcher.requests))


async def _hasten(stop: trio.Event, requests: trio.Nursery, drain_timeout_s: float) -> None:
    """A signal to stop leaves a balancer that was taken over from as much time as any other."""
    await stop.wait()
    scope = requests.cancel_scope
    scope.deadline = min(scope.deadline, trio.current_time() + drain_timeout_s)


def _show_predecessor(notifier: SystemdNotifier, status: str, num_left: int) -> None:
    plural = "" if num_left == 1 else "s"
    notifier.status(f"{status}; the process before has {num_left} request{plural} left")


async def _reload(reloads: Sequence[Run], notifier: SystemdNotifier) -> None:
    notifier.reloading()
    for reload in reloads:
        await reload()
    notifier.reloaded()


async def _finish_connections(servers: Sequence[Server]) -> None:
    """Wait for the last responses; who has not asked for one soon is not waited for."""
    with trio.move_on_after(FRESH_S):
        await _wait_all_closed(servers)
    for server in servers:
        server.close_quiet(fresh=True)
    await _wait_all_closed(servers)


async def _wait_all_closed(servers: Sequence[Server]) -> None:
    for server in servers:
        await server.wait_all_closed()


async def _cut_when_cancelled(servers: list[Server]) -> None:
    """A write to a client that does not read is shielded: only closing its socket ends it."""
    try:
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.cut_all()
