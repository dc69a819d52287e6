"""The native inference routes: generation as newline-delimited JSON.

The status is sent as soon as the request itself is in order, before a slot is found; everything
later arrives in the stream, whose last line is an ending result or an error. One write carries
all the steps that have arrived (`paddler_trio.balancer.agents.ready_steps`).
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from paddler_trio.balancer.agents.direct_results import send_directly
from paddler_trio.balancer.agents.embedding_fan_out import EmbeddingFanOut
from paddler_trio.balancer.agents.ready_steps import StepReader
from paddler_trio.balancer.agents.retry_advice import retry_advice, retry_later
from paddler_trio.balancer.agents.work_encoding import encoded
from paddler_trio.balancer.fleet.deployment import Deployment
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.api_v2 import ApiV2
from paddler_trio.balancer.front.end_user import user_of
from paddler_trio.balancer.front.inference_socket import InferenceSocket
from paddler_trio.net.server.asgi import Header, HttpProblem, send_text
from paddler_trio.net.server.client_identity import client_of, default_problem
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import input_of, program_body, structured
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import body_writer, while_client_stays
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.telemetry.trace_context import trace_of
from paddler_trio.wire.paddler.messages import error_line, response_lines
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
    tool_schema_problem,
)
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
from paddler_trio.wire.trio.work import Work

GENERATION_DISABLED = "Token generation is disabled while the cluster is configured for embeddings"
ALL_DRAINED = (
    "every agent that has a slot is drained: requests wait in the buffer; "
    "`paddler-trio agent drain NAME --undo` gives it work again"
)
NDJSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]

PROBES = frozenset({"/health", "/livez", "/readyz"})
"""Paths that supervisors and other load balancers ask, on every port of clients."""


@attrs.define(eq=False)
class InferenceRoutes:
    """The application of the inference port."""

    dispatcher: Dispatcher
    states: FleetKeeper
    goodbye: trio.Event
    deployments: Deployments = attrs.field(
        default=attrs.Factory(
            lambda self: Deployments(self.dispatcher, self.states), takes_self=True
        )
    )
    moved: trio.Event = attrs.field(factory=trio.Event)
    """Set when another process takes new requests: sockets end when they are idle."""

    def routes(self) -> Router:
        routes = self.probes()
        socket = InferenceSocket(self.dispatcher, self.states, self.goodbye, self.moved)
        routes.http("POST", "/api/v1/continue_from_raw_prompt", self._raw_prompt)
        routes.http("POST", "/api/v1/continue_from_conversation_history", self._conversation)
        routes.http("POST", "/api/v1/generate_embedding_batch", self._embeddings)
        routes.websocket("/api/v1/inference_socket", socket.serve)
        ApiV2(self.dispatcher, self.deployments, self._stream_or_refuse).add_to(routes)
        return routes

    def probes(self) -> Router:
        """Return the routes on ``PROBES``."""
        routes = Router()
        routes.probe("/health", health)
        routes.probe("/livez", health)
        routes.probe("/readyz", self._ready)
        return routes

    async def _ready(self, exchange: Exchange, params: Params) -> None:
        """200 while a request would be answered soon; the text of a 503 is the reason why not."""
        statistics = self.dispatcher.statistics()
        if self.dispatcher.is_draining:
            await send_text(exchange.send, 503, "draining: the balancer is shutting down")
        elif statistics.slots_total == 0:
            await send_text(exchange.send, 503, "no agent has a slot: requests wait in the buffer")
        elif self.dispatcher.agents.all_slots_are_drained:
            await send_text(exchange.send, 503, ALL_DRAINED)
        else:
            await send_text(exchange.send, 200, "OK")

    async def _raw_prompt(self, exchange: Exchange, params: Params) -> None:
        must_allow_default(exchange)
        work = await program_body(
            exchange, lambda value: structured(value, ContinueFromRawPromptParams)
        )
        self._must_generate()
        await self._stream(exchange, work)

    async def _conversation(self, exchange: Exchange, params: Params) -> None:
        must_allow_default(exchange)
        work, problem = await program_body(exchange, _conversation)
        self._must_generate()
        if problem is not None:
            raise HttpProblem(400, f"Invalid request parameters: {problem}")
        await self._stream(exchange, work)

    async def _embeddings(self, exchange: Exchange, params: Params) -> None:
        must_allow_default(exchange)
        body = await program_body(
            exchange, lambda value: structured(value, GenerateEmbeddingBatchParams)
        )
        applicable = self.states.applicable
        if applicable is None:
            raise self._not_yet("Balancer applicable state is not yet set")
        if not applicable.inference_parameters.enable_embeddings:
            raise HttpProblem(
                501, "Embedding generation is not enabled in the inference parameters"
            )
        default = self.dispatcher.pools.find(DEFAULT_DEPLOYMENT)
        if default is None or not default.agents:
            raise self._not_yet("No agents are currently connected")
        client, priority = client_of(exchange)
        fan_out = EmbeddingFanOut(
            self.dispatcher,
            body,
            applicable.inference_parameters.embedding_batch_size,
            client=client,
            user=user_of(exchange),
            account=exchange.identity.account,
            priority=priority,
            id=exchange.request_id,
            trace=trace_of(exchange),
        )
        await fan_out.stream(exchange, NDJSON_HEADERS)

    def _advice(self, request: Request) -> list[Header]:
        """``Retry-After`` for a request that was refused at once."""
        failure = request.failure
        if failure is None:
            return []
        return retry_advice(self.dispatcher.pools, failure, request.deployment)

    def _not_yet(self, words: str) -> HttpProblem:
        return HttpProblem(503, words, retry_later(self.dispatcher.pools))

    def _must_generate(self) -> None:
        if not self.states.generates_tokens:
            raise HttpProblem(501, GENERATION_DISABLED)

    async def _stream_or_refuse(
        self, exchange: Exchange, work: Work, deployment: Deployment
    ) -> None:
        """Answer as ``_stream`` does; a request that is refused at once gets the status of the
        refusal."""
        preset = "" if deployment.preset is None else deployment.preset.name
        request = await self._submit(exchange, work, deployment.name, preset)
        if request.failure is not None:
            raise HttpProblem(
                request.failure.code, request.failure.description, self._advice(request)
            )
        await self._send_lines(exchange, request)

    async def _stream(self, exchange: Exchange, work: Work) -> None:
        """Answer one request from here to its last line."""
        await self._send_lines(exchange, await self._submit(exchange, work))

    async def _submit(
        self,
        exchange: Exchange,
        work: Work,
        deployment: str = DEFAULT_DEPLOYMENT,
        preset: str = "",
    ) -> Request:
        client, priority = client_of(exchange)
        user = user_of(exchange)
        encoded_work = await encoded(work, input_of(exchange))
        return self.dispatcher.submit(
            exchange.request_id,
            encoded_work,
            client=client,
            priority=priority,
            deployment=deployment,
            preset=preset,
            route=exchange.path,
            trace=trace_of(exchange),
            user=user,
            account=exchange.identity.account,
        )

    async def _send_lines(self, exchange: Exchange, request: Request) -> None:
        """Send the lines of a request; leaving this coroutine ends it."""
        try:
            async with while_client_stays(exchange):
                headers = NDJSON_HEADERS + self._advice(request)
                await exchange.send(
                    {"type": "http.response.start", "status": 200, "headers": headers}
                )
                write = body_writer(exchange)
                direct = send_directly(exchange, request, partial(text_of, request))
                async for steps in StepReader(request, direct):
                    await write(b"".join([text_of(request, step) for step in steps]))
            if request.is_over:
                await exchange.send({"type": "http.response.body", "body": failure_line(request)})
        finally:
            request.stop()


def must_allow_default(exchange: Exchange) -> None:
    """Raise HttpProblem 403 for a key that may not use ``default``, to which Paddler's routes
    lead."""
    if (problem := default_problem(exchange)) is not None:
        raise HttpProblem(403, problem)


def text_of(request: Request, step: Results) -> bytes:
    """Return one line for each result of a step."""
    return response_lines(step.generated_by, request.id, step.family, step.results)


def failure_line(request: Request) -> bytes:
    """Return the last line of a request that no agent ended; empty if one did."""
    failure = request.failure
    if failure is None:
        return b""
    return error_line(request.id, failure.code, failure.description) + b"\n"


def _conversation(value: object) -> tuple[ContinueFromConversationHistoryParams, str | None]:
    """And what is wrong with its tools."""
    work = structured(value, ContinueFromConversationHistoryParams)
    return work, tool_schema_problem(work)


async def health(exchange: Exchange, params: Params) -> None:
    """Answer liveness only, as in Paddler."""
    await send_text(exchange.send, 200, "OK")
