"""Questions about the model of a deployment, for any agent of ours that serves it.

They take no slot and are quick. While no agent serves, a question waits as long as a request may
wait in the buffer, which is also a demand for the deployment; if an agent leaves in the middle,
another one is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
import trio

from paddler_trio.balancer.agents.retry_advice import retry_advice, retry_later
from paddler_trio.errors import LinkError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.nursery_tree.request import client_digest
from paddler_trio.nursery_tree.request_endings import MOVED, SHUTTING_DOWN, too_old_for
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.model_questions import (
    Detokenize,
    PreviewTemplate,
    Question,
    RenderPrompt,
    Tokenize,
)
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT, INFILL
from paddler_trio.wire.trio.work import ConversationPrompt, InfillPrompt, TextPrompt

log = structlog.get_logger("asking")

MAX_ASKED = 8
"""Agents, one after the other, where each leaves or answers with something else."""
LARGE_CHARS = 65_536
LARGE_TOKENS = 8_192
LARGE_MESSAGES = 64

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("writing_questions")


ITEM_BYTES: Final = 60
"""The bytes that a list takes for each item: a short text with its place."""


async def ask_model(
    dispatcher: Dispatcher,
    question: Question,
    *,
    client: str = "",
    deployment: str = DEFAULT_DEPLOYMENT,
) -> object:
    """Return an agent's answer as JSON; see ``wire/trio/trio_link.py`` for its shape.

    ``client`` is the client whose turns it takes on the agent. Cancellation: the agent is sent a
    stop.

    Errors:
      QuestionRefusedError: the question is to blame (400), or its answer would be too large.
      HttpProblem: 404 there is no such deployment; 501 no agent here understands questions; 503
        none serves within the time a request may wait, or the balancer is stopping; 504 the agent
        did not answer in time.
    """
    written = await _written(question)
    limits = dispatcher.limits
    began_s = trio.current_time()
    is_infill = isinstance(question, RenderPrompt) and isinstance(question.prompt, InfillPrompt)
    for _ in range(MAX_ASKED):
        agent = await _serving_agent(dispatcher, deployment, began_s, is_infill=is_infill)
        with trio.move_on_after(limits.item_timeout_s):
            try:
                return await agent.questions.ask_model(written, client=client_digest(client))
            except LinkError as error:
                log.info("asking another agent", reason=str(error))
                continue
            except QuestionRefusedError as refused:
                if refused.code != 503:
                    raise
                raise _busy(dispatcher, deployment, refused.problem) from refused
        raise HttpProblem(
            504, f"agent {agent.label} did not answer within {limits.item_timeout_s:g} s"
        )
    raise _busy(dispatcher, deployment, f"{MAX_ASKED} agents left before they answered")


def held_by(answer: object) -> int:
    """Return how many bytes an agent's answer takes: texts, or a number or a short text for each
    token."""
    assert isinstance(answer, Mapping), "agents answer with objects"
    return sum(
        sys.getsizeof(value) if isinstance(value, str) else ITEM_BYTES * len(value)
        for value in answer.values()
        if isinstance(value, str | list)
    )


async def _written(question: Question) -> bytes:
    """Write the answer in a thread, if it may be large. There are no more of these than
    connections, each waits for its own, and one thread at a time writes."""
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
            return _are_large(messages)
        case PreviewTemplate(messages=messages, tools=tools, chat_template=template):
            return bool(tools) or len(template or "") > LARGE_CHARS or _are_large(messages)
        case RenderPrompt(prompt=InfillPrompt() as prompt):
            others = (text for each in prompt.others for text in (each.filename, each.text))
            texts = (prompt.prefix, prompt.suffix, prompt.middle, *others)
            return sum(map(len, texts)) > LARGE_CHARS
        case RenderPrompt():
            return True
        case _:
            return False


def _are_large(messages: Sequence[Mapping[str, object]]) -> bool:
    texts = [message.get("content") for message in messages[:LARGE_MESSAGES]]
    is_short = all(isinstance(text, str) and len(text) <= 1024 for text in texts)
    return len(messages) > LARGE_MESSAGES or not is_short


def _writing_thread() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := trio.CapacityLimiter(1))
        return limiter


async def _serving_agent(
    dispatcher: Dispatcher, deployment: str, began_s: float, *, is_infill: bool
) -> AgentConnection:
    """Return an agent of ours that serves the deployment and understands the question, the least
    busy one."""
    pool = dispatcher.pools.find(deployment)
    if pool is None:
        raise HttpProblem(404, f"there is no deployment {deployment[:80]!r}")
    if (agent := _serving_now(dispatcher, pool, is_infill=is_infill)) is not None:
        return agent
    with dispatcher.pools.asking(pool):
        while trio.current_time() < (deadline_s := _deadline_s(dispatcher, pool, began_s)):
            changes = dispatcher.agents_changed.ordinal
            with trio.move_on_at(deadline_s):
                await dispatcher.agents_changed.wait_beyond(changes)
            if (agent := _serving_now(dispatcher, pool, is_infill=is_infill)) is not None:
                return agent
    why = "" if pool.held is None else f": {pool.held.reason}"
    raise _busy(dispatcher, deployment, f"no agent serves a model now{why}")


def _deadline_s(dispatcher: Dispatcher, pool: Pool, began_s: float) -> float:
    """Return the deadline, as for a request that waits in the buffer."""
    held_s = began_s if pool.held is None else max(began_s, pool.held.until_s)
    return held_s + dispatcher.limits.buffered_timeout_s


def _serving_now(dispatcher: Dispatcher, pool: Pool, *, is_infill: bool) -> AgentConnection | None:
    """Raise HttpProblem if it is no use to wait for one."""
    if dispatcher.is_draining:
        raise _busy(dispatcher, pool.name, SHUTTING_DOWN.description)
    if not pool.is_known:
        raise HttpProblem(404, f"the deployment {pool.name!r} was removed")
    agents = pool.agents.values()
    ours = [agent for agent in agents if agent.kind.answers_questions]
    if agents and not ours:
        raise HttpProblem(
            501,
            "the agents that are connected are Paddler 4.1's, which answer no questions "
            "about the model; start an agent of this package",
        )
    if is_infill:  # servers behind agents answer for themselves
        ours = [agent for agent in ours if agent.takes_infill]
    if agents and not ours:
        old = too_old_for(INFILL.decode())
        raise HttpProblem(old.code, old.description)
    serving = [agent for agent in ours if agent.is_accepting]
    if not serving and pool.has_moved:
        raise HttpProblem(MOVED.code, MOVED.description, retry_advice(dispatcher.pools, MOVED))
    return min(serving, key=lambda agent: agent.slots_processing) if serving else None


def _busy(dispatcher: Dispatcher, deployment: str, problem: str) -> HttpProblem:
    return HttpProblem(503, problem, retry_later(dispatcher.pools, deployment))
