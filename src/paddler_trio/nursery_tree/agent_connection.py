"""One registered agent: its record, the requests it works on, and the one queue towards it.

The record belongs to the connection: it appears with the registration and vanishes with the
socket, so nothing stale can remove or answer for a live agent. Ids towards the agent are ours;
a client's id never leaves the balancer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import structlog
import trio

from paddler_trio.errors import LinkError, PaddlerError
from paddler_trio.net.tunnels import Tunnels
from paddler_trio.nursery_tree.agent_kinds import AgentKind, Feature, Readiness
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.request import Lease
from paddler_trio.nursery_tree.step_results import ResultSink
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.fair_places import FairPlaces
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    applicable_state,
)
from paddler_trio.wire.paddler.messages import SetState, StopRespondingTo, render
from paddler_trio.wire.paddler.status import SlotAggregatedStatusSnapshot
from paddler_trio.wire.trio.cache_commands import CacheProgress, CacheRequest, Pull
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.fit_messages import AskFit, FitQuestion
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
    MAX_FRAME_BYTES,
    Answer,
    Cache,
    GetTree,
    Leaving,
    Report,
    Want,
    render_extension,
)
from paddler_trio.wire.trio.upstream_messages import Upstream

log = structlog.get_logger("agents")

OUTGOING_FRAMES = 1024
"""Frames an agent may lag behind. Requests are few and its reader is quick: a full queue means
that the agent does not read at all, and then the connection is given up."""
QUESTIONS_AT_ONCE = 48
"""To the model of one agent, which refuses more than 64; the others wait here, clients in turns.
All that waited for a model would be asked when it is there."""
QUESTIONS_OF_ONE_CLIENT = QUESTIONS_AT_ONCE // 2
TUNNELS_BESIDE_SLOTS = 32
"""To a server, for what takes no slot of it, and twice as many as it has slots for the rest: one
that is being closed and one that is begun may overlap."""
COMMAND_BEGINS_S = 10.0
"""An agent that works on a command reports at once that it does."""
COMMAND_SILENCE_S = 600.0
"""Longer than any part of a command that shows no progress: listing and removing."""


class AgentDisconnectedError(LinkError):
    """Its connection is over: it may be back in a moment, on another one."""


class QuestionRefusedError(PaddlerError):
    """The agent has no answer; ``code`` mirrors HTTP status numbers, ``problem`` is the reason."""

    def __init__(self, code: int, problem: str) -> None:
        super().__init__(f"{code} {problem}")
        self.code = code
        self.problem = problem


@attrs.define(eq=False, repr=False)
class AgentConnection:
    """See the module docstring.

    Args:
      key: this connection's number.
      id: the agent's own id, from the URL; the same across its reconnects.
      kind: what it can do.
      features: what it understands that earlier agents of its kind do not.
      deployment: what it serves.
      host: id of the first link of the agent process that this is an instance of; its own id if
        it is that link.
      labels: of its host.
      instances: of the host's first link: the deployments that it served beside ``default`` when
        it registered.
      upstream: the server that it stands in front of; None if it runs models itself.
    """

    key: AgentKey
    id: str
    name: str | None
    kind: AgentKind
    status: SlotAggregatedStatusSnapshot
    scope: trio.CancelScope
    outgoing: trio.MemorySendChannel[bytes]
    report: Report | None = attrs.field(default=None, init=False)
    health: HealthTracker
    deployment: str = DEFAULT_DEPLOYMENT
    host: str = attrs.field(default=attrs.Factory(lambda self: self.id, takes_self=True))
    labels: Mapping[str, str] = attrs.field(factory=dict)
    instances: tuple[str, ...] = ()
    features: frozenset[Feature] = frozenset()
    upstream: Upstream | None = None
    readiness: Readiness = attrs.field(
        default=attrs.Factory(lambda self: self.kind.readiness(), takes_self=True), init=False
    )
    tunnels: Tunnels | None = attrs.field(default=None, init=False)
    """To that server."""
    has_followed: bool = attrs.field(default=False, init=False)
    """It is registered with the process that takes over."""
    kept_slots: int | None = attrs.field(default=None, init=False)
    """While another process takes over: the slots of it that this one may still use."""
    is_accepting: bool = attrs.field(default=False, init=False)
    """It serves the state that was sent to it, or stands in, and neither failed too often nor is
    drained."""
    serves_desired: bool = attrs.field(default=False, init=False)
    """It serves a state that is admissible."""
    usable_slots: int = attrs.field(default=0, init=False)
    """As many of its slots as may be used now; fewer while it ramps up."""
    said_goodbye: bool = attrs.field(default=False, init=False)
    """It deregistered: the end of the connection is no loss."""
    is_suspended: bool = attrs.field(default=False, init=False)
    """The server that it stands in front of did not answer since its last report."""
    rests_until_s: float = attrs.field(default=-math.inf, init=False)
    """It gave a request back twice in a row: others get a chance meanwhile."""
    is_drained: bool = attrs.field(default=False, init=False)
    """Drained by an operator: it finishes what it has and gets nothing new."""
    joined_s: float = attrs.field(default=0.0, init=False)
    """When it joined the dispatcher."""
    reported_s: float = attrs.field(factory=trio.current_time, init=False)
    """When its last status came."""
    engine_restarts: int = attrs.field(default=0, init=False)
    """How often its engines crashed and were started again, since the agent was started."""
    idle_since_s: float | None = attrs.field(default=None, init=False)
    """Since when no request is on it; None while one is, and before it joins."""
    touched: dict[ResultSink, None] = attrs.field(factory=dict, init=False)
    """Sinks of requests that were given results since the last ``flush``."""
    _leases: dict[str, Lease] = attrs.field(factory=dict, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _queries: dict[str, Future[object]] = attrs.field(factory=dict, init=False)
    _progress: dict[str, Callable[[CacheProgress], None]] = attrs.field(factory=dict, init=False)
    """Of the queries that report it; by the same ids."""
    asked_models: Counter[DesiredModel] = attrs.field(factory=Counter, init=False)
    """Models that it was just told to fetch, or to judge, whatever is desired."""
    _num_queries: int = attrs.field(default=0, init=False)
    _asking: FairPlaces = attrs.field(
        factory=lambda: FairPlaces(QUESTIONS_AT_ONCE, share=QUESTIONS_OF_ONE_CLIENT), init=False
    )

    def __attrs_post_init__(self) -> None:
        if self.kind.forwards:
            self.tunnels = Tunnels(self.label, self.send, self._most_tunnels)

    def _most_tunnels(self) -> int:
        return 2 * max(0, self.status.desired_slots_total) + TUNNELS_BESIDE_SLOTS

    @property
    def label(self) -> str:
        """Its name in logs."""
        return self.name or self.id

    @property
    def offers(self) -> frozenset[str]:
        """What requests may need."""
        return self.kind.offers(self.features)

    @property
    def takes_infill(self) -> bool:
        """It, or the server that it stands in front of, fills a gap in a prompt."""
        return self.kind.forwards or Feature.INFILL in self.features

    @property
    def slots_processing(self) -> int:
        """How many requests hold a slot of it, as this connection knows."""
        return len(self._leases)

    @property
    def model(self) -> str | None:
        """Fingerprint of what it serves or served last; None for Paddler's agents."""
        return None if self.report is None else self.report.model

    @property
    def sent_revision(self) -> str | None:
        """Digest of the state sent last; see :class:`Readiness`."""
        return self.readiness.sent_revision

    @property
    def revision(self) -> str | None:
        """The same of the state that it serves."""
        return self.readiness.revision(self)

    @property
    def gets_work_by_right(self) -> bool:
        """It gets work, and not only because it stands in."""
        return self.is_accepting and self.serves_desired

    def __repr__(self) -> str:
        readiness = "accepting" if self.is_accepting else "not accepting"
        return (
            f"<AgentConnection {self.key} {self.label!r} {readiness}, "
            f"{len(self._leases)} of {self.usable_slots} slots>"
        )

    # ------------------------------------------------------------ readiness

    def send_state(self, state: AgentDesiredState, extras: Extras = NO_EXTRAS) -> None:
        """Tell the agent what to serve; it gets no work until it does. Same state: nothing.

        Paddler's agents are not sent extras, so a change of them is none for them.
        """
        sent = extras if self.kind.is_extended else NO_EXTRAS
        digest = extended_digest(state, sent)
        revision = digest if sent == extras else extended_digest(state, extras)
        slots, now_s = self.status.slots_total, trio.current_time()
        if not self.readiness.sent(digest, revision, slots_total=slots, now_s=now_s):
            return
        frame = render(SetState(state)) if sent.is_empty else render_extension(Want(state, sent))
        self.send(frame)
        self.refresh_readiness()

    def refresh_readiness(self) -> bool:
        """Look again whether it may get work, and by right; True if that changed. Ask at every
        status."""
        before = (self.is_accepting, self.serves_desired, self.usable_slots)
        now_s = trio.current_time()
        serves, self.serves_desired = self.readiness.judged(self, now_s)
        is_ejected = self.health.is_ejected(self.label, now_s)
        rests = is_ejected or self.is_drained or now_s < self.rests_until_s
        self.is_accepting = serves and not rests
        slots = self.status.slots_total
        if self.kept_slots is not None:
            slots = min(slots, self.kept_slots)
        self.usable_slots = self.health.usable_slots(self.label, slots, now_s)
        return (self.is_accepting, self.serves_desired, self.usable_slots) != before

    # ------------------------------------------------------------- requests

    def start(self, lease: Lease) -> None:
        """Send the request, as in ``SlotOwner``."""
        self._leases[lease.wire_id] = lease
        self.idle_since_s = None
        request = lease.request
        if isinstance(request.work, ForwardedWork):
            return  # the task that has its client sees that it has a slot
        trace = lease.trace() if Feature.TRACES in self.features else None
        bound = request.bound_to if Feature.BOUNDS in self.features else None
        is_extended = trace or bound or lease.isolated or not request.work.is_embedding_batch
        if self.kind.is_extended and is_extended:
            frame = request.work.start_frame(
                lease.wire_id,
                client=request.client,
                isolated=lease.isolated,
                seed=request.seed,
                tokens=request.tokens,
                bound=bound,
                trace=trace,
            )
            self.send(frame)
        else:
            to_paddler = not self.kind.is_extended
            self.send(request.work.request_frame(lease.wire_id, to_paddler=to_paddler))

    def flush(self) -> None:
        """Have results sent that requests of this agent were given: once for many of its frames,
        so that a client gets those of one pass in one write."""
        for sink in self.touched:
            sink.flush()
        self.touched.clear()

    def stop(self, lease: Lease) -> None:
        """Ask the agent to end it; the agent answers with an ending result, or hands it back."""
        if isinstance(lease.request.work, ForwardedWork):
            lease.request.work.cut()
            return
        self.send(render(StopRespondingTo(lease.wire_id)))

    def forget(self, lease: Lease) -> None:
        """Its results are dropped from now on."""
        if self._leases.pop(lease.wire_id, None) is not None:
            if isinstance(lease.request.work, ForwardedWork):
                lease.request.work.cut()
            now_s = trio.current_time()
            self.readiness.released(now_s)
            if not self._leases:
                self.idle_since_s = now_s

    def leases(self) -> list[Lease]:
        """The requests that it works on."""
        return list(self._leases.values())

    def lease(self, wire_id: str) -> Lease | None:
        return self._leases.get(wire_id)

    def suspects(self) -> dict[RequestKey, int]:
        """The requests that may be the cause if this agent is lost now, each with how many they
        are: those that it was preparing. What has results, or waits for the engine, was prepared.

        One whose turn was announced stands alone: it is the second death that it may have caused.
        An agent of Paddler's does not report what it prepares and can isolate nothing, so there
        requests cannot be distinguished later. No request is suspected to have killed an agent that
        only forwards it.
        """
        if self.kind.forwards:
            return {}
        preparing = [lease for lease in self._leases.values() if lease.is_being_prepared]
        together = len(preparing) if self.kind.isolates else 1
        return {lease.request.key: 1 if lease.is_announced else together for lease in preparing}

    # -------------------------------------------------------------- queries

    async def ask(self, query: str) -> object:
        """Ask ``GetModelMetadata`` or ``GetChatTemplateOverride``; LinkError if it leaves.

        Returns:
          The raw response, e.g. ``{"ModelMetadata": null}``.
        """
        self._num_queries += 1
        wire_id = f"query.{self._num_queries}"
        return await self._asked(wire_id, dumps({"Request": {"id": wire_id, "request": query}}))

    async def ask_tree(self) -> object:
        """The agent's nursery tree as plain JSON; only for agents of ours."""
        self._num_queries += 1
        wire_id = f"query.{self._num_queries}"
        return await self._asked(wire_id, render_extension(GetTree(wire_id)))

    async def ask_model(self, question: bytes, *, client: str = "") -> object:
        """The answer of its model, as plain JSON; only for agents of ours.

        Args:
          question: the JSON of a ``Question``.

        Errors:
          QuestionRefusedError: there is no answer, and why.
          LinkError: it left before it answered.
        """
        self._num_queries += 1
        wire_id = f"query.{self._num_queries}"
        frame = b'{"Trio":{"Ask":{"id":%b,"client":%b,"question":%b}}}' % (
            dumps(wire_id),
            dumps(client),
            question,
        )
        if len(frame) > MAX_FRAME_BYTES:
            raise QuestionRefusedError(
                413, f"the question has {len(frame)} bytes, at most {MAX_FRAME_BYTES} are taken"
            )
        async with self._asking.held_by(client):
            return self._answer_in(await self._asked(wire_id, frame))

    async def ask_fit(self, question: FitQuestion) -> object:
        """Whether a model would fit, a ``FitReport`` as plain JSON; only for agents of ours.

        Errors:
          QuestionRefusedError: there is no answer, and why.
          LinkError: it left before it answered.
        """
        self._num_queries += 1
        wire_id = f"query.{self._num_queries}"
        state = applicable_state(question.state)
        beside = Feature.BESIDE in self.features
        asked = AskFit(wire_id, state, question.extras, question.slots, beside=beside)
        frame = render_extension(asked)
        with self._asking_about(state.model, state.multimodal_projection):
            return self._answer_in(await self._asked(wire_id, frame))

    @contextmanager
    def _asking_about(self, *models: DesiredModel) -> Iterator[None]:
        self.asked_models.update(models)
        try:
            yield
        finally:
            self.asked_models -= Counter(models)

    async def command_cache(
        self, request: CacheRequest, on_progress: Callable[[CacheProgress], None]
    ) -> object:
        """The answer to a command about its cache, as plain JSON; only for agents of ours.

        Args:
          on_progress: called at once when it begins, and then as it goes on.

        Errors:
          QuestionRefusedError: it failed, and why.
          LinkError: it left before it answered, or was silent for too long.
        """
        self._num_queries += 1
        wire_id = f"query.{self._num_queries}"
        patience_s = COMMAND_BEGINS_S
        with trio.CancelScope(deadline=trio.current_time() + patience_s) as waiting:

            def progressed(progress: CacheProgress) -> None:
                nonlocal patience_s
                patience_s = COMMAND_SILENCE_S
                waiting.deadline = trio.current_time() + patience_s
                on_progress(progress)

            self._progress[wire_id] = progressed
            models = request.models if isinstance(request, Pull) else ()
            try:
                with self._asking_about(*models):
                    answer = await self._asked(wire_id, render_extension(Cache(wire_id, request)))
            finally:
                del self._progress[wire_id]
            return self._answer_in(answer)
        why = "" if patience_s > COMMAND_BEGINS_S else ": it may be of an older version"
        raise LinkError(f"agent {self.label} reported nothing for {patience_s:g} s{why}")

    def _answer_in(self, answer: object) -> object:
        """What an ``Answer`` holds; QuestionRefusedError, LinkError."""
        if not isinstance(answer, Answer):
            raise LinkError(f"agent {self.label} answers a question with something else")
        if answer.problem is not None:
            raise QuestionRefusedError(answer.code, answer.problem)
        return answer.answer

    async def _asked(self, wire_id: str, frame: bytes) -> object:
        if self._is_closed:
            raise AgentDisconnectedError(f"agent {self.label} has disconnected")
        future: Future[object] = Future()
        self._queries[wire_id] = future
        try:
            self.send(frame)
            answer = await future.wait()
        except trio.Cancelled:
            if self.kind.is_extended:  # the client is gone: its answer need not be computed
                self.send(render(StopRespondingTo(wire_id)))
            raise
        finally:
            del self._queries[wire_id]
        if isinstance(answer, LinkError):
            raise answer
        return answer

    def answer(self, wire_id: str, response: object) -> bool:
        """An answer to a query; False if ``wire_id`` is not one that is being asked."""
        future = self._queries.get(wire_id)
        return future is not None and future.set(response)

    def progressed(self, progress: CacheProgress) -> None:
        """How far a command is; one that is over is ignored."""
        on_progress = self._progress.get(progress.id)
        if on_progress is not None:
            on_progress(progress)

    # ------------------------------------------------------------- the link

    def send(self, frame: bytes) -> None:
        """Queue a frame. An agent that does not read is disconnected instead of waited for."""
        try:
            self.outgoing.send_nowait(frame)
        except trio.WouldBlock:
            log.error("agent does not read: disconnecting", agent=self.label)
            self.scope.cancel(reason="the agent does not read")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the connection is ending; close() informs all that wait

    @property
    def has_work_beside(self) -> bool:
        """It is asked something, works on a command, or its server answers what takes no slot."""
        return bool(self._queries) or (self.tunnels is not None and self.tunnels.are_used)

    def say_kept(self) -> None:
        """Tell it how many of its slots are kept, if it understands that."""
        if Feature.FOLLOWS in self.features and self.kept_slots is not None:
            self.send(render_extension(Leaving(self.kept_slots)))

    def part(self) -> None:
        """Close the link to an agent that nothing is left on; it dials the other process."""
        self.said_goodbye = True
        self.scope.cancel(reason="another process has taken over")

    def close(self) -> None:
        """The connection is over: every query ends with an error now."""
        self._is_closed = True
        for future in self._queries.values():
            future.set(AgentDisconnectedError(f"agent {self.label} disconnected"))
        if self.tunnels is not None:
            self.tunnels.close_all()
        self.readiness.sent_digest = None
