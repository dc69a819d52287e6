"""Run what balancers ask over a link and a task answers: few at once, each with an end.

A task ends with its answer, with a stop, and with the link it was asked over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_server import ModelServer
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
