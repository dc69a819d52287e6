"""One registered agent: its record, the requests it works on, and the one queue towards it.

The record belongs to the connection: it appears with the registration and vanishes with the
socket, so nothing stale can remove or answer for a live agent. Ids towards the agent are ours;
a client's id never leaves the balancer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import structlog
import trio

from paddler_trio.net.tunnels import Tunnels
from paddler_trio.nursery_tree.agent_kinds import AgentKind, Feature, Readiness
from paddler_trio.nursery_tree.agent_questions import AgentQuestions
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.request import Lease
from paddler_trio.nursery_tree.step_results import ResultSink
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.health import HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.messages import SetState, StopRespondingTo, render
from paddler_trio.wire.paddler.status import SlotAggregatedStatusSnapshot
from paddler_trio.wire.trio.adapters import ADAPTER, MAX_ADAPTERS
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
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
TUNNELS_BESIDE_SLOTS = 32
"""To a server, for what takes no slot of it, and twice as many as it has slots for the rest: one
that is being closed and one that is begun may overlap."""


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
    questions: AgentQuestions = attrs.field(init=False)
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

    def __attrs_post_init__(self) -> None:
        judges_beside = Feature.BESIDE in self.features
        self.questions = AgentQuestions(self.label, self.send, self.kind.is_extended, judges_beside)
        if self.kind.forwards:
            self.tunnels = Tunnels(self.label, self.send, self._most_tunnels)

    def _most_tunnels(self) -> int:
        return 2 * max(0, self.status.desired_slots_total) + TUNNELS_BESIDE_SLOTS

    @property
    def label(self) -> str:
        """The name of the agent in logs."""
        return self.name or self.id

    @property
    def offers(self) -> frozenset[str]:
        """Return what requests may need of it."""
        adapters = () if self.report is None else self.report.adapters[:MAX_ADAPTERS]
        return self.kind.offers(self.features).union(ADAPTER + name for name in adapters)

    @property
    def takes_infill(self) -> bool:
        """It, or the server that it stands in front of, fills a gap in a prompt."""
        return self.kind.forwards or Feature.INFILL in self.features

    @property
    def slots_processing(self) -> int:
        """Return how many requests hold a slot of it, as this connection knows."""
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
        """Digest of the state that it serves; see :class:`Readiness`."""
        return self.readiness.revision(self)

    @property
    def gets_work_by_right(self) -> bool:
        """Return whether it gets work, and not only because it stands in."""
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
        """Drop the results of a request from now on."""
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
        return self.questions.are_open or (self.tunnels is not None and self.tunnels.are_used)

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
        self.questions.close()
        if self.tunnels is not None:
            self.tunnels.close_all()
        self.readiness.sent_digest = None
