"""Answer a balancer as an agent in front of a server does: it has no model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.link_reply import LinkReply
from paddler_trio.agent.link.order_tasks import OrderTasks
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.agent.servers.upstream_tunnels import UpstreamTunnels
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Answer, Cache

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
