"""The WebSocket an agent dials: ``/api/v1/agent_socket/{agent_id}`` on the management port.

Each connection is a task that lives as long as the agent is here, a writer that alone owns the
sending side, and a watch for silence. Frames are handled where they are read, by the task of the
connection, so that no token waits for a task switch; a frame that is too long for that is decoded
in a thread first, and those behind it wait. What such a frame causes happens to the agent: an error
in it ends the agent's task, and once that has ended, frames cause nothing.

Agents speak at least once a second, so one of which nothing arrived for ``silence_s`` has vanished.
What arrived counts, not what was read: after a stall of our own event loop there is everything that
the agent sent meanwhile, and it is read before anything is concluded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import structlog
import trio

from paddler_trio.balancer.agents.agent_frames import (
    FAMILIES,
    AgentFrame,
    decode,
    deliver,
    take_step,
)
from paddler_trio.balancer.agents.agent_machines import AgentMachines
from paddler_trio.balancer.agents.link_credential import LinkCredential
from paddler_trio.balancer.front.status_limits import (
    bounded_progress,
    bounded_reason,
    bounded_report,
    bounded_status,
    identity_problem,
    placement_problem,
    restarts_in,
)
from paddler_trio.errors import WireError, leaves
from paddler_trio.net.server.asgi import Receive
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import INLINE_BYTES, Reservation
from paddler_trio.net.server.json_body import input_of
from paddler_trio.net.websocket.arrivals import Arrivals
from paddler_trio.nursery_tree.agent_connection import OUTGOING_FRAMES, AgentConnection
from paddler_trio.nursery_tree.agent_kinds import (
    PADDLER,
    TRIO,
    UPSTREAM,
    AgentKind,
    Feature,
    features_in,
)
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.request import Lease
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.logs.logs import FirstTimes
from paddler_trio.wire.paddler.messages import (
    AgentResponse,
    DeregisterAgent,
    ErrorEnvelope,
    RegisterAgent,
    UnknownNotification,
    UpdateAgentStatus,
    Version,
    read_token,
    render,
)
from paddler_trio.wire.paddler.raw_results import is_text
from paddler_trio.wire.paddler.status import SlotAggregatedStatusSnapshot
from paddler_trio.wire.trio.cache_commands import CacheProgress
from paddler_trio.wire.trio.operations.machine_facts import Machine, read_facts
from paddler_trio.wire.trio.prompt_stages import FEATURES_HEADER
from paddler_trio.wire.trio.trio_link import (
    SUBPROTOCOL,
    TAG,
    Answer,
    Followed,
    HandBack,
    Placement,
    Report,
    Store,
    Tree,
    UnknownExtension,
    parse_extension,
    render_extension,
)
from paddler_trio.wire.trio.upstream_messages import Rotate, Upstream
from paddler_trio.wire.visible_text import visible

log = structlog.get_logger("agents")

PROTOCOL_VERSION = "4.1.0"
"""What Paddler's agents compare with their own; they only warn if it differs."""

UNREAD_POLL_S = 0.05


@attrs.define(eq=False)
class AgentSocket:
    """Accepts agents; one instance serves every connection."""

    dispatcher: Dispatcher
    stopping: trio.Event
    silence_s: float = 5.0
    store_path: str | None = None
    """Where agents of ours fetch models first; None if this balancer keeps none."""
    machines: AgentMachines = attrs.field(factory=AgentMachines)
    _connections: int = attrs.field(default=0, init=False)

    async def serve(self, exchange: Exchange, agent_id: str) -> None:
        """Serve one agent, from the upgrade to the end of its connection."""
        connecting = await exchange.receive()
        assert connecting["type"] == "websocket.connect"
        is_ours = SUBPROTOCOL in exchange.subprotocols
        if (problem := identity_problem(agent_id, None)) is not None:
            log.error("closing agent link", agent=agent_id, reason=problem)
            await exchange.send({"type": "websocket.close", "code": 1008, "reason": problem[:100]})
            return
        self._connections += 1
        outgoing, frames = trio.open_memory_channel[bytes](OUTGOING_FRAMES)
        link = _Link(
            self,
            AgentKey(self._connections),
            agent_id,
            TRIO if is_ours else PADDLER,
            features_in(exchange.header(FEATURES_HEADER) or b"") if is_ours else frozenset(),
            outgoing,
            input_of(exchange),
            LinkCredential(exchange.identity.agent, agent_id),
        )
        outgoing.send_nowait(render(Version(PROTOCOL_VERSION)))
        if exchange.websocket is not None:
            exchange.websocket.take_texts_to(link)
        await exchange.send(
            {"type": "websocket.accept", "subprotocol": SUBPROTOCOL if is_ours else None}
        )

        async def run() -> None:
            await link.run(exchange.receive, frames, exchange.send_encoded, exchange.arrivals)

        code, reason = 1000, ""
        try:
            await self.dispatcher.run_agent(run, name=f"agent {agent_id}, not registered")
        except* WireError as group:
            code, reason = 1008, str(next(leaves(group)))[:100]
            log.error("closing agent link", agent=agent_id, reason=str(next(leaves(group))))
        finally:
            link.close()
        if self.stopping.is_set():
            code, reason = 1001, "Server shutting down"
        with trio.move_on_after(1, shield=True):
            await exchange.send({"type": "websocket.close", "code": code, "reason": reason})


async def _write(
    frames: trio.MemoryReceiveChannel[bytes], send_text: Callable[[bytes], Awaitable[None]]
) -> None:
    async for frame in frames:
        await send_text(frame)


@attrs.define(eq=False)
class _Link:
    """One connection: its tasks, and what its reader knows."""

    socket: AgentSocket
    key: AgentKey
    agent_id: str
    kind: AgentKind
    features: frozenset[Feature]
    outgoing: trio.MemorySendChannel[bytes]
    room: Reservation
    credential: LinkCredential
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    agent: AgentConnection | None = attrs.field(default=None, init=False)
    placement: Placement | None = attrs.field(default=None, init=False)
    """What it announced before its registration, if anything."""
    upstream: Upstream | None = attrs.field(default=None, init=False)
    """The same, if it stands in front of a server."""
    unknown: FirstTimes = attrs.field(factory=FirstTimes, init=False)
    _reading: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _heard_s: float = attrs.field(factory=trio.current_time, init=False)
    _is_decoding: bool = attrs.field(default=False, init=False)
    """A frame has been read and not handled yet: what follows it cannot be heard."""
    _has_begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The agent's task runs; no frame is handled before that."""
    _is_over: bool = attrs.field(default=False, init=False)
    """Frames that still come cause nothing."""
    _held: dict[str, tuple[Lease, list[RawResult]]] = attrs.field(factory=dict, init=False)
    """Tokens that have come and were not delivered yet, by the ids of their requests."""
    _problem: Exception | None = attrs.field(default=None, init=False)
    """What was wrong with the last frame, or a bug of ours that it met."""
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(
        self,
        receive: Receive,
        frames: trio.MemoryReceiveChannel[bytes],
        send_text: Callable[[bytes], Awaitable[None]],
        arrivals: Arrivals | None,
    ) -> None:
        """Serve the agent from the first frame to the last; it has left the dispatcher when this
        returns.

        Raises:
          WireError, in a group: what the agent sent is not the protocol.
        """
        with self.scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(_write, frames, send_text, name="writer")
                nursery.start_soon(self.watch_silence, arrivals, name="silence")
                nursery.start_soon(self._end_with_the_balancer, name="goodbye watch")
                try:
                    await self.read(receive)
                finally:
                    self.close()  # now: a write to an agent that vanished still takes its time
                nursery.cancel_scope.cancel(reason="the agent closed the connection")

    async def _end_with_the_balancer(self) -> None:
        await self.socket.stopping.wait()
        self.scope.cancel(reason="balancer is shutting down")

    async def read(self, receive: Receive) -> None:
        """Until the agent closes, deregisters, is silent for too long, or sent what is no frame.

        Under a server that has no sink for texts, they are read here.
        """
        self._task = trio.lowlevel.current_task()
        self._has_begun.set()
        with self._reading:
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                if text is None:
                    log.warning("binary frame ignored", agent=self._label)
                    self._heard_s = trio.current_time()
                elif (pending := self.take([text])) is not None:
                    await pending
        if self._problem is not None:
            raise self._problem

    @property
    def _label(self) -> str:
        """Return its name in logs; its id until it has registered."""
        return self.agent_id if self.agent is None else self.agent.label

    def takes_now(self, text: str) -> bool:
        """Take results now, as in ``TextSink``."""
        return self._has_begun.is_set() and len(text) <= INLINE_BYTES

    def take(self, texts: Sequence[str]) -> Awaitable[None] | None:
        """Handle frames now; those that must wait for something, in what is returned."""
        if not self._has_begun.is_set():
            return self._take_slowly(texts)
        self._heard_s = trio.current_time()
        has_tokens = len(texts) > 1 and not self.kind.reports_tokens
        try:
            for place, text in enumerate(texts):
                if len(text) > INLINE_BYTES:
                    return self._take_slowly(texts[place:])
                if has_tokens and self._holds(text):
                    continue
                self._deliver_held()
                self._take_one(decode(text, is_extended=self.kind.is_extended))
        finally:
            self._deliver_held()
            self._flush()
        return None

    def _holds(self, text: str) -> bool:
        """Tokens of one request that come together are delivered together. Those of a Paddler agent
        have a frame each, and cost more around them than in them."""
        token = None if self._is_over or self.agent is None else read_token(text)
        if token is None:
            return False
        _, wire_id, result = token
        if not is_text(result):
            return False
        held = self._held.get(wire_id)
        if held is None:
            assert self.agent is not None
            lease = self.agent.lease(wire_id)
            if lease is None:
                return False
            held = self._held[wire_id] = (lease, [])
        held[1].append(result)
        return True

    def _deliver_held(self) -> None:
        if not self._held:
            return
        held, self._held = self._held, {}
        try:
            for lease, results in held.values():
                lease.deliver("GeneratedToken", results, ends=False, now_s=self._heard_s)
        except Exception as error:  # noqa: BLE001  # raised in the agent's task: it ends the agent
            self._end_with(error)

    async def _take_slowly(self, texts: Sequence[str]) -> None:
        """A long frame is decoded in a thread, so that no tokens of others wait for it."""
        self._is_decoding = True
        try:
            await self._has_begun.wait()
            for text in texts:
                if len(text) > INLINE_BYTES:
                    read = partial(decode, text, is_extended=self.kind.is_extended)
                    frame = await self.room.off_loop(read)
                else:
                    frame = decode(text, is_extended=self.kind.is_extended)
                self._take_one(frame)
                self._flush()
        finally:
            self._is_decoding = False
            self._heard_s = trio.current_time()

    def _flush(self) -> None:
        if self.agent is not None:
            self.agent.flush()

    def _take_one(self, frame: AgentFrame) -> None:
        if self._is_over:
            return
        try:
            if not self._handle(frame):
                self._end_with(None)
        except Exception as error:  # noqa: BLE001  # raised in the agent's task: it ends the agent
            self._end_with(error)

    def _end_with(self, problem: Exception | None) -> None:
        self._is_over, self._problem = True, problem
        self._reading.cancel(reason="the agent said goodbye, or what is no frame")

    async def watch_silence(self, arrivals: Arrivals | None) -> None:
        """End the reading when nothing came for too long and nothing waits to be read."""
        silence_s = self.socket.silence_s
        while True:
            heard_s = self._heard_s
            if arrivals is not None:
                heard_s = max(heard_s, arrivals.last_s)
            if heard_s + silence_s > trio.current_time():
                await trio.sleep_until(heard_s + silence_s)
            elif self._is_decoding or (arrivals is not None and arrivals.has_unread()):
                await trio.sleep(UNREAD_POLL_S)  # the delay is ours
            else:
                break
        log.warning(
            "agent is silent: gone", agent=self._label, agent_id=self.agent_id, silence_s=silence_s
        )
        self._reading.cancel(reason="the agent is silent")

    def close(self) -> None:
        """The agent and everything it held are gone, in one step. Safe to repeat."""
        self._is_over = True
        self._has_begun.set()  # frames that waited for it are dropped
        agent, self.agent = self.agent, None
        if agent is not None:
            self.socket.dispatcher.leave(agent)
            self.socket.machines.forget(agent)
            agent.close()
            words = {"agent": agent.label, "deployment": agent.deployment}
            if agent.said_goodbye or self.socket.dispatcher.is_draining:
                log.info("agent left", **words)
            else:
                log.warning("agent left", **words, reason="its connection broke")

    # ------------------------------------------------------------- messages

    def _handle(self, frame: AgentFrame) -> bool:
        """Handle one frame; False ends the connection in an orderly way.

        A frame that is not one raises WireError, after its request, if it names one, has failed.
        """
        try:
            if isinstance(frame.message, Exception):
                raise frame.message
            if frame.is_extension:
                self._on_extension(frame.message, is_escaped=frame.is_escaped)
                return True
            match frame.message:
                case AgentResponse() as response:
                    self._on_response(response)
                case RegisterAgent() as registration:
                    self._register(registration)
                case UpdateAgentStatus() as update:
                    self._update(update)
                case ErrorEnvelope(wire_id, error):
                    log.warning(
                        "agent reports an error", agent=self._label, id=wire_id, error=str(error)
                    )
                case UnknownNotification(name):
                    self._ignore(name)
                case DeregisterAgent():
                    if self.agent is not None:
                        self.agent.said_goodbye = True
                    return False
        except (WireError, ValueError, KeyError, RecursionError) as error:
            blamed = frame.request_id
            lease = None if blamed is None or self.agent is None else self.agent.lease(blamed)
            if lease is not None:
                lease.broken_frame(str(error))
            raise WireError(str(error)) from error
        return True

    def _ignore(self, name: str) -> None:
        if self.unknown.is_first(name):
            log.warning("unknown notification ignored", agent=self._label, notification=name)

    def _register(self, registration: RegisterAgent) -> None:
        dispatcher = self.socket.dispatcher
        if (problem := identity_problem(self.agent_id, registration.name)) is not None:
            raise WireError(problem)
        problem = self.credential.name_problem(registration.name, self.placement)
        if problem is not None:
            raise WireError(problem)
        if self.agent is not None:
            raise WireError(f"agent {self.agent_id} registered twice on one connection")
        if dispatcher.agents.is_here(self.agent_id):
            raise WireError(f"an agent with the id {self.agent_id!r} is connected already")
        name = self.credential.name(registration.name)
        agent = AgentConnection(
            key=self.key,
            id=self.agent_id,
            name=None if name is None else visible(name),
            kind=self.kind,
            features=self.features,
            status=bounded_status(registration.slot_aggregated_status_snapshot),
            scope=self.scope,
            outgoing=self.outgoing,
            health=dispatcher.health,
            upstream=self.upstream,
        )
        if self.placement is not None:
            agent.deployment = self.placement.deployment
            agent.host, agent.labels = self.placement.host, self.placement.labels
            agent.instances = self.placement.instances
        agent.labels = self.credential.labels(agent.labels)
        if (problem := _upstream_problem(dispatcher, agent)) is not None:
            raise WireError(problem)
        self.agent = agent
        assert self._task is not None
        self._task.name = f"agent {agent.label}"
        if self.socket.store_path is not None and self.kind.is_extended:
            agent.send(render_extension(Store(self.socket.store_path)))
        agent.readiness.await_state()
        dispatcher.join(agent)
        log.info(
            "agent joined",
            agent=agent.label,
            id=agent.id,
            protocol=self.kind.protocol,
            **({} if self.placement is None else {"deployment": agent.deployment}),
        )

    def _place(self, message: object) -> None:
        """The only messages of ours that may come before the registration."""
        if isinstance(message, UnknownExtension):
            self._ignore(message.name)
            return
        if isinstance(message, Upstream):
            self.kind, self.upstream = UPSTREAM, message
            return
        if not isinstance(message, Placement):
            raise WireError("the agent speaks before it registered")
        if self.placement is not None:
            raise WireError(f"agent {self.agent_id} announced its place twice")
        problem = placement_problem(self.agent_id, message)
        if problem is not None:
            raise WireError(f"{problem} @ $.{TAG}.Placement")
        self.placement = message

    def _update(self, update: UpdateAgentStatus) -> None:
        agent = self.agent
        if agent is None:
            log.warning("status before registration ignored", agent=self.agent_id)
            return
        agent.reported_s = trio.current_time()
        status = bounded_status(update.slot_aggregated_status_snapshot)
        if status.version < agent.status.version:
            return  # an older snapshot that arrived late
        same = _visible(status) == _visible(agent.status)
        agent.status = status
        agent.is_suspended = False
        if agent.refresh_readiness() or not same:
            self.socket.dispatcher.update(agent)

    def _on_response(self, message: AgentResponse) -> None:
        agent = self.agent
        response = message.response_raw
        assert isinstance(response, dict)
        if agent is None or agent.questions.answer(message.request_id, response):
            return
        lease = agent.lease(message.request_id)
        if lease is None:
            log.debug("late response dropped", agent=agent.label, id=message.request_id)
            return
        (family, result) = next(iter(response.items()))
        if family not in FAMILIES:
            raise WireError(f"{family} answers no generation @ $.Response.response")
        deliver(lease, family, [result], extended=self.kind.is_extended)

    def _on_extension(self, body: object, *, is_escaped: bool) -> None:
        agent = self.agent
        if agent is None:
            self._place(parse_extension(body))
            return
        if isinstance(body, dict) and "Step" in body:
            take_step(agent, body["Step"], is_escaped=is_escaped)
            return
        match parse_extension(body):
            case Report() as unbounded:
                report = bounded_report(unbounded)
                same = report == agent.report
                _warn_of_failure(agent, report)
                agent.report = report
                agent.engine_restarts = restarts_in(report, agent.engine_restarts)
                if agent.refresh_readiness() or not same:
                    self.socket.dispatcher.update(agent)
            case HandBack(wire_id, reason, engine_died, suspects):
                lease = agent.lease(wire_id)
                if lease is not None:
                    among = 1 if suspects is None else suspects
                    self.socket.dispatcher.hand_back(
                        lease, bounded_reason(reason), suspects=among if engine_died else 0
                    )
            case Tree(wire_id, tree):
                agent.questions.answer(wire_id, tree)
            case Answer(wire_id) as answer:
                agent.questions.answer(wire_id, answer)
            case CacheProgress() as progress:
                agent.questions.progressed(bounded_progress(progress))
            case Upstream() as upstream:
                if not self.kind.forwards:
                    raise WireError(f"an agent with models of its own has none @ $.{TAG}.Upstream")
                if upstream != agent.upstream:
                    agent.upstream = upstream
                    self.socket.dispatcher.update(agent)
            case Machine(facts):
                self.socket.machines.note(agent, read_facts(facts))
            case Followed():
                agent.has_followed = True
                self.socket.dispatcher.fleet_changed.notify()
            case Rotate() as wish:
                self.credential.rotate(wish, agent.send, self._nursery)
            case UnknownExtension(name):
                self._ignore(name)
            case other:
                raise WireError(f"{type(other).__name__} is not an agent's to send @ $.{TAG}")


def _warn_of_failure(agent: AgentConnection, report: Report) -> None:
    """One line for each failure, whatever else the agent reports of it."""
    before = agent.report
    if report.phase == "failed" and (
        before is None or (before.phase, before.detail) != (report.phase, report.detail)
    ):
        log.warning(
            "agent cannot serve what is desired",
            agent=agent.label,
            deployment=agent.deployment,
            reason=report.detail,
        )


def _upstream_problem(dispatcher: Dispatcher, agent: AgentConnection) -> str | None:
    """Why an agent cannot be of its deployment: that is one of servers or one of models."""
    if agent.kind.forwards:
        return dispatcher.pools.upstream_problem(agent.deployment)
    pool = dispatcher.pools.find(agent.deployment)
    if pool is not None and pool.is_upstream:
        return f"the deployment {agent.deployment!r} is of servers, and this agent runs models"
    return None


def _visible(status: SlotAggregatedStatusSnapshot) -> SlotAggregatedStatusSnapshot:
    """Return what of a status is visible; the slot count shown is the balancer's own."""
    return attrs.evolve(status, version=0, slots_processing=0)
