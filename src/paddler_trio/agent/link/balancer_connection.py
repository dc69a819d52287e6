"""One connection of an agent to its balancer: registration, status, requests in and results out.

A connection is a reader (its task), a writer for what cannot be sent at once, a status publisher
and a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import structlog
import trio
import trio_websocket

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.credential_rotation import CredentialRotation
from paddler_trio.agent.link.link_reply import (
    DialledStream,
    LinkModels,
    LinkReply,
    LinkRequests,
    LinkWriter,
    paddlers_answer,
)
from paddler_trio.errors import LinkError, WireError
from paddler_trio.system.logs.logs import FirstTimes
from paddler_trio.system.printed_tree import running_tree
from paddler_trio.wire.codec import loads
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
    render,
)
from paddler_trio.wire.paddler.raw_results import recover_request_id
from paddler_trio.wire.paddler.status import SlotAggregatedStatusSnapshot
from paddler_trio.wire.trio.fit_messages import AskFit
from paddler_trio.wire.trio.operations.machine_facts import MachineFacts, machine_message
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.request_frame import MAX_ID_CHARS, RequestFrame, read_head
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
    SUBPROTOCOL,
    TAG,
    Ask,
    Cache,
    GetTree,
    Instances,
    InstanceWanted,
    Leaving,
    Placement,
    Start,
    Store,
    Tree,
    UnknownExtension,
    Want,
    parse_extension,
    recover_extension_id,
    render_extension,
)
from paddler_trio.wire.trio.upstream_messages import OpenTunnel, Rotate, Rotated, Upstream

log = structlog.get_logger("link")

STATUS_INTERVAL_S = 1.0
HEARTBEAT_S = 2.0
HEARTBEAT_DEADLINE_S = 5.0
DEREGISTRATION_S = 5.0
"""The time for everything queued to be sent, before an agent that leaves closes anyway."""
FORWARDING_S = 0.5
"""A balancer of Paddler's drops the results that it has read and not forwarded yet when an agent
deregisters. It does not report when it has forwarded them; that takes moments."""


@attrs.define(eq=False)
class BalancerConnection:
    """One connection; its requests answer on ``reply``.

    Args:
      on_store: called with the path at which the balancer keeps models, if it does.
      placement: sent before the registration; None sends nothing.
      offer: what the server behind this agent is; None if there is none.
      machine: what is known of this machine, another object for each look; None for nothing.
      on_instances, rotation: see :class:`~paddler_trio.agent.link.balancer_link.BalancerLink`.
      stream: what ``socket`` writes to; see ``LinkWriter``.
      slots: how many slots may be offered here; None for all.
      on_leaving: called when the balancer leaves, and needs as many slots from then on.
    """

    socket: trio_websocket.WebSocketConnection
    name: str | None
    status: AgentStatus
    models: LinkModels
    requests: LinkRequests
    on_store: Callable[[str], None] = lambda path: None
    placement: Placement | None = None
    on_instances: Callable[[Sequence[InstanceWanted]], None] | None = None
    rotation: CredentialRotation | None = None
    offer: Callable[[], Upstream | None] = lambda: None
    machine: Callable[[], MachineFacts | None] = lambda: None
    stream: DialledStream | None = None
    slots: Callable[[], int] | None = None
    on_leaving: Callable[[int], None] = lambda slots: None
    speaks_trio: bool = attrs.field(init=False)
    reply: LinkReply = attrs.field(init=False)
    is_left: bool = attrs.field(default=False, init=False)
    """The balancer leaves: what is desired is what its successor says."""
    _rotating: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _offered: Upstream | None = attrs.field(default=None, init=False)
    _shown_machine: MachineFacts | None = attrs.field(default=None, init=False)
    _writer: LinkWriter = attrs.field(init=False)
    _published: int = attrs.field(default=-1, init=False)
    _unknown: FirstTimes = attrs.field(factory=FirstTimes, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _reason: str = attrs.field(default="the balancer closed the connection", init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.speaks_trio = self.socket.subprotocol == SUBPROTOCOL
        full = partial(self._end, "the balancer does not read")
        self._writer = LinkWriter(self.socket, self.stream, full)
        self.reply = LinkReply(self._writer, self.speaks_trio, self._publish)

    async def run(self, on_registered: Callable[[], None]) -> str:
        """Register, then exchange frames until either side ends it; returns why.

        Raises:
          LinkError: this is an instance of a deployment, and a balancer of Paddler's has none.
        """
        if self.placement is not None:
            if self.speaks_trio:
                self._send(render_extension(self.placement))
                self._offer()
            elif self.placement.deployment != DEFAULT_DEPLOYMENT:
                raise LinkError(
                    f"the balancer speaks Paddler's protocol only: it has no deployment "
                    f"{self.placement.deployment!r}"
                )
        self._send(render(RegisterAgent(self.name, self._snapshot())))
        self._publish()
        on_registered()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._writer.run, name="writer to balancer")
                    nursery.start_soon(
                        self.reply.write_large, name="writer of large frames to balancer"
                    )
                    nursery.start_soon(self._publish_changes, name="status publisher")
                    nursery.start_soon(self._beat, name="heartbeat")
                    if self.rotation is not None and self.speaks_trio:
                        rotate = partial(self._rotate_secret, self.rotation)
                        nursery.start_soon(rotate, name="credential rotation")
                    await self._read()
        finally:
            self._ended.set()
        return self._reason

    def __repr__(self) -> str:
        peer = "paddler-trio" if self.speaks_trio else "paddler"
        return f"<BalancerConnection to {peer}: {self._writer.num_unsent} frames unsent>"

    async def deregister(self) -> None:
        """Deregister after everything queued was sent.

        Returns when the balancer has closed the connection, which it does on reading that, or after
        ``DEREGISTRATION_S``.
        """
        with trio.move_on_after(DEREGISTRATION_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._deregister, name="deregistration")
                await self._ended.wait()
                nursery.cancel_scope.cancel(reason="the connection has ended")
        self._end("this agent is leaving")

    async def _deregister(self) -> None:
        if not self.speaks_trio:
            await self._until_forwarded()
        self._send(render(DeregisterAgent()))
        self._writer.close()

    async def _until_forwarded(self) -> None:
        """Wait until results were forwarded. A pong means that everything before the ping was read;
        its delay shows the load."""
        await self.reply.sent()
        pinged_s = trio.current_time()
        try:
            await self.socket.ping()
        except trio_websocket.ConnectionClosed:
            return
        round_trip_s = trio.current_time() - pinged_s
        await trio.sleep_until(self.reply.last_result_s + FORWARDING_S + 4 * round_trip_s)

    # ---------------------------------------------------------------- tasks

    async def _publish_changes(self) -> None:
        """Publish the status after every change, and once a second: a balancer takes a silent agent
        for dead."""
        while True:
            with trio.move_on_after(STATUS_INTERVAL_S):
                await self.status.changes.wait_beyond(self._published)
            self._published = -1
            self._publish()

    async def _beat(self) -> None:
        """End the connection if the balancer does not answer a ping in time."""
        while True:
            await trio.sleep(HEARTBEAT_S)
            with trio.move_on_after(HEARTBEAT_DEADLINE_S) as timeout:
                await self.socket.ping()
            if timeout.cancelled_caught:
                self._end(f"no answer to a ping in {HEARTBEAT_DEADLINE_S:g} s")

    async def _read(self) -> None:
        try:
            while True:
                text = await self.socket.get_message()
                if isinstance(text, str):
                    request = read_head(text, speaks_trio=self.speaks_trio)
                    if request is None:
                        self._handle(text)
                    else:
                        self._on_work(request)
                else:
                    log.warning("binary frame ignored")
        except trio_websocket.ConnectionClosed as closed:
            self._end(closed_reason(closed))

    # ------------------------------------------------------------- messages

    def _handle(self, text: str) -> None:
        """Handle one frame; an unreadable one that names a request is answered."""
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
                self.reply.refuse(wire_id, error)
            return
        match message:
            case SetState() if self.is_left:
                log.debug("ignored: the balancer leaves", message=type(message).__name__)
            case SetState(desired):
                self.models.set_desired(desired)
                self._publish()
            case AgentRequest(wire_id, GetModelMetadata() | GetChatTemplateOverride() as query):
                self.reply.respond(wire_id, paddlers_answer(self.models, query))
            case AgentRequest(wire_id) as work:  # its members are in another order
                self._on_reordered(wire_id, render(work))
            case StopRespondingTo(wire_id):
                self.requests.stop(wire_id, self.reply)
            case Version(version):
                log.debug("balancer version", version=version)
            case UnknownNotification(name):
                self._ignore(name)
            case ErrorEnvelope(wire_id, problem):
                log.warning("the balancer reports an error", id=wire_id, error=str(problem))

    def _on_work(self, frame: RequestFrame) -> None:
        """Pass a request on unread: it may be large, and is parsed where it is prepared."""
        self.requests.work(frame, self.reply)

    def _on_reordered(self, wire_id: str, text: bytes) -> None:
        """Take a request whose frame does not begin as ours and Paddler's do."""
        frame = read_head(text.decode(), speaks_trio=self.speaks_trio)
        if frame is None:
            problem = f"a request's id has 1 to {MAX_ID_CHARS} characters and no quotes"
            self.reply.refuse(wire_id, problem)
        else:
            self._on_work(frame)

    def _on_extension(self, frame: object) -> None:
        if not isinstance(frame, dict) or frame.keys() != {TAG}:
            raise WireError("a Trio frame has one key @ $")
        match parse_extension(frame[TAG]):
            case Start() | Ask() as work:  # its members are in another order
                self._on_reordered(work.id, render_extension(work))
            case Leaving(slots):
                self.is_left = True
                self._rotating.cancel(reason="the balancer leaves")
                self.on_leaving(slots)
            case (Want() | Store() | Instances()) as message if self.is_left:
                log.debug("ignored: the balancer leaves", message=type(message).__name__)
            case Want(desired, extras):
                self.models.set_desired(desired, extras)
                self._publish()
            case AskFit() as question:
                self.requests.ask_fit(question, self.reply)
            case Operate() as operate:
                self.requests.operate(operate, self.reply)
            case Cache() as command:
                self.requests.command_cache(command, self.reply)
            case Store(path):
                self.on_store(path)
            case Instances(instances=wanted):
                if self.on_instances is None:
                    raise WireError(f"instances are listed on a host's first link @ $.{TAG}")
                self.on_instances(wanted)
            case OpenTunnel(secret):
                self.requests.open_tunnel(secret, self.reply)
            case Rotated(sha256):
                if self.rotation is not None:
                    self.rotation.confirmed(sha256)
            case GetTree(wire_id):
                self._send(render_extension(Tree(wire_id, attrs.asdict(running_tree()))))
            case UnknownExtension(name):
                if recover_extension_id(frame) is not None:
                    raise WireError(f"this agent is too old to know {name[:80]!r} @ $.{TAG}")
                self._ignore(name)
            case other:
                raise WireError(f"{type(other).__name__} is not a balancer's to say @ $.{TAG}")

    # -------------------------------------------------------------- private

    async def _rotate_secret(self, rotation: CredentialRotation) -> None:
        with self._rotating:
            await rotation.run(self._rotate)

    def _snapshot(self) -> SlotAggregatedStatusSnapshot:
        """Return the status as it is offered here."""
        status = self.status.snapshot()
        return status if self.slots is None else attrs.evolve(status, slots_total=self.slots())

    def _rotate(self, wish: Rotate) -> None:
        self._send(render_extension(wish))

    def _ignore(self, name: str) -> None:
        if self._unknown.is_first(name):
            log.warning("unknown notification ignored", notification=name)

    def _publish(self) -> None:
        """Queue the status if it changed."""
        status = self.status
        if self._published == status.changes.ordinal:
            return
        self._published = status.changes.ordinal
        if self.speaks_trio:  # first, so that slots never show before the state they belong to
            self._offer()
            self._show_machine()
            self._send(render_extension(status.report()))
        self._send(render(UpdateAgentStatus(self._snapshot())))

    def _offer(self) -> None:
        """Queue what the server behind this agent is, if there is one and that changed."""
        offer = self.offer()
        if offer is not None and offer != self._offered:
            self._offered = offer
            self._send(render_extension(offer))

    def _show_machine(self) -> None:
        """Queue what is known of this machine, after each look at it."""
        facts = self.machine()
        if facts is not None and facts is not self._shown_machine:
            self._shown_machine = facts
            self._send(render_extension(machine_message(facts)))

    def _send(self, frame: bytes) -> None:
        self._writer.send(frame)

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._scope.cancel(reason=reason)


def closed_reason(closed: trio_websocket.ConnectionClosed) -> str:
    """Return why a connection closed, in the same words whichever task met the end first."""
    code = None if closed.reason is None else closed.reason.code
    return f"the connection closed (code {code})"
