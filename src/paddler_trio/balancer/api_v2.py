"""``/api/v2`` on the inference port: the extended request, and questions about the model.

``POST /api/v2/generate`` streams the same lines as Paddler's routes, with more kinds of results in
them; see ``wire/paddler/results.py``. An error that shows before a request waits for a slot is the
status of its response; an error that only the model can find is its last line. The questions take
no slot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import attrs

from paddler_trio.balancer.ask_model import ask_model
from paddler_trio.http.asgi import HttpProblem, Receive, Scope, Send, send_json
from paddler_trio.http.client_identity import client_of
from paddler_trio.http.json_body import json_body, structured
from paddler_trio.http.router import Handler, Params, Router
from paddler_trio.http.streaming import while_connected
from paddler_trio.nursery_tree.agent_connection import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.trio.trio_link import (
    DescribeModel,
    Detokenize,
    Question,
    RenderPrompt,
    Tokenize,
)
from paddler_trio.wire.trio.work import Generate

MAX_BODY_BYTES = 32 * 1024 * 1024
"""A prompt of millions of tokens, as numbers."""

Stream: TypeAlias = Callable[[Scope, Receive, Send, Generate], Awaitable[None]]
"""Answers a request with the lines of one piece of work."""


@attrs.frozen(eq=False)
class ApiV2:
    """The handlers of these routes."""

    dispatcher: Dispatcher
    stream: Stream

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("POST", "/api/v2/generate", self._generate)
        routes.http("POST", "/api/v2/tokenize", self._asks(Tokenize))
        routes.http("POST", "/api/v2/detokenize", self._asks(Detokenize))
        routes.http("POST", "/api/v2/render_prompt", self._asks(RenderPrompt))
        routes.http("GET", "/api/v2/model", self._model)

    async def _generate(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        def read(value: object) -> Generate:
            return structured(value, Generate, tag="Generate")

        work = await json_body(scope, receive, read, limit_bytes=MAX_BODY_BYTES)
        await self.stream(scope, receive, send, work)

    async def _model(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        await self._answer(DescribeModel(), scope, receive, send)

    def _asks(self, shape: type[Tokenize | Detokenize | RenderPrompt]) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send, params: Params) -> None:
            def read(value: object) -> Question:
                return structured(value, shape, tag=shape.__name__)

            question = await json_body(scope, receive, read, limit_bytes=MAX_BODY_BYTES)
            await self._answer(question, scope, receive, send)

        return handle

    async def _answer(self, question: Question, scope: Scope, receive: Receive, send: Send) -> None:
        client, _ = client_of(scope)
        try:
            answer = await while_connected(
                receive, partial(ask_model, self.dispatcher, question, client=client)
            )
        except QuestionRefusedError as refused:
            raise HttpProblem(refused.code, refused.problem) from refused
        await send_json(send, 200, answer)
