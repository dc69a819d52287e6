"""Questions whether a model would fit: answered one after the other, by dry runs."""

from __future__ import annotations

from functools import partial

import attrs
import structlog
import trio

from paddler_trio.agent.link.link_tasks import AnswerReply, LinkTasks
from paddler_trio.agent.model.fit_gate import FitGate
from paddler_trio.agent.model.fit_report import fit_report
from paddler_trio.agent.model.model_fit import NOT_LOADING
from paddler_trio.agent.model.model_server import ModelServer
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
"""The time from the question to the answer; headers of large models come over slow links."""


@attrs.define(eq=False)
class FitTasks(LinkTasks):
    """All such questions of all connections."""

    most: int = MAX_FIT_QUESTIONS
    what: str = "models to judge"

    def ask(self, question: AskFit, reply: AnswerReply) -> None:
        """Answer on ``reply``, unless the connection ends first."""
        models = self._models
        if models is None or models.gate is None:
            reply.answer(Answer(question.id, None, "this agent makes no dry runs now", 503))
            return
        serve = partial(_serve, question, models, models.gate, reply)
        self.begin(question.id, reply, serve, name=f"fit {question.id}")


async def _serve(question: AskFit, models: ModelServer, gate: FitGate, reply: AnswerReply) -> None:
    with trio.move_on_after(FIT_ANSWER_S):
        reply.answer(await _answer(question, models, gate))
        return
    problem = f"no verdict within {FIT_ANSWER_S:g} s"
    reply.answer(Answer(question.id, None, problem, 504))


async def _answer(question: AskFit, models: ModelServer, gate: FitGate) -> Answer:
    desired = question.desired_state
    if isinstance(desired.model, NoModel):
        return Answer(question.id, None, "no model is named", 400)
    try:
        judged = await gate.judge(desired, question.extras, slots=question.slots)
        beside = (
            await models.would_load_beside(judged, desired, question.extras)
            if question.beside
            else None
        )
    except MemoryUnknownError as error:
        code = UNPROCESSABLE if error.kind in NOT_LOADING else BAD_GATEWAY
        return Answer(question.id, None, str(error), code)
    except Exception as error:  # a bug: the agent serves on
        log.exception("a question whether a model fits failed", id=question.id)
        return Answer(question.id, None, one_line(error), 500)
    return Answer(question.id, unstructure(fit_report(judged, beside=beside)), None, 200)
