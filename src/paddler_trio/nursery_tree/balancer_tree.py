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

import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.handing_over import (
    Bequest,
    Predecessor,
    finish_connections,
    hand_over,
    hasten_end,
)
from paddler_trio.nursery_tree.ports import MANAGEMENT, Ports, Server, wait_all_closed
from paddler_trio.nursery_tree.state_owner import Run, StateOwner
from paddler_trio.system.heap_trim import run_heap_trim
from paddler_trio.system.signals import watch_hangups
from paddler_trio.system.synchronization import wait_any
from paddler_trio.system.systemd_notify import SystemdNotifier, show_drain

log = structlog.get_logger("balancer")

FLUSH_S = 2.0
"""How long connections may take to send what is written when everything else has ended."""


@attrs.frozen
class Addresses:
    """What was bound, ``host:port`` each."""

    inference: list[str]
    management: list[str]
    compat_openai: list[str] = attrs.field(factory=list)
    reverse_proxy: list[str] = attrs.field(factory=list)
    web_admin_panel: list[str] = attrs.field(factory=list)


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
      reloads: what SIGHUP does, one after the other; without any it asks for the end.
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
    with trio.open_signal_receiver(signal.SIGHUP) if parts.reloads else nullcontext() as hangups:
        await _serve_and_drain(parts, stop, hangups, notifier, task_status)


async def _serve_and_drain(
    parts: BalancerParts,
    stop: trio.Event,
    hangups: AsyncIterator[int] | None,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses],
) -> None:
    """``hangups``: those that come before it serves are kept until it does. Whoever is taken over
    from makes this the main process of a service, which may be reloaded, before that."""
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
        services.start_soon(parts.owner.run, name="state owner")
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as agents:
                agents.start_soon(_cut_when_cancelled, servers, name="cutter")
                async with trio.open_nursery() as requests:
                    parts.dispatcher.open(agents=agents, requests=requests)
                    async with trio.open_nursery() as listeners:
                        ports = Ports(parts.ports, listeners, connections)
                        await ports.open(
                            None if parts.predecessor is None else parts.predecessor.wait_all
                        )
                        addresses = Addresses(**ports.addresses)
                        status = f"inference on {', '.join(addresses.inference)}"
                        task_status.started(addresses)
                        notifier.ready(status)
                        log.info("balancer up", **attrs.asdict(addresses))
                        if hangups is not None:
                            reload = partial(_reload, parts.reloads, notifier)
                            services.start_soon(
                                watch_hangups, hangups, reload, name="reload on SIGHUP"
                            )
                        if parts.predecessor is not None:
                            show = partial(_show_predecessor, notifier, status)
                            requests.start_soon(
                                parts.predecessor.wait_end, show, name="predecessor"
                            )
                        if parts.bequest is not None:
                            services.start_soon(parts.bequest.run, parts.owner, name="handover")
                        await wait_any(stop, given)
                        is_given = given.is_set()
                        if parts.bequest is not None and not is_given:
                            parts.bequest.close()
                        elif parts.bequest is not None:
                            await hand_over(
                                parts.bequest,
                                parts.dispatcher,
                                ports,
                                agents,
                                moving=parts.moving,
                                moved=parts.moved,
                            )
                        listeners.cancel_scope.cancel(reason="stopping: no new connections")
                    if is_given:
                        requests.cancel_scope.deadline = (
                            trio.current_time() + parts.handover_drain_s
                        )
                        hasten = partial(hasten_end, stop, requests, parts.drain_timeout_s)
                        services.start_soon(hasten, name="stop watch")
                        # a call may ask for more while its connection is open
                        requests.start_soon(finish_connections, servers, name="connections")
                    else:
                        notifier.stopping()
                        left = partial(len, parts.dispatcher.requests)
                        services.start_soon(show_drain, notifier, left, name="drain status")
                        for server in servers:
                            if server.name != MANAGEMENT:  # there the drain is watched
                                server.close_after_next()
                        parts.dispatcher.drain()
                        requests.cancel_scope.deadline = trio.current_time() + parts.drain_timeout_s
                parts.dispatcher.drain()
                parts.moving.set()
                parts.goodbye.set()
                with trio.move_on_after(FLUSH_S):
                    for server in servers:
                        server.close_idle()
                    await wait_all_closed(servers)
                agents.cancel_scope.cancel(reason="stopped: every answer had its time")
            connections.cancel_scope.cancel(reason="stopped: every answer had its time")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("balancer down")


def _show_predecessor(notifier: SystemdNotifier, status: str, num_left: int) -> None:
    plural = "" if num_left == 1 else "s"
    left = f"; the process before has {num_left} request{plural} left" if num_left else ""
    notifier.status(f"{status}{left}")


async def _reload(reloads: Sequence[Run], notifier: SystemdNotifier) -> None:
    notifier.reloading()
    for reload in reloads:
        await reload()
    notifier.reloaded()


async def _cut_when_cancelled(servers: list[Server]) -> None:
    """A write to a client that does not read is shielded: only closing its socket ends it."""
    try:
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.cut_all()
