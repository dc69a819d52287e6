"""The agent's link to its balancer: dial, register, report, carry requests and results.

One connection is a reader (its task), a writer that alone sends, a status publisher and a
heartbeat. When it ends, its requests are stopped; the model stays loaded. Redialling backs off
with jitter, so that a restarted balancer is not met by all its agents in one instant (W37).
"""

from __future__ import annotations

import math
import random
import secrets
from pathlib import Path
from typing import cast

import attrs
import h11
import structlog
import trio
import trio_websocket
import wsproto.utilities

from paddler_trio.agent.dialled_stream import DialledStream
from paddler_trio.agent.model_server import ModelServer
from paddler_trio.agent.requests import AgentRequests
from paddler_trio.agent.status import AgentStatus
from paddler_trio.daemon.logs import FirstTimes
from paddler_trio.daemon.secret_file import read_secret
from paddler_trio.errors import ConfigurationError, LinkError, WireError, leaves
from paddler_trio.language.answers.output_processor import RawResult
from paddler_trio.nursery_tree.printed_tree import running_tree
from paddler_trio.nursery_tree.synchronization import Changes
from paddler_trio.wire.codec import dumps, loads
from paddler_trio.wire.paddler.messages import (
    AgentRequest,
    DeregisterAgent,
    ErrorEnvelope,
    GetChatTemplateOverride,
    GetModelMetadata,
    RegisterAgent,
    SetState,
    StopRespondingTo,
    UnknownNotification,
    UpdateAgentStatus,
    Version,
    parse_agent_message,
    recover_request_id,
    render,
)
from paddler_trio.wire.trio.request_frames import MAX_ID_CHARS, RequestFrame, request_frame
from paddler_trio.wire.trio.trio_link import (
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    TAG,
    Answer,
    Ask,
    GetTree,
    HandBack,
    Start,
    Tree,
    UnknownExtension,
    Want,
    parse_extension,
    recover_extension_id,
    render_extension,
    render_step,
)

log = structlog.get_logger("link")

STATUS_INTERVAL_S = 1.0
HEARTBEAT_S = 2.0
HEARTBEAT_DEADLINE_S = 5.0
CONNECT_S = 10.0
CLOSE_S = 1.0
GOODBYE_S = 5.0
"""For everything that was said to be taken, before an agent that leaves closes anyway."""
FORWARDING_S = 0.5
"""A balancer of Paddler's that hears of a leaving agent drops the results that it has read and not
passed on yet. It never says when that is done; it reads and forwards in moments."""
READ_AHEAD_FRAMES = 64
OUTGOING_FRAMES = 2048
"""Ten seconds of one frame a pass at 200 passes/s; a balancer that lags more is given up."""

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0


@attrs.define(eq=False)
class BalancerLink:
    """Stays connected to one balancer for the life of the agent.

    Args:
      host, port: the balancer's management address.
      token_file: holds the API key to show; read at every dialling, so a new one needs no restart.
      id: this agent's id, the same across reconnects of one process.
    """

    host: str
    port: int
    name: str | None
    status: AgentStatus
    models: ModelServer
    requests: AgentRequests
    token_file: Path | None = None
    id: str = attrs.field(factory=lambda: secrets.token_urlsafe(16))
    registered: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set at the first successful registration."""
    _connection: _Connection | None = attrs.field(default=None, init=False)
    _leaving: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Dial for ever; returns only after :meth:`leave`."""
        pause_s = _FIRST_PAUSE_S
        while not self._leaving.is_set():
            began_s = trio.current_time()
            reason = await self._connect_once()
            if self._leaving.is_set():
                return
            if trio.current_time() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            jittered_s = pause_s * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
            log.warning(
                "no link to the balancer",
                host=self.host,
                port=self.port,
                reason=reason,
                again_in_s=round(jittered_s, 2),
            )
            with trio.move_on_after(jittered_s):
                await self._leaving.wait()
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def leave(self) -> None:
        """Deregister and close; what was said is taken first, within ``GOODBYE_S``."""
        self._leaving.set()
        if self._connection is not None:
            await self._connection.say_goodbye()

    async def _connect_once(self) -> str:
        """One connection, from dialling to its end; returns why it ended.

        The stream is ours: trio-websocket leaves it open when the balancer closes first, and
        then a balancer that shuts down waits for us.

        Whatever the other end makes of a connection, and whatever fails on ours, costs this
        connection only: nothing that is raised here goes up the tree.
        """
        reasons: list[str] = []
        try:
            token = await self._token()
            with trio.fail_after(CONNECT_S) as patience:
                async with (
                    DialledStream(await trio.open_tcp_stream(self.host, self.port)) as stream,
                    trio.open_nursery() as nursery,
                ):
                    socket = await trio_websocket.wrap_client_stream(
                        nursery,
                        cast("trio.SocketStream", stream),  # any stream will do
                        f"{self.host}:{self.port}",
                        f"/api/v1/agent_socket/{self.id}",
                        subprotocols=[SUBPROTOCOL],
                        extra_headers=[] if token is None else [(b"authorization", token)],
                        message_queue_size=READ_AHEAD_FRAMES,
                        max_message_size=MAX_FRAME_BYTES,
                    )
                    stream.is_agreed = True
                    patience.deadline = math.inf  # connected: from here on the heartbeat watches
                    connection = _Connection(self, socket)
                    self._connection = connection
                    try:
                        return await connection.run()
                    finally:
                        self._connection = None
                        self.requests.stop_all_of(connection)
                        with trio.move_on_after(CLOSE_S, shield=True):
                            await socket.aclose()
                        nursery.cancel_scope.cancel(reason="the connection has ended")
        except* (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
            trio_websocket.HandshakeError,
            trio_websocket.ConnectionClosed,
            h11.ProtocolError,
            wsproto.utilities.ProtocolError,
            ConfigurationError,
            LinkError,
        ) as group:
            reasons.append(_words(group))
        except* Exception as group:  # a bug: loud, and no reason to leave the balancer alone
            log.error("the link failed", exc_info=group)
            reasons.append(_words(group))
        return "; ".join(reasons)

    async def _token(self) -> bytes | None:
        """The header that shows who we are; ConfigurationError if the file holds no key."""
        if self.token_file is None:
            return None
        return f"Bearer {await trio.to_thread.run_sync(read_secret, self.token_file)}".encode()


@attrs.define(eq=False)
class _Connection:
    """One connection; also the :class:`Reply` of the requests that came in on it."""

    link: BalancerLink
    socket: trio_websocket.WebSocketConnection
    speaks_trio: bool = attrs.field(init=False)
    _frames: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _outgoing: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    _large_frames: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _outgoing_large: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    _step: list[dict[str, object]] = attrs.field(factory=list, init=False)
    _published: int = attrs.field(default=-1, init=False)
    _unknown: FirstTimes = attrs.field(factory=FirstTimes, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _reason: str = attrs.field(default="the balancer closed the connection", init=False)
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _answered_s: float = attrs.field(default=-math.inf, init=False)
    """When a result was given to be sent."""
    _queued: int = attrs.field(default=0, init=False)
    """Frames that were ever queued; ``_written`` counts those that are out."""
    _written: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        self.speaks_trio = self.socket.subprotocol == SUBPROTOCOL
        self._frames, self._outgoing = trio.open_memory_channel[bytes](OUTGOING_FRAMES)
        self._large_frames, self._outgoing_large = trio.open_memory_channel[bytes](0)

    async def run(self) -> str:
        """Until either side ends it; returns why."""
        status = self.link.status
        self._send(render(RegisterAgent(self.link.name, status.snapshot())))
        self._publish()
        self.link.registered.set()
        log.info(
            "linked to the balancer",
            host=self.link.host,
            port=self.link.port,
            speaks_trio=self.speaks_trio,
        )
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, name="writer to balancer")
                    nursery.start_soon(self._write_large, name="writer of large frames to balancer")
                    nursery.start_soon(self._publish_changes, name="status publisher")
                    nursery.start_soon(self._beat, name="heartbeat")
                    await self._read()
        finally:
            self._over.set()
        return self._reason

    async def say_goodbye(self) -> None:
        """Deregister once everything said was taken; returns when the balancer has closed the
        connection, which it does when it reads that, or after ``GOODBYE_S``."""
        with trio.move_on_after(GOODBYE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._deregister, name="deregistration")
                await self._over.wait()
                nursery.cancel_scope.cancel(reason="the connection has ended")
        self._end("this agent is leaving")

    async def _deregister(self) -> None:
        if not self.speaks_trio:
            await self._until_forwarded()
        self._send(render(DeregisterAgent()))
        self._frames.close()

    async def _until_forwarded(self) -> None:
        """A pong says that everything before the ping was read, and how busy the balancer is."""
        await self.sent()
        pinged_s = trio.current_time()
        try:
            await self.socket.ping()
        except trio_websocket.ConnectionClosed:
            return
        round_trip_s = trio.current_time() - pinged_s
        await trio.sleep_until(self._answered_s + FORWARDING_S + 4 * round_trip_s)

    # ---------------------------------------------------------------- Reply

    def results(self, wire_id: str, tokens: list[int], results: list[RawResult]) -> None:
        self._answered_s = trio.current_time()
        if self.speaks_trio:
            self._step.append({"id": wire_id, "tokens": tokens, "results": results})
            return
        for result in results:
            envelope = {
                "generated_by": None,
                "request_id": wire_id,
                "response": {"GeneratedToken": result},
            }
            self._send(dumps({"Response": envelope}))

    def flush(self) -> None:
        if self._step:
            self._send(render_step(self._step))
            self._step = []

    def respond(self, wire_id: str, response: object) -> None:
        """Paddler's response, as one frame of its own."""
        self._answered_s = trio.current_time()
        envelope = {"generated_by": None, "request_id": wire_id, "response": response}
        self._send(dumps({"Response": envelope}))

    def answer(self, answer: Answer) -> None:
        """Queue the answer to a question about the model."""
        self._send(render_extension(answer))

    async def send_large(self, frame: bytes) -> None:
        """Send a frame that is large, or one of many; waits until those before it are under way,
        so that embeddings never fill the queue that everybody shares."""
        await self._large_frames.send(frame)
        self._answered_s = trio.current_time()

    def acknowledge(self, wire_id: str) -> None:
        """An entry without tokens and results; a balancer of Paddler's has no ear for it."""
        if self.speaks_trio:
            self.results(wire_id, [], [])
            self.flush()

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None:
        """The status goes first: the balancer must know that we have no slots now."""
        self._publish()
        died = suspects is not None
        self._send(render_extension(HandBack(wire_id, reason, died, suspects)))

    async def sent(self) -> None:
        """Wait until every frame that was queued before this call is out."""
        await self._written.wait_beyond(self._queued - 1)

    # ---------------------------------------------------------------- tasks

    async def _write(self) -> None:
        async for frame in self._outgoing:
            await self.socket.send_message(frame.decode())
            self._written.notify()

    async def _write_large(self) -> None:
        async with self._outgoing_large:
            async for frame in self._outgoing_large:
                await self.socket.send_message(frame.decode())

    async def _publish_changes(self) -> None:
        """After every change, and once a second in any case: silence means death to a balancer."""
        while True:
            with trio.move_on_after(STATUS_INTERVAL_S):
                await self.link.status.changes.wait_beyond(self._published)
            self._published = -1
            self._publish()

    async def _beat(self) -> None:
        """A balancer that does not answer a ping in time has vanished."""
        while True:
            await trio.sleep(HEARTBEAT_S)
            with trio.move_on_after(HEARTBEAT_DEADLINE_S) as patience:
                await self.socket.ping()
            if patience.cancelled_caught:
                self._end(f"no answer to a ping in {HEARTBEAT_DEADLINE_S:g} s")

    async def _read(self) -> None:
        try:
            while True:
                text = await self.socket.get_message()
                if isinstance(text, str):
                    request = request_frame(text, speaks_trio=self.speaks_trio)
                    if request is None:
                        self._handle(text)
                    else:
                        self._on_work(request)
                else:
                    log.warning("binary frame ignored")
        except trio_websocket.ConnectionClosed as closed:
            code = None if closed.reason is None else closed.reason.code
            self._end(f"the connection closed (code {code})")

    # ------------------------------------------------------------- messages

    def _handle(self, text: str) -> None:
        """One frame; one that cannot be understood is answered if it names a request (W17)."""
        frame: object = None
        try:
            if self.speaks_trio and text.startswith('{"Trio":'):
                frame = loads(text)
                self._on_extension(frame)
                return
            message = parse_agent_message(text)
        except WireError as error:
            wire_id = recover_request_id(text) or recover_extension_id(frame)
            log.error("a frame cannot be understood", reason=str(error), id=wire_id)
            if wire_id is not None:
                self.results(wire_id, [], [{"SamplerError": f"malformed request: {error}"}])
                self.flush()
            return
        match message:
            case SetState(desired):
                self.link.models.want(desired)
                self._publish()
            case AgentRequest(wire_id, GetModelMetadata() | GetChatTemplateOverride() as query):
                self._on_query(wire_id, query)
            case AgentRequest(wire_id) as work:  # not written as balancers write it
                self._on_rewritten(wire_id, render(work))
            case StopRespondingTo(wire_id):
                self.link.requests.stop(wire_id, self)
            case Version(version):
                log.debug("balancer version", version=version)
            case UnknownNotification(name):
                self._ignore(name)
            case ErrorEnvelope(wire_id, problem):
                log.warning("the balancer reports an error", id=wire_id, error=str(problem))

    def _on_work(self, frame: RequestFrame) -> None:
        """A request is read no further here: it may be large, and is read where it is prepared."""
        requests = self.link.requests
        match frame.kind:
            case "generation":
                requests.start(frame, self)
            case "embedding":
                requests.embeddings.start(frame, self)
            case "question":
                requests.questions.ask(frame, self)

    def _on_rewritten(self, wire_id: str, text: bytes) -> None:
        """A request whose frame has its parts in another order."""
        frame = request_frame(text.decode(), speaks_trio=self.speaks_trio)
        if frame is None:
            problem = f"a request's id has 1 to {MAX_ID_CHARS} characters and no quotes"
            self.results(wire_id, [], [{"SamplerError": f"malformed request: {problem}"}])
            self.flush()
        else:
            self._on_work(frame)

    def _on_query(self, wire_id: str, query: GetModelMetadata | GetChatTemplateOverride) -> None:
        match query:
            case GetModelMetadata():
                metadata = self.link.models.metadata
                value = None if metadata is None else {"metadata": metadata}
                self.respond(wire_id, {"ModelMetadata": value})
            case GetChatTemplateOverride():
                desired = self.link.models.desired
                override = None if desired is None else desired.chat_template_override
                template = None if override is None else {"content": override.content}
                self.respond(wire_id, {"ChatTemplateOverride": template})

    def _on_extension(self, frame: object) -> None:
        if not isinstance(frame, dict) or frame.keys() != {TAG}:
            raise WireError("a Trio frame has one key @ $")
        match parse_extension(frame[TAG]):
            case Start() | Ask() as work:  # not written as balancers of ours write it
                self._on_rewritten(work.id, render_extension(work))
            case Want(desired, extras):
                self.link.models.want(desired, extras)
                self._publish()
            case GetTree(wire_id):
                self._send(render_extension(Tree(wire_id, attrs.asdict(running_tree()))))
            case UnknownExtension(name):
                if recover_extension_id(frame) is not None:
                    raise WireError(f"this agent is too old to know {name[:80]!r} @ $.{TAG}")
                self._ignore(name)
            case other:
                raise WireError(f"{type(other).__name__} is not a balancer's to say @ $.{TAG}")

    # -------------------------------------------------------------- private

    def _ignore(self, name: str) -> None:
        if self._unknown.is_first(name):
            log.warning("unknown notification ignored", notification=name)

    def _publish(self) -> None:
        """Queue the status, unless the balancer has this one."""
        status = self.link.status
        if self._published == status.changes.ordinal:
            return
        self._published = status.changes.ordinal
        if self.speaks_trio:  # first, so that slots never show before the state they belong to
            self._send(render_extension(status.report()))
        self._send(render(UpdateAgentStatus(status.snapshot())))

    def _send(self, frame: bytes) -> None:
        try:
            self._frames.send_nowait(frame)
            self._queued += 1
        except trio.WouldBlock:
            self._end("the balancer does not read")
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the connection is ending; its requests are stopped with it

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._scope.cancel(reason=reason)


def _words(group: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(map(_word, leaves(group)))


def _word(error: BaseException) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected) and error.status_code in (401, 403):
        # never the headers, never the token: the balancer's own sentence says what it wants
        said = (error.body or b"").decode(errors="replace")[:300]
        advice = "; see --token-file" if error.status_code == 401 else ""
        return f"the balancer refused this agent ({error.status_code}): {said}{advice}"
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else repr(error)
