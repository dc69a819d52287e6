"""Questions about the model that is served: answered by preparation processes, without a slot.

Tokens of a text, the text of tokens, the prompt a conversation becomes, and what the model is.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.model_server import ModelServer
from paddler_trio.errors import PreparationError
from paddler_trio.preparation.messages import Answered, Job
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Answer, render_extension

log = structlog.get_logger("questions")

MAX_QUESTIONS = 64
"""Under way at once; each may hold a frame of megabytes."""


class QuestionReply(Protocol):
    """Where answers go: the connection the question came in on."""

    def answer(self, answer: Answer) -> None:
        """Queue a short answer."""
        ...

    async def send_large(self, frame: bytes) -> None:
        """Send, waiting for those before; trio.BrokenResourceError if the connection has ended."""
        ...


@attrs.define(eq=False)
class QuestionTasks:
    """All questions of all connections. Call ``open`` with their nursery before the first one."""

    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], trio.CancelScope] = attrs.field(factory=dict, init=False)
    """By the identity of the connection and the question's id on it."""

    def open(self, questions: trio.Nursery, models: ModelServer) -> None:
        self._nursery = questions
        self._models = models

    def ask(self, frame: RequestFrame, reply: QuestionReply) -> None:
        """Answer on ``reply``, unless the connection ends first."""
        if self._nursery is None:
            reply.answer(Answer(frame.id, None, "this agent is starting", 503))
        elif (id(reply), frame.id) in self._running:
            problem = f"question id {frame.id!r} is in use already"
            reply.answer(Answer(frame.id, None, problem, 400))
        elif len(self._running) >= MAX_QUESTIONS:
            problem = f"this agent has {MAX_QUESTIONS} questions to answer already"
            reply.answer(Answer(frame.id, None, problem, 503))
        else:
            scope = self._running[id(reply), frame.id] = trio.CancelScope()
            self._nursery.start_soon(self._serve, frame, reply, scope, name=f"question {frame.id}")

    def stop(self, wire_id: str, reply: object) -> None:
        """Drop the question. Unknown ids are ignored."""
        scope = self._running.get((id(reply), wire_id))
        if scope is not None:
            scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: object) -> None:
        """The connection has ended: drop its questions."""
        for (connection, _), scope in self._running.items():
            if connection == id(reply):
                scope.cancel(reason="the link is gone")

    async def _serve(
        self, frame: RequestFrame, reply: QuestionReply, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                await reply.send_large(await self._answer(frame))
        except trio.BrokenResourceError:
            log.debug("the link ended before it had its answer", id=frame.id)
        finally:
            del self._running[id(reply), frame.id]

    async def _answer(self, frame: RequestFrame) -> bytes:
        serving = None if self._models is None else self._models.serving
        if serving is None or serving.engine.ready is None:
            return _problem(frame, "this agent serves no model now")
        job = Job(frame, 0, serving.engine.ready)
        try:
            answered = await serving.preparation.prepare(job, client=frame.client)
        except PreparationError as error:  # swapped in the middle of it
            return _problem(frame, str(error))
        assert isinstance(answered, Answered), "questions are answered, also with a problem"
        return answered.frame


def _problem(frame: RequestFrame, problem: str) -> bytes:
    return render_extension(Answer(frame.id, None, problem, 503))
