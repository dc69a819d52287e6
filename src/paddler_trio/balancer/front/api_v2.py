"""``/api/v2`` on the inference port: the extended request, and questions about the model.

``POST /api/v2/generate`` streams the same lines as Paddler's routes, with more kinds of results in
them; see ``wire/paddler/results.py``. An error that shows before a request waits for a slot is the
status of its response; an error that only the model can find is its last line. The questions take
no slot. ``model`` names the deployment, in a body or, without one, in the query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar
from urllib.parse import parse_qs

import attrs

from paddler_trio.balancer.agents.ask_model import ask_model, held_by
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.under_presets import conversation_over, preset_over
from paddler_trio.balancer.fleet.deployment import Deployment
from paddler_trio.balancer.fleet.deployments import (
    MAX_NAME_CHARS,
    Deployments,
    NoSuchModelError,
)
from paddler_trio.net.server.asgi import HttpProblem, send_json
from paddler_trio.net.server.client_identity import client_of
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.input_budget import BudgetSpentError
from paddler_trio.net.server.json_body import input_of, no_room, program_body, structured
from paddler_trio.net.server.router import Handler, Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.wire.json_text import dumps_in_runs, is_long
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.adapters import named
from paddler_trio.wire.trio.model_questions import (
    DescribeModel,
    Detokenize,
    Question,
    RenderPrompt,
    Tokenize,
)
from paddler_trio.wire.trio.work import ConversationPrompt, Generate

MAX_BODY_BYTES = 32 * 1024 * 1024
"""A prompt of millions of tokens, as numbers."""

T = TypeVar("T")
Stream: TypeAlias = Callable[[Exchange, Generate, Deployment], Awaitable[None]]
"""Answers a request with the lines of one piece of work of a deployment."""


@attrs.frozen(eq=False)
class ApiV2:
    """The handlers of these routes."""

    dispatcher: Dispatcher
    deployments: Deployments
    stream: Stream

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("POST", "/api/v2/generate", self._generate)
        routes.http("POST", "/api/v2/tokenize", self._asks(Tokenize))
        routes.http("POST", "/api/v2/detokenize", self._asks(Detokenize))
        routes.http("POST", "/api/v2/render_prompt", self._asks(RenderPrompt))
        routes.http("GET", "/api/v2/model", self._model)

    async def _generate(self, exchange: Exchange, params: Params) -> None:
        def read(value: object) -> tuple[str | None, Generate]:
            return _with_model(value, lambda rest: structured(rest, Generate, tag="Generate"))

        model, work = await program_body(exchange, read, limit_bytes=MAX_BODY_BYTES)
        served = self._routed(exchange, model)
        try:
            if served.preset is not None:
                work = preset_over(served.preset, work, IgnoredFields())
            work = attrs.evolve(work, lora=named(work.lora, served.extras.adapters))
        except ApiError as error:
            raise HttpProblem(error.status, error.message) from error
        except ShapeError as error:
            raise HttpProblem(400, f"lora: {error}") from error
        await self.stream(exchange, work, served)

    async def _model(self, exchange: Exchange, params: Params) -> None:
        query = parse_qs(exchange.query.decode("latin-1"))
        model = _checked(query["model"][-1]) if "model" in query else None
        await self._answer(DescribeModel(), model, exchange)

    def _asks(self, shape: type[Tokenize | Detokenize | RenderPrompt]) -> Handler:
        async def handle(exchange: Exchange, params: Params) -> None:
            def read(value: object) -> tuple[str | None, Question]:
                return _with_model(value, lambda rest: structured(rest, shape, tag=shape.__name__))

            model, question = await program_body(exchange, read, limit_bytes=MAX_BODY_BYTES)
            await self._answer(question, model, exchange)

        return handle

    def _routed(self, exchange: Exchange, model: str | None) -> Deployment:
        """Return the deployment, or the preset of it; HttpProblem 404."""
        try:
            return self.deployments.route(model, exchange.identity.deployments)
        except NoSuchModelError as error:
            raise HttpProblem(404, str(error)) from error

    async def _answer(self, question: Question, model: str | None, exchange: Exchange) -> None:
        client, _ = client_of(exchange)
        served = self._routed(exchange, model)
        match question:
            case RenderPrompt(prompt=ConversationPrompt() as prompt) if served.preset is not None:
                prompt = conversation_over(served.preset, prompt, IgnoredFields())
                question = RenderPrompt(prompt=prompt)
        asking = partial(
            ask_model,
            self.dispatcher,
            question,
            client=client,
            deployment=served.name,
        )
        try:
            answer = await while_connected(exchange, asking)
        except QuestionRefusedError as refused:
            raise HttpProblem(refused.code, refused.problem) from refused
        room = input_of(exchange)
        try:
            room.grow(held_by(answer))
        except BudgetSpentError as spent:
            raise no_room(spent) from spent
        if is_long(answer):
            answer = await room.off_loop(partial(dumps_in_runs, answer))
        await send_json(exchange.send, 200, answer)


def _with_model(value: object, read: Callable[[object], T]) -> tuple[str | None, T]:
    """Return the member ``model`` of a body, and what ``read`` makes of the others; HttpProblem
    400."""
    if not isinstance(value, dict) or "model" not in value:
        return None, read(value)
    rest = dict(value)
    model = rest.pop("model")
    return (None if model is None else _checked(model)), read(rest)


def _checked(model: object) -> str:
    if not isinstance(model, str):
        raise HttpProblem(400, "model must be the name of a deployment @ $.model")
    if len(model) > MAX_NAME_CHARS:
        raise HttpProblem(
            400, f"model has {len(model)} characters, the limit is {MAX_NAME_CHARS} @ $.model"
        )
    return model
