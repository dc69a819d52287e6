"""Would a model fit an agent: ``POST /api/v2/agents/{agent}/fit`` on the management port.

The body is that of ``PUT /api/v2/balancer_desired_state``, with ``slots`` if it is to be another
number than the agent's; nothing is stored. The agent answers from dry runs on its own machine.
``hint`` in the answer says why a GPU of the machine would compute nothing, where that is so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import trio

from paddler_trio.balancer.agents.agent_machines import AgentMachines
from paddler_trio.errors import LinkError
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.scheduler.fit.fit_values import HOST
from paddler_trio.scheduler.fit.fit_words import gpu_hint
from paddler_trio.wire.paddler.desired_state import desired_state_problem
from paddler_trio.wire.trio.fit_messages import FitQuestion

FIT_ANSWER_S = 100.0
"""A little more than an agent takes at most."""
BUSY_RETRY_S = 5


@attrs.frozen(eq=False)
class FitRoutes:
    """``find``: an agent by id or name; HttpProblem 404 if there is none."""

    find: Callable[[str], AgentConnection]
    machines: AgentMachines

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("POST", "/api/v2/agents/{agent_id}/fit", self._fit)

    async def _fit(self, exchange: Exchange, params: Params) -> None:
        question = await json_body(exchange, lambda value: structured(value, FitQuestion))
        problem = desired_state_problem(question.state)
        if problem is not None:
            raise HttpProblem(400, problem)
        agent = self.find(params["agent_id"])
        if not agent.kind.answers_questions:
            raise HttpProblem(501, f"agent {agent.label} is Paddler's: it judges no models")
        answer = await while_connected(exchange, partial(_asked, agent, question))
        await send_json(exchange.send, 200, self._hinted(agent, answer))

    def _hinted(self, agent: AgentConnection, answer: object) -> object:
        known = self.machines.of(agent)
        if known is None or not isinstance(answer, dict):
            return answer
        layers, devices = answer.get("n_gpu_layers"), answer.get("devices")
        named = devices if isinstance(devices, list) else []
        others = [each.get("device") for each in named if isinstance(each, dict)]
        hint = gpu_hint(
            layers if isinstance(layers, int) else 0,
            gpus=[gpu.name for gpu in known.facts.gpus],
            devices=[str(each) for each in others if each != HOST],
        )
        return {**answer, "hint": hint} if hint else answer


async def _asked(agent: AgentConnection, question: FitQuestion) -> object:
    """Return what is asked; HttpProblem."""
    with trio.move_on_after(FIT_ANSWER_S):
        try:
            return await agent.questions.ask_fit(question)
        except LinkError as error:
            raise HttpProblem(502, str(error)) from error
        except QuestionRefusedError as refused:
            busy = [(b"retry-after", b"%d" % BUSY_RETRY_S)] if refused.code == 503 else []
            raise HttpProblem(refused.code, f"{agent.label}: {refused.problem}", busy) from refused
    raise HttpProblem(504, f"agent {agent.label} did not answer within {FIT_ANSWER_S:g} s")
