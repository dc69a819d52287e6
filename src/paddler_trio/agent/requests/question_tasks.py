"""Questions about the model that is served: answered by preparation processes, without a slot.

Tokens of a text, the text of tokens, the prompt a conversation becomes, and what the model is.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.link.link_tasks import AnswerReply, LinkTasks
from paddler_trio.errors import PreparationError
from paddler_trio.processes.preparation.preparation_messages import Answered, Job
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import Answer, render_extension

log = structlog.get_logger("questions")

MAX_QUESTIONS = 64
"""Under way at once; each may hold a frame of megabytes."""


class QuestionReply(AnswerReply, Protocol):
    async def send_large(self, frame: bytes) -> None:
        """Send, waiting for those before; trio.BrokenResourceError if the connection has ended."""
        ...


@attrs.define(eq=False)
class QuestionTasks(LinkTasks):
    """All questions of all connections."""

    most: int = MAX_QUESTIONS
    what: str = "questions to answer"

    def ask(self, frame: RequestFrame, reply: QuestionReply) -> None:
        """Answer on ``reply``, unless the connection ends first."""
        serve = partial(self._serve, frame, reply)
        self.begin(frame.id, reply, serve, name=f"question {frame.id}")

    async def _serve(self, frame: RequestFrame, reply: QuestionReply) -> None:
        try:
            await reply.send_large(await self._answer(frame))
        except trio.BrokenResourceError:
            log.debug("the link ended before it had its answer", id=frame.id)

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
