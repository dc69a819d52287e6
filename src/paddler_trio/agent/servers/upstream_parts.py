"""Answer a balancer as an agent in front of a server does: it has no model of its own.

The tunnels of an agent in front of a server: one task each, for as many exchanges as it carries.

    requests
    └─ tunnel 7           on its way, idle, or in an exchange

The balancer asks for a tunnel over the link and closes it by closing the connection. A tunnel ends
with the link it was asked for over; while the agent drains, with the exchange that is under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.link_reply import LinkReply
from paddler_trio.agent.link.link_tasks import OrderTasks
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.agent.servers.forwarded_exchange import ForwardedExchange
from paddler_trio.agent.servers.tunnel_dial import AgentTunnel, ForwardedStreams, dial_tunnel
from paddler_trio.agent.servers.upstream_monitor import UpstreamMonitor
from paddler_trio.errors import ConfigurationError, LinkError, WireError, leaves, one_line
from paddler_trio.net.client.upstream_client import UpstreamClient
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Answer, Cache
from paddler_trio.wire.trio.tunnel_frames import Kind, read_request

log = structlog.get_logger("tunnels")

MAX_TUNNELS: Final = 8192 + 64
DIAL_S: Final = 10.0


class TunnelReply(Protocol):
    """The connection over which tunnels are asked for."""

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None:
        """Note that the request of this id is not worked on any more."""
        ...


@attrs.define(eq=False)
class UpstreamTunnels:
    """See the module docstring.

    Args:
      authorization: what an agent shows the balancer, read for each dialling.
      show: shows the balancer what the monitor knows now.
    """

    client: UpstreamClient
    monitor: UpstreamMonitor
    streams: ForwardedStreams
    address: BalancerAddress
    tls: ClientTls
    authorization: Callable[[], Awaitable[bytes | None]]
    show: Callable[[], None]
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _tunnels: dict[trio.CancelScope, tuple[TunnelReply, AgentTunnel | None]] = attrs.field(
        factory=dict, init=False
    )
    """The tunnels by the scope of each: where it was asked for, and the tunnel, once it was
    dialled."""
    _is_leaving: bool = attrs.field(default=False, init=False)
    _num_dialled: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        in_slots = self.monitor.account.in_flight
        return f"<UpstreamTunnels: {len(self._tunnels)} open, {in_slots} exchanges in slots>"

    def open(self, nursery: trio.Nursery) -> None:
        """Run the tasks in this nursery from now on."""
        self._nursery = nursery

    def leave(self) -> None:
        """Note that no tunnel is dialled any more, and those without an exchange end."""
        self._is_leaving = True
        for _, tunnel in self._tunnels.values():
            if tunnel is not None:
                tunnel.leave()

    def begin(self, secret: str, reply: TunnelReply) -> None:
        """Dial the tunnel of this secret."""
        if self._nursery is None or self._is_leaving or len(self._tunnels) >= MAX_TUNNELS:
            log.warning("no tunnel is dialled", open=len(self._tunnels), leaving=self._is_leaving)
            return  # the balancer asks another agent when it has waited
        self._num_dialled += 1
        self._nursery.start_soon(self._run, secret, reply, name=f"tunnel {self._num_dialled}")

    def end_all_of(self, reply: object) -> None:
        """Note that the link is gone over which these were asked for."""
        for scope, (owner, _) in self._tunnels.items():
            if owner is reply:
                scope.cancel(reason="the link is gone")

    async def _run(self, secret: str, reply: TunnelReply) -> None:
        with trio.CancelScope() as scope:
            self._tunnels[scope] = reply, None
            try:
                with trio.fail_after(DIAL_S):
                    authorization = await self.authorization()
                    tunnel = await dial_tunnel(self.address, self.tls, secret, authorization)
                self._tunnels[scope] = reply, tunnel
                try:
                    await self._serve(tunnel, reply)
                finally:
                    with trio.CancelScope(shield=True):  # nothing in it waits
                        await trio.aclose_forcefully(tunnel.stream)
            except* (
                OSError,
                LinkError,
                WireError,
                ConfigurationError,
                trio.TooSlowError,
                trio.BrokenResourceError,
            ) as group:
                log.warning("tunnel ended", reason=one_line(next(leaves(group))))
            finally:
                del self._tunnels[scope]

    async def _serve(self, tunnel: AgentTunnel, reply: TunnelReply) -> None:
        last_id = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tunnel.run, name="tunnel reader")
            while not self._is_leaving and (frame := await tunnel.next_exchange()) is not None:
                kind, payload = frame
                if kind is not Kind.REQUEST:
                    raise WireError(f"{kind.name} where a request begins @ tunnel")
                exchange = ForwardedExchange(
                    tunnel, self.client, self.streams, read_request(payload)
                )
                last_id = exchange.head.id
                if not await self._exchange(exchange):
                    break
            nursery.cancel_scope.cancel(reason="the tunnel ends")
        if last_id:  # it was given up, or may have been just when it ended
            self.show()  # a server that still works on it has a slot less to offer
            reply.hand_back(last_id, "the tunnel ended", suspects=None)

    async def _exchange(self, exchange: ForwardedExchange) -> bool:
        if not exchange.head.id:
            return await exchange.run()
        with self.monitor.request() as ours:
            may_go_on = await exchange.run()
            ours.is_whole = exchange.is_whole
        if exchange.error is not None:
            self.monitor.request_failed(exchange.error)
        elif exchange.is_whole:
            self.monitor.request_succeeded()
        return may_go_on


NO_MODEL: Final = (
    "this agent stands in front of a server and has no model of its own: what is asked of it goes "
    "through the balancer's --reverseproxy-addr, or to the deployment's name on the inference port"
)


@attrs.frozen
class NoModels:
    """Follows no desired state: the server has the models that it was started with."""

    metadata: Mapping[str, str] | None = None
    desired: AgentDesiredState | None = None
    judges_beside: bool = False

    def set_desired(self, desired: AgentDesiredState, extras: Extras = NO_EXTRAS) -> None:
        """Load nothing."""

    def set_store(self, store: StoreAddress | None) -> None:
        """Fetch nothing."""


@attrs.frozen(eq=False)
class UpstreamRequests:
    """Opens tunnels and refuses everything that needs a model."""

    tunnels: UpstreamTunnels
    orders: OrderTasks = attrs.field(factory=lambda: OrderTasks(no_model=NO_MODEL))

    def open(self, nursery: trio.Nursery, status: AgentStatus) -> None:
        """Run the tasks in this nursery from now on."""
        self.tunnels.open(nursery)
        self.orders.open_beside(nursery, status)

    def work(self, frame: RequestFrame, reply: LinkReply) -> None:
        if frame.kind == "question":
            reply.answer(Answer(frame.id, None, NO_MODEL, 501))
        else:
            reply.hand_back(frame.id, NO_MODEL, suspects=None)

    def ask_fit(self, question: AskFit, reply: LinkReply) -> None:
        reply.answer(Answer(question.id, None, NO_MODEL, 501))

    def operate(self, operate: Operate, reply: LinkReply) -> None:
        self.orders.take(operate, reply)

    def command_cache(self, command: Cache, reply: LinkReply) -> None:
        reply.answer(Answer(command.id, None, NO_MODEL, 501))

    def open_tunnel(self, secret: str, reply: LinkReply) -> None:
        self.tunnels.begin(secret, reply)

    def stop(self, wire_id: str, reply: LinkReply) -> None:
        """Stop an order; what is forwarded is stopped by closing its tunnel."""
        self.orders.stop(wire_id, reply)

    def stop_all_of(self, reply: LinkReply) -> None:
        self.tunnels.end_all_of(reply)
        self.orders.stop_all_of(reply)
