"""Orders of operators to agents, on the management port.

POST /api/v2/agents/{agent}/unload            free the memory of the model, and keep it free
POST /api/v2/agents/{agent}/load              load what is desired again
POST /api/v2/agents/{agent}/restart_engine    end the engine, and start it anew
GET  /api/v2/agents/{agent}/logs              lines of its log, or of its engine's

The name of an agent, and the id of its first link, mean all that it serves; the id of another link
means the deployment of that link. Orders are answered by ``{"agents": [...]}``: what became of the
order on each link. The status of the answer is an error only where all of them refused.

Lines are asked for with ``source`` (``agent`` or ``engine``), ``lines`` and ``after``, the number
of the last line that is known; with ``wait_ms`` the answer waits for another line. ``life`` is what
the page before said: an agent that was started anew numbers its lines anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import attrs
import trio

from paddler_trio.errors import LinkError
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import structured
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.trio.operations.operator_orders import (
    Load,
    LogPage,
    Order,
    ReadLog,
    RestartEngine,
    Unload,
    read_page,
)

ORDER_ANSWER_S: Final = 10.0
LOG_ANSWER_S: Final = 5.0
"""The time for lines, beyond the time for which they are waited for."""
MAX_READERS: Final = 64
"""Of logs, of all clients together; each may hold a page of lines."""
_NUMBERS: Final = ("lines", "after", "wait_ms")
_ORDERS: Final = (
    ("unload", Unload(), "agent unloaded"),
    ("load", Load(), "agent loaded"),
    ("restart_engine", RestartEngine(), "engine restarted"),
)


@attrs.define(kw_only=True)
class Outcome:
    """The fate of an order on one link: the ``phase`` that followed, or a ``problem`` with a
    ``code``."""

    id: str
    deployment: str
    phase: str | None = None
    problem: str | None = None
    code: int = 200


@attrs.define(eq=False)
class OrderRoutes:
    """``find``: an agent by id or name; HttpProblem 404 if there is none."""

    dispatcher: Dispatcher
    find: Callable[[str], AgentConnection]
    _readers: int = attrs.field(default=0, init=False)

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        for path, order, action in _ORDERS:
            handler = self._orders(order, action)
            routes.http("POST", f"/api/v2/agents/{{agent_id}}/{path}", handler)
        routes.http("GET", "/api/v2/agents/{agent_id}/logs", self._logs)

    def _orders(self, order: Order, action: str) -> Handler:
        async def handle(exchange: Exchange, params: Params) -> None:
            agent = self.find(params["agent_id"])
            meant = [
                each for each in self.dispatcher.agents.values() if agent.id in (each.id, each.host)
            ]
            outcomes = [Outcome(id=each.id, deployment=each.deployment) for each in meant]
            async with trio.open_nursery() as nursery:
                for each, outcome in zip(meant, outcomes, strict=True):
                    nursery.start_soon(_carry_out, each, order, outcome, name=f"order to {each.id}")
            done = [each for each in outcomes if each.problem is None]
            if not done:
                first = outcomes[0]
                raise HttpProblem(first.code, f"{agent.label}: {first.problem}")
            deployments = ", ".join(each.deployment for each in done)
            exchange.audit.record(
                exchange, action, agent.label, agent_id=agent.id, deployments=deployments
            )
            shown = [attrs.asdict(each) for each in outcomes]
            await send_json(exchange.send, 200, {"agents": shown})

        return handle

    async def _logs(self, exchange: Exchange, params: Params) -> None:
        order = _asked_lines(exchange)
        agent = self.find(params["agent_id"])
        problem = _obstacle(agent)
        if problem:
            raise HttpProblem(501, f"{agent.label}: {problem}")
        if self._readers >= MAX_READERS:
            busy = [(b"retry-after", b"1")]
            raise HttpProblem(503, f"{MAX_READERS} clients read logs already", busy)
        self._readers += 1
        try:
            page = await while_connected(exchange, partial(_lines, agent, order))
        finally:
            self._readers -= 1
        await send_json(exchange.send, 200, attrs.asdict(page))


def _obstacle(agent: AgentConnection) -> str:
    if not agent.kind.is_extended:
        return "it is Paddler's agent, which takes no orders"
    if Feature.ORDERS not in agent.features:
        return "it is of an older version, which takes no orders"
    return ""


async def _carry_out(agent: AgentConnection, order: Order, outcome: Outcome) -> None:
    """Note in ``outcome`` what became of it."""
    problem = _obstacle(agent)
    if problem:
        outcome.problem, outcome.code = problem, 501
        return
    outcome.problem = f"no answer within {ORDER_ANSWER_S:g} s: it may carry it out yet"
    outcome.code = 504
    with trio.move_on_after(ORDER_ANSWER_S):
        try:
            answer = await agent.questions.order(order)
        except QuestionRefusedError as refused:
            outcome.problem, outcome.code = refused.problem, refused.code
        except LinkError as error:
            outcome.problem, outcome.code = str(error), 502
        else:
            phase = answer.get("phase") if isinstance(answer, dict) else None
            outcome.phase = phase[:64] if isinstance(phase, str) else None
            outcome.problem, outcome.code = None, 200


async def _lines(agent: AgentConnection, order: ReadLog) -> LogPage:
    """Return what is asked; HttpProblem."""
    patience_s = LOG_ANSWER_S + order.wait_ms / 1000
    with trio.move_on_after(patience_s):
        try:
            return read_page(await agent.questions.order(order))
        except LinkError as error:
            raise HttpProblem(502, str(error)) from error
        except QuestionRefusedError as refused:
            raise HttpProblem(refused.code, f"{agent.label}: {refused.problem}") from refused
    raise HttpProblem(
        504,
        f"agent {agent.label} sent no lines within {patience_s:g} s: it is busy, or its link is "
        "slow; those that it kept can be asked for later",
    )


def _asked_lines(exchange: Exchange) -> ReadLog:
    """Return what the query asks for; HttpProblem 400."""
    query = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True)
    fields: dict[str, str | int] = {"source": "agent"}
    for name, given in query.items():
        if name not in (*_NUMBERS, "source", "life"):
            raise HttpProblem(400, f"unknown parameter {name[:80]!r}{_known()}")
        if len(given) > 1:
            raise HttpProblem(400, f"{name} is given twice")
        fields[name] = _number(name, given[0]) if name in _NUMBERS else given[0][:80]
    return structured(fields, ReadLog, tag="ReadLog")


def _known(names: Iterable[str] = (*_NUMBERS, "source", "life")) -> str:
    return f": {', '.join(names)} are taken"


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise HttpProblem(400, f"{name} is {text[:80]!r}, must be a number")
    return int(text)
