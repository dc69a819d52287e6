"""The native inference routes: generation as newline-delimited JSON.

The status is sent as soon as the request itself is in order, before a slot is found; everything
later arrives in the stream, whose last line is an ending result or an error. One write carries
all the steps that are there, so a client that lags costs less, not more.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from paddler_trio.balancer.api_v2 import ApiV2
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.balancer.embedding_fan_out import EmbeddingFanOut
from paddler_trio.balancer.inference_socket import InferenceSocket
from paddler_trio.balancer.writing import encoded
from paddler_trio.errors import WireError
from paddler_trio.http.asgi import (
    Header,
    HttpProblem,
    Receive,
    Scope,
    Send,
    send_text,
    watch_disconnect,
)
from paddler_trio.http.client_identity import who_asks
from paddler_trio.http.json_body import input_of, json_body
from paddler_trio.http.router import Params, Routes
from paddler_trio.http.server import direct_body_writer
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request, Results
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.generation import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
    tool_schema_problem,
)
from paddler_trio.wire.paddler.messages import error_line, response_line
from paddler_trio.wire.trio.generate import Work

GENERATION_DISABLED = "Token generation is disabled while the cluster is configured for embeddings"
NDJSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]
MAX_STEPS_PER_WRITE = 64


T = TypeVar("T")


def new_request_id() -> str:
    """An id for a request whose client chose none."""
    return secrets.token_urlsafe(16)


@attrs.define(eq=False)
class InferenceRoutes:
    """The ASGI application of the inference port."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    goodbye: trio.Event

    def routes(self) -> Routes:
        routes = self.probes()
        socket = InferenceSocket(self.dispatcher, self.states, self.goodbye)
        routes.http("POST", "/api/v1/continue_from_raw_prompt", self._raw_prompt)
        routes.http("POST", "/api/v1/continue_from_conversation_history", self._conversation)
        routes.http("POST", "/api/v1/generate_embedding_batch", self._embeddings)
        routes.websocket("/api/v1/inference_socket", socket.serve)
        ApiV2(self.dispatcher, self._stream_or_refuse).add_to(routes)
        return routes

    def probes(self) -> Routes:
        """What supervisors and other load balancers ask."""
        routes = Routes()
        routes.http("GET", "/health", health)
        routes.http("GET", "/livez", health)
        routes.http("GET", "/readyz", self._ready)
        return routes

    async def _ready(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        """200 while a request sent now would be answered soon; 503 says what is missing."""
        statistics = self.dispatcher.statistics()
        if self.dispatcher.is_draining:
            await send_text(send, 503, "draining: the balancer is shutting down")
        elif statistics.slots_total == 0:
            await send_text(send, 503, "no agent has a slot: requests wait in the buffer")
        else:
            await send_text(send, 200, "OK")

    async def _raw_prompt(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        work = await json_body(
            scope, receive, lambda value: structured(value, ContinueFromRawPromptParams)
        )
        self._must_generate()
        await self._stream(scope, receive, send, work)

    async def _conversation(
        self, scope: Scope, receive: Receive, send: Send, params: Params
    ) -> None:
        work, problem = await json_body(scope, receive, _conversation)
        self._must_generate()
        if problem is not None:
            raise HttpProblem(400, f"Invalid request parameters: {problem}")
        await self._stream(scope, receive, send, work)

    async def _embeddings(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        body = await json_body(
            scope, receive, lambda value: structured(value, GenerateEmbeddingBatchParams)
        )
        applicable = self.states.applicable
        if applicable is None:
            raise HttpProblem(503, "Balancer applicable state is not yet set")
        if not applicable.inference_parameters.enable_embeddings:
            raise HttpProblem(
                501, "Embedding generation is not enabled in the inference parameters"
            )
        if not self.dispatcher.agents:
            raise HttpProblem(503, "No agents are currently connected")
        client, priority = who_asks(scope)
        fan_out = EmbeddingFanOut(
            self.dispatcher,
            body,
            applicable.inference_parameters.embedding_batch_size,
            client=client,
            priority=priority,
        )
        await fan_out.stream(scope, receive, send, NDJSON_HEADERS)

    def _advice(self, request: Request) -> list[Header]:
        """To a request that was refused at once: when to come again."""
        if request.failure is None or request.failure.code != 503:
            return []
        return [(b"retry-after", b"%d" % self.dispatcher.retry_after_s())]

    def _must_generate(self) -> None:
        if not self.states.generates_tokens:
            raise HttpProblem(501, GENERATION_DISABLED)

    async def _stream_or_refuse(
        self, scope: Scope, receive: Receive, send: Send, work: Work
    ) -> None:
        """As ``_stream``, but who is refused at once gets a status that says so."""
        client, priority = who_asks(scope)
        encoded_work = await encoded(work, input_of(scope))
        request = self.dispatcher.submit(
            new_request_id(), encoded_work, client=client, priority=priority
        )
        if request.failure is not None:
            raise HttpProblem(
                request.failure.code, request.failure.description, self._advice(request)
            )
        await self._tell(scope, receive, send, request)

    async def _stream(self, scope: Scope, receive: Receive, send: Send, work: Work) -> None:
        """One request from here to its last line."""
        client, priority = who_asks(scope)
        encoded_work = await encoded(work, input_of(scope))
        request = self.dispatcher.submit(
            new_request_id(), encoded_work, client=client, priority=priority
        )
        await self._tell(scope, receive, send, request)

    async def _tell(self, scope: Scope, receive: Receive, send: Send, request: Request) -> None:
        """The lines of a request; leaving this coroutine ends it."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    watch_disconnect, receive, nursery.cancel_scope.cancel, name="client watch"
                )
                headers = NDJSON_HEADERS + self._advice(request)
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                write = direct_body_writer(scope) or _ordinary_writer(send)
                async for results in request.outbox:
                    await write(
                        b"".join(
                            b"".join(lines(request, step)) for step in and_more(request, results)
                        )
                    )
                # the watcher must be gone before the last body: the server calls the end of a
                # request a disconnect too
                nursery.cancel_scope.cancel(reason="the answer is complete")
            if request.is_over:
                await send({"type": "http.response.body", "body": failure_line(request)})
        finally:
            request.stop()


def _ordinary_writer(send: Send) -> Callable[[bytes], Awaitable[None]]:
    async def write(body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})

    return write


def and_more(request: Request, first: Results) -> list[Results]:
    """The step that was waited for and those that are there already, up to a limit."""
    steps = [first]
    try:
        while len(steps) < MAX_STEPS_PER_WRITE:
            steps.append(request.outbox.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        pass
    return steps


def lines(request: Request, step: Results) -> list[bytes]:
    """One line for each result of a step."""
    return [
        response_line(step.generated_by, request.id, {step.family: result}) + b"\n"
        for result in step.results
    ]


def failure_line(request: Request) -> bytes:
    """The last line of a request that no agent ended; empty if one did."""
    failure = request.failure
    if failure is None:
        return b""
    return error_line(request.id, failure.code, failure.description) + b"\n"


def _conversation(value: object) -> tuple[ContinueFromConversationHistoryParams, str | None]:
    """And what is wrong with its tools."""
    work = structured(value, ContinueFromConversationHistoryParams)
    return work, tool_schema_problem(work)


async def health(scope: Scope, receive: Receive, send: Send, params: Params) -> None:
    """Liveness only, as in Paddler."""
    await send_text(send, 200, "OK")


def structured(value: object, shape: type[T]) -> T:
    """A body of this shape; HttpProblem 400 with Paddler's words if it is not."""
    try:
        return structure(value, shape)
    except WireError as error:
        raise HttpProblem(400, f"Json deserialize error: {error}") from error
