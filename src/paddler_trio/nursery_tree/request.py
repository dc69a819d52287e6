"""One request as the balancer sees it, from its first byte to its last, and the slots that it has.

A request is in exactly one phase, and nothing beside the phase describes its state::

    Buffered ── a slot is granted ──> Leased ── first result ──> Streaming
       ^                                │                            │
       ├────── the agent is lost ───────┴────────────────────────────┤
       │                                                             │
       │         Stopping <── the client left, or a limit was hit ───┘
       │            │ the agent confirmed the stop, or was silent for too long
       └────────> Ended

``TRANSITIONS`` is the whole table. Every transition is synchronous: there is no ``await`` between
reading a phase and changing it. The dispatcher observes each one (``on_move``) and does what it
means for slots, agents and deadlines in the same step.

One task at a time emits into a request, and one consumer reads its outbox. An outbox that is full
has a consumer that is too slow; then this request alone is stopped.

A lease is a request in a slot of an agent: from the grant until the agent is done with it. The
agent's reader delivers into it synchronously, and no task waits in between. So a token costs one
task switch: that of the consumer that writes it out.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

import attrs
import trio

from paddler_trio.net.tunnels import Tunnels
from paddler_trio.nursery_tree.agent_kinds import AgentKind
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.request_endings import Completed, Ending, Failure, Stopped
from paddler_trio.nursery_tree.step_results import (
    FORWARDED,
    NOTHING,
    RawResult,
    Results,
    ResultSink,
)
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Choice
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.wire.prompt_blocks import NO_BLOCKS
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.prompt_stages import PromptStages, RequestTrace
from paddler_trio.wire.trio.request_frame import EncodedWork
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

MAX_LOG_ID_CHARS = 128
MAX_MOMENTS: Final = 32
SLOW_READER: Final = Failure(
    503, "The client reads too slowly; the request was stopped to protect others"
)
OUTBOX_STEPS = 512
"""Steps a client may lag behind on top of the kernel's buffers: ten seconds at 50 tokens/s."""


@attrs.define(eq=False)
class RevisionPin:
    """Keeps the requests of one call on one revision: the one that the first of them was given to.

    They are submitted one after the other, each when the one before has left the queue.
    ``is_lost``: one of them failed because no agent serves that revision any more.
    """

    revision: str | None = None
    is_lost: bool = False


@attrs.define(eq=False)
class Buffered:
    """It is in the queue, without a slot; times are in seconds of Trio's clock."""

    since_s: float
    deadline_s: float
    """When it gives up, unless it is stranded."""
    stranded_since_s: float | None = None
    """Since when no connected agent could ever continue it; None if one could."""
    is_awaited: bool = False
    """It is stranded, and a rollout is about to bring an agent that can go on with it."""


@attrs.frozen(eq=False)
class Leased:
    """It is in a slot; the agent has produced nothing yet."""

    lease: Lease


@attrs.frozen(eq=False)
class Streaming:
    """It is in a slot, with results on their way to the client."""

    lease: Lease


@attrs.frozen(eq=False)
class Stopping:
    """It is over for the client. The slot stays taken until the agent confirms that it stopped."""

    lease: Lease
    ending: Ending


@attrs.frozen(eq=False)
class Ended:
    """It holds nothing, and waits for nothing."""

    ending: Ending


Phase: TypeAlias = Buffered | Leased | Streaming | Stopping | Ended
_IN_A_SLOT: Final = (Leased, Streaming, Stopping)

TRANSITIONS: Mapping[type[Phase], frozenset[type[Phase]]] = {
    Buffered: frozenset({Leased, Ended}),
    Leased: frozenset({Streaming, Buffered, Stopping, Ended}),
    Streaming: frozenset({Buffered, Stopping, Ended}),
    Stopping: frozenset({Ended}),
    Ended: frozenset(),
}


class SlotOwner(Protocol):
    """An agent, as the requests in its slots know it; see ``agent_connection.py``."""

    key: AgentKey
    id: str
    name: str | None
    deployment: str
    kind: AgentKind
    tunnels: Tunnels | None
    touched: dict[ResultSink, None]
    is_suspended: bool
    rests_until_s: float

    @property
    def label(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def slots_processing(self) -> int: ...

    def start(self, lease: Lease) -> None:
        """Send the request; its route is open before the agent can answer."""
        ...

    def stop(self, lease: Lease) -> None:
        """Ask the agent to end it; the agent answers with an ending result, or hands it back."""
        ...

    def forget(self, lease: Lease) -> None:
        """Drop its results from now on."""
        ...


class DeliveryObserver(Protocol):
    """Sees what agents send; see ``dispatch_observer.py``."""

    def delivered(self, request: Request, results: Results, now_s: float) -> None: ...

    def prepared(self, lease: Lease) -> None: ...


_NO_OUTBOX: Final = trio.open_memory_channel[Results](0)
"""Of requests that are forwarded: their answers go past it."""
_NO_OUTBOX[0].close()


@attrs.define(eq=False, repr=False)
class Request:
    """See the module docstring.

    Args:
      key: arrival number, also its place in the queue.
      id: what the client calls it; never routes anything.
      work: what an agent computes, as it is sent; or what a server behind an agent answers.
      deployment: whose agents may have it.
      preset: the name of the preset that it was made under; empty for none.
      client: hexadecimal digits that tell clients apart.
      client_name: what operators are shown; empty for an anonymous one.
      route: the path that the client asked, if it was HTTP.
      account, user: the API key that its tokens are charged to, and whom it is for; or empty.
      trace: the trace it belongs to; only requests of tests have none.
      pin: shared with the other requests of its call, which must be answered by one revision.
      is_repeatable: another agent may begin it anew, whatever was produced: all of it is kept.
      buffered_timeout_s: how long each stay in the queue may last.
    """

    key: RequestKey
    id: str
    work: EncodedWork | ForwardedWork
    deployment: str = DEFAULT_DEPLOYMENT
    preset: str = ""
    client: str = ""
    client_name: str = ""
    route: str | None = None
    trace: TraceContext | None = None
    account: str = ""
    user: str = ""
    pin: RevisionPin | None = None
    is_repeatable: bool = False
    buffered_timeout_s: float = math.inf
    outbox: trio.MemoryReceiveChannel[Results] = attrs.field(init=False)
    phase: Phase = attrs.field(init=False)
    timer: trio.CancelScope = attrs.field(init=False)
    """Its deadline is that of the phase; the request's task waits in it. While an agent answers, it
    may be earlier: each token moves the deadline, and moving a timer costs more than what else is
    done for a token."""
    moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    """Who waits here goes on when ``timer`` no longer counts because the phase changed."""
    on_move: Callable[[Request, Phase], None] = attrs.field(default=lambda _, __: None, init=False)
    """Called within each transition, with the phase that was left."""
    observer: DeliveryObserver | None = attrs.field(default=None, init=False)
    sink: ResultSink | None = attrs.field(default=None, init=False)
    """Takes results past the outbox, as long as it can; its consumer sets it."""
    left_queue: trio.Event = attrs.field(factory=trio.Event, init=False)
    """It has, or had, a slot, or it will never have one."""
    arrived_s: float = attrs.field(factory=trio.current_time, init=False)
    agents: list[str] = attrs.field(factory=list, init=False)
    """Names of the agents it was given to, in order."""
    revision: str | None = attrs.field(default=None, init=False)
    """The digest of what the last of them served then; None if that is not known."""
    choice: Choice | None = attrs.field(default=None, init=False)
    """Why it was given to the last of them."""
    waited_s: float = attrs.field(default=0.0, init=False)
    """In the queue, all its stays together."""
    num_results: int = attrs.field(default=0, init=False)
    _seed: int | None = attrs.field(default=None, init=False)
    tokens: list[int] = attrs.field(factory=list, init=False)
    """What was produced so far, if ``is_continuable``."""
    is_continuable: bool = attrs.field(default=True, init=False)
    """Every result so far came with its tokens: another agent can go on after them."""
    model: str | None = attrs.field(default=None, init=False)
    """Fingerprint of the model that produced ``tokens``."""
    suspicions: int = attrs.field(default=0, init=False)
    """How often an engine or an agent died that this request may have killed."""
    may_kill_agents: bool = attrs.field(default=False, init=False)
    """One of those was an agent."""
    continuations: int = attrs.field(default=0, init=False)
    """How often it was placed again after a loss."""
    answered_with: int | None = attrs.field(default=None, init=False)
    """The status with which the server answered that it was forwarded to."""
    _emit: trio.MemorySendChannel[Results] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        is_forwarded = isinstance(self.work, ForwardedWork)
        self._emit, self.outbox = (
            _NO_OUTBOX if is_forwarded else trio.open_memory_channel[Results](OUTBOX_STEPS)
        )
        self.phase = phase = self._buffered()
        self.timer = trio.CancelScope(deadline=phase.deadline_s)

    def __repr__(self) -> str:
        phase = type(self.phase).__name__
        lease = self.lease
        where = "" if lease is None else f" on {lease.agent.label} as {lease.wire_id}"
        return f"<Request {self.key} {self.id!r} {phase}{where}, {self.num_results} results>"

    @property
    def seed(self) -> int:
        """The seed of every token sampled for this answer, on whatever agent."""
        if self._seed is None:
            self._seed = secrets.randbits(32)
        return self._seed

    @property
    def log_id(self) -> str:
        """The id of the request in logs, here and on agents."""
        return self.id[:MAX_LOG_ID_CHARS]

    @property
    def trace_id(self) -> str | None:
        """The trace that it belongs to."""
        return None if self.trace is None else self.trace.trace_id

    @property
    def log_fields(self) -> dict[str, str]:
        """Return what names the request in each line of the log."""
        trace = {} if self.trace is None else {"trace": self.trace.trace_id}
        return {"request": self.log_id, **trace}

    @property
    def lease(self) -> Lease | None:
        """Return the slot it holds, if it holds one."""
        phase = self.phase
        return phase.lease if isinstance(phase, _IN_A_SLOT) else None

    @property
    def pinned_to(self) -> str | None:
        """The only revision that may answer it; None for any."""
        return None if self.pin is None else self.pin.revision

    @property
    def bound_to(self) -> str | None:
        """The only revision, or the fingerprint of the only model, that may answer it."""
        return self.pinned_to or (self.model if self.tokens else None)

    @property
    def isolation(self) -> str | None:
        """Return what it may have killed, as it is sent to an agent; None for nothing."""
        return "agent" if self.may_kill_agents else "engine" if self.suspicions else None

    @property
    def ending(self) -> Ending | None:
        """Return how it ended for the client; None as long as it did not."""
        return self.phase.ending if isinstance(self.phase, Stopping | Ended) else None

    @property
    def is_over(self) -> bool:
        """Over for the client: its outbox is closed."""
        return isinstance(self.phase, Stopping | Ended)

    def forget_work(self) -> int:
        """It is over, and is given to no agent any more; how many bytes its work held."""
        work = self.work
        assert self.is_over, "an agent may need it"
        assert isinstance(work, EncodedWork), "nothing else is held"
        self.work = attrs.evolve(work, body=b"", paddler_body=None, prompt=NO_BLOCKS)
        return work.size_bytes

    @property
    def failure(self) -> Failure | None:
        """The error that ended it, if one did."""
        return self.ending if isinstance(self.ending, Failure) else None

    @property
    def is_stopped(self) -> bool:
        """The client ended it."""
        return isinstance(self.ending, Stopped)

    async def wait_ended(self) -> None:
        """Return when it holds nothing any more; a request that is over may still have its slot."""
        while not isinstance(self.phase, Ended):
            await self.moved.park()

    def wait_until(self, deadline_s: float) -> None:
        """The timer went off too early: the deadline of the phase is another one."""
        self.timer = trio.CancelScope(deadline=deadline_s)

    # ---------------------------------------------------------- transitions

    def stop(self) -> None:
        """The client does not want it any more. Safe to call at any time."""
        self.abort(Stopped())

    def grant(self, lease: Lease) -> None:
        """The slot of ``lease`` is this request's."""
        self.agents.append(lease.agent.label)
        self.choice = lease.choice
        self._enter(Leased(lease))

    def emit(self, results: Results, now_s: float) -> bool:
        """Pass one step on; False if the consumer lags too far behind."""
        if self.sink is None or not self.sink.take(results):
            try:
                self._emit.send_nowait(results)
            except trio.WouldBlock:
                return False
            except trio.BrokenResourceError:  # the consumer left; stop() is on its way
                return True
        self.num_results += len(results.results)
        if isinstance(self.phase, Leased):
            self._enter(Streaming(self.phase.lease))
        if self.observer is not None:
            self.observer.delivered(self, results, now_s)
        return True

    def begin_stream(self, now_s: float) -> None:
        """The server that it was forwarded to answers: no other can go on with it."""
        assert isinstance(self.phase, Leased), f"{self} has no slot"
        lease = self.phase.lease
        self.is_continuable = False
        self.num_results += 1
        self._enter(Streaming(lease))
        if self.observer is not None:
            self.observer.delivered(self, Results(lease.agent.name, FORWARDED, []), now_s)

    async def left_phase(self, phase: type[Phase]) -> None:
        """Return when it is in another phase."""
        while isinstance(self.phase, phase):
            await self.moved.park()

    def wake_consumer(self) -> None:
        """Wake the task that waits for the outbox: a step without results, if it is open."""
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError, trio.WouldBlock):
            self._emit.send_nowait(NOTHING)

    def requeue(self) -> None:
        """The slot is lost; wait for another."""
        self._enter(self._buffered())

    def abort(self, ending: Ending) -> None:
        """End it for the client; a slot stays taken until the agent confirms. Safe to repeat."""
        match self.phase:
            case Buffered():
                self._enter(Ended(ending))
            case Leased(lease) | Streaming(lease):
                self._enter(Stopping(lease, ending))
            case Stopping() | Ended():
                pass

    def end(self, ending: Ending) -> None:
        """Nothing is held any more. What ended it for the client before stays its ending."""
        if not isinstance(self.phase, Ended):
            self._enter(Ended(self.ending or ending))

    def _buffered(self) -> Buffered:
        now_s = trio.current_time()
        return Buffered(now_s, now_s + self.buffered_timeout_s)

    def _enter(self, phase: Phase) -> None:
        left = self.phase
        assert type(phase) in TRANSITIONS[type(left)], f"{self} cannot become {phase}"
        self.phase = phase
        if isinstance(left, Buffered):
            self.waited_s += trio.current_time() - left.since_s
            self.left_queue.set()
        if isinstance(phase, Stopping | Ended):
            self._emit.close()
            self.sink = None  # which knows this request: no garbage collector need find the two
        if not isinstance(phase, Streaming):  # goes on under the same deadline
            self.timer = trio.CancelScope()
            self.moved.unpark_all()
        self.on_move(self, left)


@attrs.define(eq=False, repr=False)
class Lease:
    """One request in one slot of one agent. ``wire_id`` is ours, unique on the connection;
    ``isolated``: what the request may have killed, as the agent was informed, see
    :class:`~paddler_trio.wire.trio.trio_link.Start`; None for nothing."""

    request: Request
    agent: SlotOwner
    wire_id: str
    item_timeout_s: float
    isolated: str | None = None
    choice: Choice | None = None
    """Why this agent has it."""
    prepared_s: float | None = attrs.field(default=None, init=False)
    """The time at which the agent reported that it has prepared it."""
    model: str | None = attrs.field(default=None, init=False)
    """Fingerprint of the model that answers it, once the agent has reported that: another one may
    be in force on the agent by now."""
    prompt: PromptStages | None = attrs.field(default=None, init=False)
    """The agent's report of the prompt, once it has computed that."""
    preemptions: int = attrs.field(default=0, init=False)
    """The number of times that the engine preempted it, as far as the agent has reported."""
    preempted_s: list[float] = attrs.field(factory=list, init=False)
    """When it did; only the first ``MAX_MOMENTS``. Agents from before this report no moments."""
    num_deliveries: int = attrs.field(default=0, init=False)
    """The number of messages of the agent that were about it."""
    heard_s: float = attrs.field(factory=trio.current_time, init=False)
    """The time at which the last of them came, or it was granted."""

    @property
    def silent_from_s(self) -> float:
        """Return when its agent will have been silent about it for too long, unless it is heard."""
        return self.heard_s + self.item_timeout_s

    def __repr__(self) -> str:
        return f"<Lease {self.wire_id} of {self.request} on {self.agent.label}>"

    def deliver(
        self,
        family: str,
        results: list[RawResult],
        *,
        ends: bool,
        tokens: list[int] | None = None,
        now_s: float | None = None,
    ) -> None:
        """The agent produced these; called by its reader, never blocks.

        Args:
          tokens: what the results were made of; None if the agent does not report them. Without
            knowing the model that sampled them, no other agent can go on after them.
          now_s: Trio's time, from who has just asked for it.
        """
        self.num_deliveries += 1
        request = self.request
        if request.lease is not self:
            return  # it has lost its slot meanwhile
        if isinstance(request.phase, Stopping):
            if ends:
                request.end(request.phase.ending)
            return
        now_s = self.heard_s = trio.current_time() if now_s is None else now_s
        model = self.model or self.agent.model
        if tokens is None or model is None:
            request.is_continuable = False
        else:
            request.tokens += tokens
            request.model = model
        if not results and not tokens and not ends:
            if not self.is_being_prepared and self.prepared_s is None:
                self.prepared_s = trio.current_time()
                self._show()
            return  # only a sign of life
        if request.sink is not None:
            self.agent.touched[request.sink] = None
        num_tokens = self._num_tokens(family, results, tokens)
        step = Results(self.agent.name, family, results, tokens or (), num_tokens)
        if not request.emit(step, now_s):
            (request.end if ends else request.abort)(SLOW_READER)
        elif ends:
            request.end(Completed())

    def _num_tokens(self, family: str, results: list[RawResult], tokens: list[int] | None) -> int:
        """Count results where no tokens are reported; where they are, what comes without any is an
        ending, or progress."""
        if tokens is not None or (self.agent.kind.reports_tokens and family == "GeneratedToken"):
            return len(tokens or ())
        return sum([type(result) is dict and "Done" not in result for result in results])

    def confirm_stop(self) -> None:
        """The agent has nothing of it. No effect unless it is to be stopped; safe to repeat."""
        request = self.request
        if request.lease is self and isinstance(request.phase, Stopping):
            request.end(request.phase.ending)

    def bind(self, model: str) -> None:
        """The agent reported that this model answers it."""
        self.model = model

    def progressed(self) -> None:
        """The server that answers has sent something; its answer is forwarded past the outbox."""
        self.num_deliveries += 1
        request, now_s = self.request, trio.current_time()
        self.heard_s = now_s
        if isinstance(request.phase, Leased):
            request.begin_stream(now_s)

    def trace(self) -> RequestTrace | None:
        """Return what an agent is sent: the span of this placement is the parent of the agent's."""
        trace = self.request.trace
        if trace is None:
            return None
        return RequestTrace(trace.traceparent(self.span_id), self.request.log_id, trace.state)

    @property
    def span_id(self) -> str | None:
        """Return the span of this placement, if spans of it are exported here."""
        trace = self.request.trace
        return trace.span_below(self.wire_id) if trace and trace.is_exported else None

    def report_prompt(self, prompt: PromptStages) -> None:
        """The agent computed the prompt; it reports that with the first results."""
        self.prompt = prompt
        if self.request.lease is self:
            self._show()

    def report_preemptions(self, count: int, *, is_now: bool) -> None:
        """Note so many in all; ``is_now``: the last one has just happened."""
        if is_now and count > self.preemptions and len(self.preempted_s) < MAX_MOMENTS:
            self.preempted_s.append(trio.current_time())
        self.preemptions = count
        if self.request.lease is self:
            self._show()

    def _show(self) -> None:
        """Show observers what the agent has reported."""
        if self.request.observer is not None:
            self.request.observer.prepared(self)

    def broken_frame(self, detail: str) -> None:
        """The agent sent something that is not a result; ``detail`` names what."""
        if self.request.lease is not self:
            return
        self.request.abort(
            Failure(502, f"The agent sent a malformed frame: {detail}", blames_agent=True)
        )

    @property
    def is_announced(self) -> bool:
        """The agent reports when it begins to prepare it."""
        return self.isolated == "agent"

    @property
    def is_being_prepared(self) -> bool:
        """Return whether it is, as far as is known: agents of ours report when they have prepared
        it."""
        return self.num_deliveries == (1 if self.is_announced else 0)


def client_digest(client: str) -> str:
    """Return what tells clients apart on agents without naming them."""
    return hashlib.blake2s(client.encode(), digest_size=8).hexdigest()
