"""The balancer, from its first socket to its last.

    services                     outlive everything
    ├─ systemd watchdog, signals
    └─ connections               one task each: clients, operators, agents
       └─ requests               one task each, from arrival to ending; drained second
          └─ doors               the accept loops of every port; closed first

A request is not a child of its connection: it belongs to *requests*, so that draining is waiting
for one nursery, while the connections that carry the answers, and the agents' own, still live.
"""

from __future__ import annotations

import socket
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.balancer.agent_socket import AgentSocket
from paddler_trio.balancer.cors import Cors
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.balancer.dispatcher import Dispatcher, DispatchLimits
from paddler_trio.balancer.http_server import HttpLimits, HttpServer, listen
from paddler_trio.balancer.inference_door import InferenceDoor
from paddler_trio.balancer.management_door import ManagementDoor
from paddler_trio.balancer.state_database import open_state_database
from paddler_trio.config import BalancerConfig
from paddler_trio.daemon.systemd_notify import SystemdNotifier

log = structlog.get_logger("balancer")

FLUSH_S = 2.0
"""How long connections may take to send what is written when everything else has ended."""


@attrs.frozen
class Addresses:
    """What was bound, ``host:port`` each."""

    inference: list[str]
    management: list[str]


@attrs.frozen(eq=False)
class BoundBalancer:
    """Ports are bound before anything runs: one in use is an error and nothing has started."""

    config: BalancerConfig
    inference_sockets: list[socket.socket]
    management_sockets: list[socket.socket]

    @classmethod
    def bind(cls, config: BalancerConfig) -> BoundBalancer:
        """Raises ConfigurationError, with nothing left open."""
        inference = listen(config.inference_addr)
        try:
            return cls(config, inference, listen(config.management_addr))
        except BaseException:
            for bound in inference:
                bound.close()
            raise


async def run_balancer(
    bound: BoundBalancer,
    stop: trio.Event,
    *,
    notifier: SystemdNotifier,
    task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stop``, then drain: doors, requests, connections, services.

    Cancellation: everything ends at once; every client still connected is cut off.
    """
    config = bound.config
    goodbye = trio.Event()
    dispatcher = Dispatcher(
        DispatchLimits(
            max_buffered=config.max_buffered_requests,
            buffered_timeout_s=config.buffered_request_timeout_s,
            item_timeout_s=config.inference_item_timeout_s,
        )
    )
    states = DesiredStateKeeper(open_state_database(config.state_database), dispatcher)
    await states.load()
    agents = AgentSocket(dispatcher, states, goodbye, silence_s=config.agent_silence_s)
    limits = HttpLimits(max_connections=config.max_connections)
    inference = HttpServer(
        Cors(config.inference_cors_allowed_hosts)(
            InferenceDoor(dispatcher, states, goodbye).routes()
        ),
        name="inference",
        limits=limits,
    )
    management = HttpServer(
        Cors(config.management_cors_allowed_hosts)(
            ManagementDoor(
                dispatcher, states, agents, goodbye, metrics_prefix=config.metrics_prefix
            ).app()
        ),
        name="management",
        limits=limits,
    )

    async with trio.open_nursery() as services:
        services.start_soon(notifier.run_watchdog, name="systemd watchdog")
        async with trio.open_nursery() as connections:
            connections.start_soon(_cut_when_cancelled, inference, management, name="cutter")
            async with trio.open_nursery() as requests:
                dispatcher.open(requests)
                open_inference = partial(
                    inference.serve_door, bound.inference_sockets, connections=connections
                )
                open_management = partial(
                    management.serve_door, bound.management_sockets, connections=connections
                )
                async with trio.open_nursery() as doors:
                    addresses = Addresses(
                        await doors.start(open_inference), await doors.start(open_management)
                    )
                    task_status.started(addresses)
                    notifier.ready(f"inference on {', '.join(addresses.inference)}")
                    log.info("balancer up", **attrs.asdict(addresses))
                    await stop.wait()
                    doors.cancel_scope.cancel(reason="stopping: no new connections")
                notifier.stopping()
                dispatcher.drain()
                requests.cancel_scope.deadline = trio.current_time() + config.drain_timeout_s
            goodbye.set()
            for server in (inference, management):
                server.close_idle()
            with trio.move_on_after(FLUSH_S):
                for server in (inference, management):
                    await server.wait_all_closed()
            connections.cancel_scope.cancel(reason="stopped: every answer had its time")
        services.cancel_scope.cancel(reason="stopped: nothing is left to serve")
    log.info("balancer down")


async def _cut_when_cancelled(*servers: HttpServer) -> None:
    """A write to a client that does not read is shielded: only closing its socket ends it."""
    try:
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.cut_all()
