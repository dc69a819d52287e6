"""The inference WebSocket: many requests on one connection, named by the client.

Each request has a task here that copies its outbox to the one writer; when the client does not
read, the writer stalls, the outboxes fill, and those requests are stopped, one by one, without
touching anybody else's. A frame that cannot be understood is answered when it names a request,
instead of leaving the client to wait for ever.
"""

from __future__ import annotations

import attrs
import structlog
import trio

from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.errors import WireError
from paddler_trio.http.asgi import Receive, Scope, Send
from paddler_trio.http.client_identity import who_asks
from paddler_trio.http.router import Params
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.generation import (
    ContinueFromConversationHistoryParams,
    tool_schema_problem,
)
from paddler_trio.wire.paddler.messages import (
    ErrorEnvelope,
    InferenceRequest,
    StopRespondingTo,
    TokenGenerationDisabledNotification,
    TokenGenerationEnabledNotification,
    error_line,
    parse_inference_server_message,
    recover_request_id,
    render,
    response_line,
)

log = structlog.get_logger("inference")

MAX_REQUESTS_PER_SOCKET = 1024
MAX_REQUEST_BYTES = 16 * 1024 * 1024 - 4096
"""A Paddler agent drops its whole connection over a frame of more than 16 MiB, and with it every
request it works on; the rest is for the envelope."""
_LARGEST_GROWTH = 6
"""A request is never longer for an agent than so many times what the client sent."""
_DISABLED = "Token generation is disabled while the cluster is configured for embeddings"


@attrs.define(eq=False)
class InferenceSocket:
    """Accepts clients; one instance serves every connection."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    goodbye: trio.Event

    async def serve(self, scope: Scope, receive: Receive, send: Send, params: Params) -> None:
        """One client, from the upgrade to the end of its connection."""
        who = who_asks(scope)
        await receive()
        await send({"type": "websocket.accept"})
        frames, outgoing = trio.open_memory_channel[bytes](0)
        client = _Client(self.dispatcher, self.states, frames, *who)
        try:
            async with trio.open_nursery() as connection:
                connection.start_soon(_write, outgoing, send, name="writer to client")
                async with frames, trio.open_nursery() as requests:
                    client.nursery = requests
                    async with trio.open_nursery() as reading:
                        reading.start_soon(client.announce_mode, name="mode notifications")
                        reading.start_soon(
                            self._say_goodbye, reading.cancel_scope, name="goodbye watch"
                        )
                        await client.read(receive)
                        reading.cancel_scope.cancel(reason="the client closed the connection")
                    if not self.goodbye.is_set():
                        connection.cancel_scope.cancel(reason="nobody is there to be told")
                # from here on the requests have ended and what they said is written
        finally:
            client.stop_all()
        if self.goodbye.is_set():
            with trio.move_on_after(1, shield=True):
                await send(
                    {
                        "type": "websocket.close",
                        "code": 1001,
                        "reason": "Server shutting down",
                    }
                )

    async def _say_goodbye(self, reading: trio.CancelScope) -> None:
        """Take nothing more; the last lines of requests that have just ended still go out."""
        await self.goodbye.wait()
        reading.cancel(reason="balancer is shutting down")


async def _write(outgoing: trio.MemoryReceiveChannel[bytes], send: Send) -> None:
    async for frame in outgoing:
        await send({"type": "websocket.send", "text": frame.decode()})


@attrs.define(eq=False)
class _Client:
    dispatcher: Dispatcher
    states: DesiredStateKeeper
    frames: trio.MemorySendChannel[bytes]
    name: str
    priority: Priority
    nursery: trio.Nursery = attrs.field(init=False)
    _in_flight: dict[str, Request] = attrs.field(factory=dict, init=False)

    async def read(self, receive: Receive) -> None:
        """Handle frames until the client closes."""
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text is None:
                log.info("binary frame ignored")
                continue
            reply = self._handle(text)
            if reply is not None:
                await self.frames.send(reply)

    def stop_all(self) -> None:
        """The client is gone: nobody wants any of its requests."""
        for request in self._in_flight.values():
            request.stop()

    async def announce_mode(self) -> None:
        """Say when the cluster turns to embeddings and back; only transitions."""
        ordinal = self.states.mode_changed.ordinal
        generates = True
        while True:
            if self.states.generates_tokens != generates:
                generates = self.states.generates_tokens
                await self.frames.send(
                    render(
                        TokenGenerationEnabledNotification()
                        if generates
                        else TokenGenerationDisabledNotification()
                    )
                )
            ordinal = await self.states.mode_changed.wait_beyond(ordinal)

    # ------------------------------------------------------------- private

    def _handle(self, text: str) -> bytes | None:
        """One frame; returns what to answer at once, if anything."""
        try:
            message = parse_inference_server_message(text)
        except WireError as error:
            request_id = recover_request_id(text)
            log.info("bad frame from a client", reason=str(error), id=request_id)
            if request_id is None or request_id in self._in_flight:
                return None
            return error_line(request_id, 400, f"Json deserialize error: {error}")
        match message:
            case InferenceRequest():
                return self._start(message, num_characters=len(text))
            case StopRespondingTo(request_id):
                request = self._in_flight.get(request_id)
                if request is not None:
                    request.stop()
            case ErrorEnvelope():
                log.info("a client sent an error", id=message.request_id)
        return None

    def _start(self, message: InferenceRequest, *, num_characters: int) -> bytes | None:
        request_id, params = message.id, message.request
        if request_id in self._in_flight:
            return error_line(
                request_id,
                400,
                f'Request id "{request_id}" is already in flight on this connection',
            )
        tag = "ContinueFromRawPrompt"
        if isinstance(params, ContinueFromConversationHistoryParams):
            tag = "ContinueFromConversationHistory"
            problem = tool_schema_problem(params)
            if problem is not None:
                return error_line(request_id, 400, f"Invalid request parameters: {problem}")
        if not self.states.generates_tokens:
            return response_line(
                None, request_id, {"GeneratedToken": {"TokenGenerationDisabled": _DISABLED}}
            )
        if len(self._in_flight) >= MAX_REQUESTS_PER_SOCKET:
            return error_line(
                request_id,
                503,
                f"{MAX_REQUESTS_PER_SOCKET} requests are in flight on this connection, the most "
                "it may have; wait for one to end or open another connection",
            )
        work = {tag: unstructure(params)}
        if num_characters * _LARGEST_GROWTH > MAX_REQUEST_BYTES:
            size_bytes = len(dumps(work))
            if size_bytes > MAX_REQUEST_BYTES:
                text = f"The request has {size_bytes} bytes, at most {MAX_REQUEST_BYTES} are taken"
                return error_line(request_id, 413, text)
        request = self.dispatcher.submit(request_id, work, client=self.name, priority=self.priority)
        self._in_flight[request_id] = request
        self.nursery.start_soon(self._copy, request, name=f"frames of {request_id}")
        return None

    async def _copy(self, request: Request) -> None:
        """Everything of one request to the writer; nothing more once the client stopped it."""
        try:
            async for step in request.outbox:
                for result in step.results:
                    if not request.is_stopped:
                        response = {step.family: result}
                        await self.frames.send(
                            response_line(step.generated_by, request.id, response)
                        )
            if request.failure is not None and not request.is_stopped:
                failure = request.failure
                await self.frames.send(error_line(request.id, failure.code, failure.description))
        finally:
            request.stop()
            del self._in_flight[request.id]
