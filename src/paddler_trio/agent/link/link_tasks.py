"""Run what balancers ask over a link and a task answers: few at once, each with an end.

A task ends with its answer, with a stop, and with the link it was asked over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.system.logs.log_ring import AGENT_LINES, ENGINE_LINES
from paddler_trio.wire.paddler.desired_state import NoModel
from paddler_trio.wire.scalars import rfc3339
from paddler_trio.wire.trio.operations.operator_orders import (
    Load,
    Operate,
    Order,
    ReadLog,
    RestartEngine,
    Unload,
)
from paddler_trio.wire.trio.trio_link import Answer


class AnswerReply(Protocol):
    """The connection that a question came in on, where the answer goes."""

    def answer(self, answer: Answer) -> None:
        """Queue a short answer."""
        ...


@attrs.define(eq=False)
class LinkTasks:
    """All tasks of one kind, of all connections. Call ``open`` with their nursery before the first.

    Args:
      most: under way at once; more are refused.
      what: they are, in the words of a refusal.
    """

    most: int
    what: str
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _models: ModelServer | None = attrs.field(default=None, init=False)
    _status: AgentStatus | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], trio.CancelScope] = attrs.field(factory=dict, init=False)
    """The tasks by the identity of the connection and the task's id on it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._running)} {self.what}>"

    def open(self, nursery: trio.Nursery, models: ModelServer) -> None:
        self._nursery, self._models = nursery, models

    def open_beside(self, nursery: trio.Nursery, status: AgentStatus) -> None:
        """Open it for an agent of this status that has no models of its own."""
        self._nursery, self._status = nursery, status

    def begin(
        self,
        wire_id: str,
        reply: AnswerReply,
        serve: Callable[[], Awaitable[None]],
        *,
        name: str,
    ) -> None:
        """Run ``serve`` as a task; the refusal is answered on ``reply``."""
        key = (id(reply), wire_id)
        status = self._status if self._models is None else self._models.status
        if self._nursery is None or status is None:
            reply.answer(Answer(wire_id, None, "this agent is starting", 503))
        elif status.is_leaving:  # the nursery closes, or has closed
            reply.answer(Answer(wire_id, None, "this agent is leaving", 503))
        elif key in self._running:
            problem = f"question id {wire_id!r} is in use already"
            reply.answer(Answer(wire_id, None, problem, 400))
        elif len(self._running) >= self.most:
            problem = f"this agent has {self.most} {self.what} already"
            reply.answer(Answer(wire_id, None, problem, 503))
        else:
            scope = self._running[key] = trio.CancelScope()
            self._nursery.start_soon(self._run, key, scope, serve, name=name)

    def stop(self, wire_id: str, reply: object) -> None:
        """Drop the task. Unknown ids are ignored."""
        scope = self._running.get((id(reply), wire_id))
        if scope is not None:
            scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: object) -> None:
        """Drop the tasks of a connection that has ended."""
        for (connection, _), scope in self._running.items():
            if connection == id(reply):
                scope.cancel(reason="the link is gone")

    async def _run(
        self, key: tuple[int, str], scope: trio.CancelScope, serve: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with scope:
                await serve()
        finally:
            del self._running[key]


log = structlog.get_logger("orders")

MAX_ORDERS: Final = 8
LOOK_S: Final = 0.25
"""Between two looks whether there are lines; those that come together are sent together."""


class OrderReply(AnswerReply, Protocol):
    """The connection that an order came in on."""

    @property
    def publish(self) -> Callable[[], None]:
        """Queue the status, if it changed."""
        ...


@attrs.define(eq=False)
class OrderTasks(LinkTasks):
    """All orders of all connections.

    Args:
      no_model: why there is no model to give orders about; empty if there is one.
    """

    most: int = MAX_ORDERS
    what: str = "orders to carry out"
    no_model: str = ""

    def take(self, operate: Operate, reply: OrderReply) -> None:
        """Answer on ``reply``, unless the connection ends first."""
        order = operate.order
        if isinstance(order, ReadLog):
            read = partial(_read_log, operate.id, order, reply)
            self.begin(operate.id, reply, read, name=f"log {operate.id}")
        else:
            answer = self._carried_out(operate.id, order)
            reply.publish()  # who reads the answer knows the status already
            reply.answer(answer)

    def _carried_out(self, wire_id: str, order: Order) -> Answer:
        if self.no_model:
            return Answer(wire_id, None, self.no_model, 501)
        if self._models is None or self._models.status.is_leaving:
            return Answer(wire_id, None, "this agent is starting or leaving", 503)
        models = self._models
        problem = _obstacle(models, order)
        if problem:
            return Answer(wire_id, None, problem, 409)
        match order:
            case Unload() if models.unloaded_since is None:
                models.set_unloaded(rfc3339(datetime.now(UTC)))
                log.warning("an operator unloads the model")
            case Load() if models.unloaded_since is not None:
                models.set_unloaded(None)
                log.warning("an operator lets the model be loaded again")
            case RestartEngine():
                log.warning("an operator restarts the engine")
                models.restart_engine()
        shown = {"phase": models.status.phase, "unloaded_since": models.unloaded_since}
        return Answer(wire_id, shown, None, 200)


def _obstacle(models: ModelServer, order: Order) -> str:
    """Return why an order about the model cannot be carried out; empty if it can."""
    if models.desired is None or isinstance(models.desired.model, NoModel):
        return "no model is desired on this agent"
    if isinstance(order, RestartEngine) and models.unloaded_since is not None:
        return "an operator unloaded the model of this agent: let it be loaded again first"
    return ""


async def _read_log(wire_id: str, order: ReadLog, reply: AnswerReply) -> None:
    tail = AGENT_LINES if order.source == "agent" else ENGINE_LINES
    after = order.after if order.life in ("", tail.life) else None
    if after is not None and after >= tail.last:
        with trio.move_on_after(order.wait_ms / 1000):
            while tail.last <= after:  # noqa: ASYNC110  # lines come from any thread
                await trio.sleep(LOOK_S)
    page = tail.page(after=after, lines=order.lines)
    reply.answer(Answer(wire_id, attrs.asdict(page), None, 200))
