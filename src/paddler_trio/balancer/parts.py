"""The parts of a balancer, made from its configuration and wired together; nothing runs yet."""

from __future__ import annotations

import socket

import attrs
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
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits


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


@attrs.frozen(eq=False)
class BalancerParts:
    """What the tree gives tasks to. ``goodbye`` tells sockets and event streams to end."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    inference: HttpServer
    management: HttpServer
    goodbye: trio.Event

    @classmethod
    def assemble(cls, config: BalancerConfig) -> BalancerParts:
        """Call it inside the trio run; ConfigurationError for a bad state database URL."""
        goodbye = trio.Event()
        dispatcher = Dispatcher(
            DispatchLimits(
                max_buffered=config.max_buffered_requests,
                buffered_timeout_s=config.buffered_request_timeout_s,
                item_timeout_s=config.inference_item_timeout_s,
                continuation=ContinuationLimits(max_continuations=config.max_continuations),
            )
        )
        states = DesiredStateKeeper(open_state_database(config.state_database), dispatcher)
        agents = AgentSocket(dispatcher, states, goodbye, silence_s=config.agent_silence_s)
        inference = InferenceDoor(dispatcher, states, goodbye)
        management = ManagementDoor(
            dispatcher, states, agents, goodbye, metrics_prefix=config.metrics_prefix
        )
        limits = HttpLimits(max_connections=config.max_connections)
        return cls(
            dispatcher,
            states,
            HttpServer(
                Cors(config.inference_cors_allowed_hosts)(inference.routes()),
                name="inference",
                limits=limits,
            ),
            HttpServer(
                Cors(config.management_cors_allowed_hosts)(management.app()),
                name="management",
                limits=limits,
            ),
            goodbye,
        )
