"""Questions whether a model would fit: answered one after the other, by dry runs."""

from __future__ import annotations

from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.fit_gate import FitGate
from paddler_trio.agent.fit_report import fit_report
from paddler_trio.agent.model_fit import UNLOADABLE
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.errors import MemoryUnknownError, one_line
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import NoModel
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.trio_link import Answer

log = structlog.get_logger("fit")

MAX_FIT_QUESTIONS = 4
"""Under way at once, on all links; one of them is worked on."""
UNPROCESSABLE = 422
"""It would not load, however much memory there is."""
BAD_GATEWAY = 502
"""It cannot be said."""
FIT_ANSWER_S = 90.0
"""From the question to the answer; headers of large models come over slow links."""


class FitReply(Protocol):
    """Where answers go: the connection the question came in on."""

    def answer(self, answer: Answer) -> None:
        """Queue a short answer."""
        ...


@attrs.define(eq=False)
class FitTasks:
    """All such questions of all connections. Call ``open`` with their nursery before the first."""

    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], trio.CancelScope] = attrs.field(factory=dict, init=False)
    """By the identity of the connection and the question's id on it."""

    def open(self, questions: trio.Nursery, models: ModelServer) -> None:
        self._nursery, self._models = questions, models

    def ask(self, question: AskFit, reply: FitReply) -> None:
        """Answer on ``reply``, unless the connection ends first."""
        key = (id(reply), question.id)
        if self._nursery is None or self._models is None or self._models.gate is None:
            reply.answer(Answer(question.id, None, "this agent makes no dry runs now", 503))
        elif key in self._running:
            problem = f"question id {question.id!r} is in use already"
            reply.answer(Answer(question.id, None, problem, 400))
        elif len(self._running) >= MAX_FIT_QUESTIONS:
            problem = f"this agent has {MAX_FIT_QUESTIONS} models to judge already"
            reply.answer(Answer(question.id, None, problem, 503))
        else:
            scope = self._running[key] = trio.CancelScope()
            self._nursery.start_soon(
                self._serve, question, self._models.gate, reply, scope, name=f"fit {question.id}"
            )

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
        self, question: AskFit, gate: FitGate, reply: FitReply, scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                with trio.move_on_after(FIT_ANSWER_S):
                    reply.answer(await _answer(question, gate))
                    return
                problem = f"no verdict within {FIT_ANSWER_S:g} s"
                reply.answer(Answer(question.id, None, problem, 504))
        finally:
            del self._running[id(reply), question.id]


async def _answer(question: AskFit, gate: FitGate) -> Answer:
    desired = question.desired_state
    if isinstance(desired.model, NoModel):
        return Answer(question.id, None, "no model is named", 400)
    try:
        judged = await gate.judge(desired, question.extras, slots=question.slots)
    except MemoryUnknownError as error:
        code = UNPROCESSABLE if error.kind in UNLOADABLE else BAD_GATEWAY
        return Answer(question.id, None, str(error), code)
    except Exception as error:  # a bug: the agent serves on
        log.exception("a question whether a model fits failed", id=question.id)
        return Answer(question.id, None, one_line(error), 500)
    return Answer(question.id, unstructure(fit_report(judged)), None, 200)
