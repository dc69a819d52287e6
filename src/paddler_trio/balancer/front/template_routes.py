"""Show what a chat template makes of a conversation: ``POST /api/v2/template/preview``, management
port.

``{"deployment", "chat_template", "messages", "tools", "thinking"}``: the template is tried on an
agent that serves the deployment, in one of its preparation processes and within their limits, so
the prompt is what a request would get if the template were stored. Without ``chat_template`` it is
what requests get now. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from paddler_trio.balancer.agents.ask_model import ask_model
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.client_identity import client_of
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body, structured
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.trio.model_questions import PreviewTemplate
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

UNKNOWN_TO_AGENT = "malformed request"
"""How the answer of an older agent begins: the question is of our making, so it is well formed."""


@attrs.frozen(kw_only=True)
class PreviewBody:
    """``chat_template``: None for the one in force."""

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] | None = None
    thinking: bool | None = None
    chat_template: str | None = None
    deployment: str = DEFAULT_DEPLOYMENT

    @property
    def question(self) -> PreviewTemplate:
        return PreviewTemplate(
            messages=self.messages,
            tools=self.tools or (),
            thinking=self.thinking,
            chat_template=self.chat_template,
        )


@attrs.frozen(eq=False)
class TemplateRoutes:
    """See the module docstring."""

    dispatcher: Dispatcher

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("POST", "/api/v2/template/preview", self._preview)

    async def _preview(self, exchange: Exchange, params: Params) -> None:
        body = await json_body(exchange, lambda value: structured(value, PreviewBody))
        client, _ = client_of(exchange)
        asking = partial(
            ask_model,
            self.dispatcher,
            body.question,
            client=client,
            deployment=body.deployment,
        )
        try:
            answer = await while_connected(exchange, asking)
        except QuestionRefusedError as refused:
            if refused.code != 400:
                raise HttpProblem(refused.code, refused.problem) from refused
            if refused.problem.startswith(UNKNOWN_TO_AGENT):
                raise HttpProblem(
                    501,
                    f"the agent of {body.deployment} that was asked is of an older version and "
                    "previews no templates: update the agents, or use `paddler-trio template "
                    "render`",
                ) from refused
            answer = {"problem": refused.problem, "line": None}
        if isinstance(answer, Mapping) and "problem" in answer:
            await send_json(
                exchange.send, 400, {"error": answer["problem"], "line": answer.get("line")}
            )
        else:
            await send_json(exchange.send, 200, answer)
