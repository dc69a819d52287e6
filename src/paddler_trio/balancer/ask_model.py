"""Questions about the model, for any agent of ours that serves it.

They take no slot and are quick. While no agent serves, a question waits as long as a request may
wait in the buffer; if an agent leaves in the middle, another one is asked.
"""

from __future__ import annotations

import structlog
import trio

from paddler_trio.errors import LinkError
from paddler_trio.http.asgi import HttpProblem
from paddler_trio.nursery_tree.agent_connection import AgentConnection, QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher, client_digest
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.trio_link import Detokenize, Question, RenderPrompt, Tokenize
from paddler_trio.wire.trio.work import ConversationPrompt, TextPrompt

log = structlog.get_logger("asking")

LARGE_CHARS = 65_536
LARGE_TOKENS = 8_192
LARGE_MESSAGES = 64

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("writing_questions")


async def ask_model(dispatcher: Dispatcher, question: Question, *, client: str = "") -> object:
    """An agent's answer as JSON; see ``wire/trio/trio_link.py`` for its shape.

    ``client`` is the client whose turns it takes on the agent. Cancellation: the agent is sent a
    stop.

    Errors:
      QuestionRefusedError: the question is to blame (400), or its answer would be too large.
      HttpProblem: 501 no agent here understands questions; 503 none serves within the time a
        request may wait, or the balancer is stopping; 504 the agent did not answer in time.
    """
    written = await _written(question)
    limits = dispatcher.limits
    deadline_s = trio.current_time() + limits.buffered_timeout_s
    while True:
        agent = await _serving_agent(dispatcher, deadline_s)
        with trio.move_on_after(limits.item_timeout_s):
            try:
                return await agent.ask_model(written, client=client_digest(client))
            except LinkError as error:
                log.info("asking another agent", reason=str(error))
                continue
            except QuestionRefusedError as refused:
                if refused.code != 503:
                    raise
                raise _busy(dispatcher, refused.problem) from refused
        raise HttpProblem(
            504, f"agent {agent.label} did not answer within {limits.item_timeout_s:g} s"
        )


async def _written(question: Question) -> bytes:
    """In a thread, if it may be large. There are no more of these than connections, each waits for
    its own, and one thread at a time writes."""
    if not _is_large(question):
        return dumps(unstructure(question, Question))
    return await trio.to_thread.run_sync(
        lambda: dumps_in_runs(unstructure(question, Question)),
        limiter=_writing_thread(),
        abandon_on_cancel=True,
    )


def _is_large(question: Question) -> bool:
    match question:
        case Tokenize(text=text):
            return len(text) > LARGE_CHARS
        case Detokenize(tokens=tokens):
            return len(tokens) > LARGE_TOKENS
        case RenderPrompt(prompt=TextPrompt(text=text)):
            return len(text) > LARGE_CHARS
        case RenderPrompt(prompt=ConversationPrompt(messages=messages)):
            texts = [message.get("content") for message in messages[:LARGE_MESSAGES]]
            is_short = all(isinstance(text, str) and len(text) <= 1024 for text in texts)
            return len(messages) > LARGE_MESSAGES or not is_short
        case RenderPrompt():
            return True
        case _:
            return False


def _writing_thread() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := trio.CapacityLimiter(1))
        return limiter


async def _serving_agent(dispatcher: Dispatcher, deadline_s: float) -> AgentConnection:
    """An agent of ours that serves what is desired, the least busy one."""
    with trio.move_on_at(deadline_s):
        while True:
            ordinal = dispatcher.agents_changed.ordinal
            if dispatcher.is_draining:
                raise HttpProblem(503, "balancer is shutting down")
            ours = [agent for agent in dispatcher.agents.values() if agent.speaks_trio]
            if dispatcher.agents and not ours:
                raise HttpProblem(
                    501,
                    "the agents that are connected are Paddler 4.1's, which answer no questions "
                    "about the model; start an agent of this package",
                )
            serving = [agent for agent in ours if agent.is_accepting]
            if serving:
                return min(serving, key=lambda agent: agent.slots_processing)
            await dispatcher.agents_changed.wait_beyond(ordinal)
    raise _busy(dispatcher, "no agent serves a model now")


def _busy(dispatcher: Dispatcher, problem: str) -> HttpProblem:
    return HttpProblem(503, problem, [(b"retry-after", b"%d" % dispatcher.retry_after_s())])
