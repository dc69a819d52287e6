"""The inference WebSocket: many requests on one connection, named by the client.

Tokens are written in the step in which an agent delivers them, as long as nothing is on its way
through the writer (``direct_results.py``). For all else each request has a task here that copies
its outbox to the one writer; when the client does not read, the writer stalls, the outboxes fill,
and those requests are stopped, one by one, without touching those of other clients. A frame that
does not parse is answered if it names a request, so that the client does not wait for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.balancer.agents.direct_results import DirectResults
from paddler_trio.balancer.agents.ready_steps import StepReader
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.end_user import user_of
from paddler_trio.balancer.front.inference_frames import Frame, Submission, Unreadable, read_frame
from paddler_trio.balancer.keys.key_accounts import Admission, Refusal
from paddler_trio.balancer.keys.key_limiter import admit
from paddler_trio.net.server.asgi import Receive
from paddler_trio.net.server.client_identity import client_of, default_problem
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.input_budget import INLINE_BYTES, BudgetSpentError, Reservation
from paddler_trio.net.server.json_body import input_of
from paddler_trio.net.websocket.bounded_websocket import (
    BoundedWebSocket,
)
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import MOVED
from paddler_trio.nursery_tree.step_results import NOTHING, Results
from paddler_trio.scheduler.dispatch.fair_order import Priority
from paddler_trio.system.synchronization import Changes, wait_any
from paddler_trio.telemetry.trace_context import begin_message, refuse_message
from paddler_trio.wire.paddler.messages import (
    ErrorEnvelope,
    StopRespondingTo,
    TokenGenerationDisabledNotification,
    TokenGenerationEnabledNotification,
    error_line,
    render,
    response_line,
)
from paddler_trio.wire.paddler.results import TOKEN_TAGS
from paddler_trio.wire.websocket_text import frame_header

log = structlog.get_logger("inference")

MAX_REQUESTS_PER_SOCKET = 1024
MAX_ID_CHARS = 256
"""Of a request's id, which stands in the line of every token."""
_DISABLED = "Token generation is disabled while the cluster is configured for embeddings"


@attrs.define(eq=False)
class InferenceSocket:
    """Accepts clients; one instance serves every connection."""

    dispatcher: Dispatcher
    states: FleetKeeper
    goodbye: trio.Event
    moved: trio.Event = attrs.field(factory=trio.Event)
    """Set when another process takes new requests: a socket ends when it is idle."""

    async def serve(self, exchange: Exchange, params: Params) -> None:
        """Serve one client, from the upgrade to the end of its connection."""
        identity = (*client_of(exchange), user_of(exchange))
        refusal = default_problem(exchange)
        await exchange.receive()
        await exchange.send({"type": "websocket.accept"})
        frames, outgoing = trio.open_memory_channel[bytes](0)
        client = _Client(
            self.dispatcher,
            self.states,
            exchange,
            frames,
            exchange.websocket,
            input_of(exchange),
            *identity,
            refusal=refusal,
            moved=self.moved,
        )
        try:
            async with trio.open_nursery() as connection:
                connection.start_soon(
                    client.write, outgoing, exchange.send_encoded, name="writer to client"
                )
                async with frames, trio.open_nursery() as requests:
                    client.nursery = requests
                    async with trio.open_nursery() as reading:
                        reading.start_soon(client.announce_mode, name="mode notifications")
                        reading.start_soon(
                            self._wait_for_goodbye,
                            client,
                            reading.cancel_scope,
                            name="goodbye watch",
                        )
                        await client.read(exchange.receive)
                        reading.cancel_scope.cancel(reason="the client closed the connection")
                    if client.is_dismissed and client.unsent is not None:
                        await client.send(client.unsent)
                    if not client.is_dismissed:
                        connection.cancel_scope.cancel(reason="the client is gone")
                # from here on the requests have ended and their frames are written
        finally:
            client.stop_all()
        if client.is_dismissed:
            with trio.move_on_after(1, shield=True):
                await exchange.send(
                    {
                        "type": "websocket.close",
                        "code": 1001,
                        "reason": "Server shutting down",
                    }
                )

    async def _wait_for_goodbye(self, client: _Client, reading: trio.CancelScope) -> None:
        """Read nothing more; the last lines of requests that have just ended still go out. Where
        another process takes new requests, this one's are waited for: they may be stopped."""
        await wait_any(self.goodbye, self.moved)
        if not self.goodbye.is_set():
            await client.wait_idle(self.goodbye)
        client.is_dismissed = True
        reading.cancel(reason="balancer is shutting down")


@attrs.define(eq=False)
class _Client:
    dispatcher: Dispatcher
    states: FleetKeeper
    exchange: Exchange
    frames: trio.MemorySendChannel[bytes]
    socket: BoundedWebSocket | None
    """For tokens that go past the writer, where that is possible."""
    room: Reservation
    name: str
    priority: Priority
    user: str
    refusal: str | None = None
    """Why this client may send nothing here."""
    moved: trio.Event = attrs.field(factory=trio.Event, kw_only=True)
    is_dismissed: bool = attrs.field(default=False, init=False)
    """The balancer ends the socket."""
    nursery: trio.Nursery = attrs.field(init=False)
    unsent: bytes | None = attrs.field(default=None, init=False)
    """The answer to the last frame, if reading ended before the writer took it."""
    _num_on_way: int = attrs.field(default=0, init=False)
    """Texts that were given to the writer and are not written yet."""
    _in_flight: dict[str, Request] = attrs.field(factory=dict, init=False)
    _ended: Changes = attrs.field(factory=Changes, init=False)
    """Requests that have ended."""

    async def write(
        self,
        outgoing: trio.MemoryReceiveChannel[bytes],
        send_text: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Send texts one after the other; an empty one only what a direct write left."""
        async for text in outgoing:
            if text:
                await send_text(text)
            elif self.socket is not None:
                await self.socket.flush()
            self._num_on_way -= 1

    async def send(self, text: bytes) -> None:
        """Give a text to the writer. Until it is written, nothing goes past it."""
        self._num_on_way += 1
        try:
            await self.frames.send(text)
        except BaseException:
            self._num_on_way -= 1  # the writer did not get it
            raise

    async def wait_idle(self, goodbye: trio.Event) -> None:
        """Until no request is in flight, or the goodbye."""
        async with trio.open_nursery() as nursery:

            async def hasten() -> None:
                await goodbye.wait()
                nursery.cancel_scope.cancel(reason="balancer is shutting down")

            nursery.start_soon(hasten)
            while self._in_flight:
                await self._ended.wait_beyond(self._ended.ordinal)
            nursery.cancel_scope.cancel(reason="nothing is in flight")

    async def read(self, receive: Receive) -> None:
        """Handle frames until the client closes."""
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text is None:
                log.info("binary frame ignored")
                continue
            reply = self._handle(await self._read(text))
            if reply is not None:
                self.unsent = reply
                await self.send(reply)
                self.unsent = None

    def stop_all(self) -> None:
        """The client is gone: stop all of its requests."""
        for request in self._in_flight.values():
            request.stop()

    async def announce_mode(self) -> None:
        """Notify the client when the cluster turns to embeddings and back; only transitions."""
        ordinal = self.states.mode_changed.ordinal
        generates = True
        while True:
            if self.states.generates_tokens != generates:
                generates = self.states.generates_tokens
                await self.send(
                    render(
                        TokenGenerationEnabledNotification()
                        if generates
                        else TokenGenerationDisabledNotification()
                    )
                )
            ordinal = await self.states.mode_changed.wait_beyond(ordinal)

    # ------------------------------------------------------------- private

    async def _read(self, text: str) -> Frame:
        """A long frame is parsed in a thread, so that the event loop does not wait for it."""
        if len(text) <= INLINE_BYTES:
            return read_frame(text)
        return await self.room.off_loop(partial(read_frame, text))

    def _handle(self, frame: Frame) -> bytes | None:
        """Handle one frame; return what to answer at once, if anything."""
        match frame:
            case Unreadable(request_id, status, problem):
                log.info("bad frame from a client", reason=problem, id=request_id)
                if request_id is None or request_id in self._in_flight:
                    return None
                if (limited := self._limited(request_id)) is not None:
                    return limited
                return self._refused(request_id, status, f"Json deserialize error: {problem}")
            case Submission():
                return self._admit(frame)
            case StopRespondingTo(request_id):
                request = self._in_flight.get(request_id)
                if request is not None:
                    request.stop()
            case ErrorEnvelope():
                log.info("a client sent an error", id=frame.request_id)
        return None

    def _limited(self, request_id: str) -> bytes | None:
        """A wrong request counts too: why it is over a limit; None if it is not."""
        admission = admit(self.exchange)
        if isinstance(admission, Refusal):
            return self._refused(request_id, admission.status, admission.text)
        if admission is not None:
            admission.end()
        return None

    def _admit(self, submission: Submission) -> bytes | None:
        """Start it within the limits of its key, which it counts for until it has ended."""
        admission = admit(self.exchange)
        if isinstance(admission, Refusal):
            return self._refused(submission.id, admission.status, admission.text)
        is_running = False
        try:
            problem = self._start(submission, admission)
            is_running = problem is None
        finally:
            if admission is not None and not is_running:
                admission.end()
        return problem

    def _start(self, submission: Submission, admission: Admission | None) -> bytes | None:
        """Return what to answer at once; without that, it runs, and ends the admission at its
        end."""
        request_id = submission.id
        if request_id in self._in_flight:
            return self._refused(
                request_id,
                400,
                f'Request id "{request_id}" is already in flight on this connection',
            )
        if len(request_id) > MAX_ID_CHARS:
            return self._refused(
                request_id,
                400,
                f"the id has {len(request_id)} characters, the limit is {MAX_ID_CHARS}",
            )
        if self.refusal is not None:
            return self._refused(request_id, 403, self.refusal)
        if self.moved.is_set():
            return self._refused(request_id, MOVED.code, MOVED.description)
        if submission.problem is not None:
            problem = f"Invalid request parameters: {submission.problem}"
            return self._refused(request_id, 400, problem)
        if not self.states.generates_tokens:
            refuse_message(self.exchange, request_id, 501)
            return response_line(
                None, request_id, {"GeneratedToken": {"TokenGenerationDisabled": _DISABLED}}
            )
        if len(self._in_flight) >= MAX_REQUESTS_PER_SOCKET:
            return self._refused(
                request_id,
                503,
                f"{MAX_REQUESTS_PER_SOCKET} requests are in flight on this connection, the most "
                "it may have; wait for one to end or open another connection",
            )
        room = self.room.another()
        try:
            room.grow(submission.work.size_bytes)
        except BudgetSpentError as spent:
            return self._refused(request_id, 503, str(spent))
        request = self.dispatcher.submit(
            request_id,
            submission.work,
            client=self.name,
            priority=self.priority,
            route="/api/v1/inference_socket",
            trace=begin_message(self.exchange),
            user=self.user,
            account=self.exchange.identity.account,
        )
        if request.failure is not None:  # refused at once: no task is worth it
            room.close()
            return error_line(request_id, request.failure.code, request.failure.description)
        self._in_flight[request_id] = request
        self.nursery.start_soon(
            self._copy, request, room, admission, name=f"frames of {request_id}"
        )
        return None

    def _refused(self, request_id: str, status: int, problem: str) -> bytes:
        """Return what answers a request that is not submitted."""
        refuse_message(self.exchange, request_id, status)
        return error_line(request_id, status, problem)

    async def _copy(self, request: Request, room: Reservation, admission: Admission | None) -> None:
        """Everything of one request to the writer; nothing more once the client stopped it."""
        direct = None
        if self.socket is not None and not request.is_over:
            direct = DirectResults(request, self.socket, partial(self._frames_of, request))
            request.sink = direct
        try:
            async for steps in StepReader(request, direct):
                for step in steps:
                    for result in step.results:
                        if not request.is_stopped:
                            response = {step.family: result}
                            await self.send(response_line(step.generated_by, request.id, response))
                    if step is NOTHING:  # a direct write left something
                        await self.send(b"")
            if request.failure is not None and not request.is_stopped:
                failure = request.failure
                await self.send(error_line(request.id, failure.code, failure.description))
            if request.is_stopped:
                await request.wait_ended()  # its id is taken as long as its slot is
        finally:
            request.stop()
            room.close()
            if admission is not None:
                admission.end()
            del self._in_flight[request.id]
            self._ended.notify()

    def _frames_of(self, request: Request, step: Results) -> bytes | None:
        """Return the frames of what is written past the writer: tokens, while the writer has
        nothing. An ending is the task's to send: only after it the request's id and its place under
        limits are free."""
        if self._num_on_way:
            return None
        frames: list[bytes] = []
        for result in step.results:
            if not isinstance(result, dict) or not result.keys() <= TOKEN_TAGS:
                return None
            text = response_line(step.generated_by, request.id, {step.family: result})
            frames += (frame_header(len(text)), text)
        return b"".join(frames)
