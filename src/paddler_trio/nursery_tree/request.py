"""One request as the balancer sees it, from its first byte to its last.

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
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs
import trio

from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver, NoObserver
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.request_frame import EncodedWork
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

if TYPE_CHECKING:
    from paddler_trio.nursery_tree.lease import Lease

MAX_LOG_ID_CHARS = 128
FORWARDED: Final = "Forwarded"
"""The family of what a server answers: nothing of it is read here."""
OUTBOX_STEPS = 512
"""Steps a client may lag behind on top of the kernel's buffers: ten seconds at 50 tokens/s."""

RawResult: TypeAlias = "Mapping[str, object] | str"
"""A generation or embedding result as it came off the wire, e.g. ``{"ContentToken": "hi"}``."""


@attrs.frozen
class Results:
    """What one step of an agent produced for this request, in order."""

    generated_by: str | None
    family: str
    """``GeneratedToken`` or ``Embedding``: the tag around each result."""
    results: list[RawResult]
    tokens: Sequence[int] = ()
    """The tokens sampled in this step; empty if the agent does not report them."""
    num_tokens: int = 0
    """Tokens or embeddings: as many as are reported, or else as there are results that end
    nothing."""


NOTHING: Final = Results(None, "GeneratedToken", [])
"""A step without results."""


@attrs.define(eq=False)
class RevisionPin:
    """Keeps the requests of one call on one revision: the one that the first of them was given to.

    They are submitted one after the other, each when the one before has left the queue.
    ``is_lost``: one of them failed because no agent serves that revision any more.
    """

    revision: str | None = None
    is_lost: bool = False


@attrs.frozen
class Completed:
    """The agent sent the ending result, and it was passed on."""


@attrs.frozen
class Failure:
    """An ending that no agent produced; ``code`` mirrors HTTP status numbers."""

    code: int
    description: str
    blames_agent: bool = attrs.field(default=False, eq=False)
    """It counts against the health of the agent that held the request."""


@attrs.frozen
class Stopped:
    """The client is gone or asked to stop; nothing more is sent to it."""


Ending: TypeAlias = Completed | Failure | Stopped


@attrs.define(eq=False)
class Buffered:
    """In the queue, without a slot; times are in seconds of Trio's clock."""

    since_s: float
    deadline_s: float
    """When it gives up, unless it is stranded."""
    stranded_since_s: float | None = None
    """Since when no connected agent could ever continue it; None if one could."""
    is_awaited: bool = False
    """It is stranded, and a rollout is about to bring an agent that can go on with it."""


@attrs.frozen(eq=False)
class Leased:
    """In a slot; the agent has produced nothing yet."""

    lease: Lease


@attrs.frozen(eq=False)
class Streaming:
    """In a slot, with results on their way to the client."""

    lease: Lease


@attrs.frozen(eq=False)
class Stopping:
    """Over for the client. The slot stays taken until the agent confirms that it stopped."""

    lease: Lease
    ending: Ending


@attrs.frozen(eq=False)
class Ended:
    """Holds nothing, waits for nothing."""

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


class ResultSink(Protocol):
    """Sends results to the client in the step in which the agent delivers them."""

    def take(self, results: Results) -> bool:
        """Whether it will send them, with the next ``flush``; if not, they go to the outbox, and
        so do all until the consumer has read it empty. Never raises."""
        ...

    def flush(self) -> None:
        """Send what was taken, without waiting; a second time there is nothing to send."""
        ...


_NO_OUTBOX: Final = trio.open_memory_channel[Results](0)
"""Of requests that are forwarded: their answers go past it."""
_NO_OUTBOX[0].close()


def _ignore_move(request: Request, left: Phase) -> None:
    """The default observer."""


@attrs.define(eq=False, repr=False)
class Request:
    """See the module docstring.

    Args:
      key: arrival number, also its place in the queue.
      id: what the client calls it; never routes anything.
      work: what an agent computes, as it is sent; or what a server behind an agent answers.
      deployment: whose agents may have it.
      client: hexadecimal digits that tell clients apart.
      client_name: what operators are shown; empty for an anonymous one.
      route: the path that the client asked, if it was HTTP.
      account: the name of the API key that its tokens are charged to; empty for none.
      trace: the trace it belongs to; only requests of tests have none.
      pin: shared with the other requests of its call, which must be answered by one revision.
      is_repeatable: its consumer keeps results until it has all of them: another agent may begin it
        anew, whatever was produced.
      buffered_timeout_s: how long each stay in the queue may last.
    """

    key: RequestKey
    id: str
    work: EncodedWork | ForwardedWork
    deployment: str = DEFAULT_DEPLOYMENT
    client: str = ""
    client_name: str = ""
    route: str | None = None
    trace: TraceContext | None = None
    account: str = ""
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
    on_move: Callable[[Request, Phase], None] = attrs.field(default=_ignore_move, init=False)
    """Called within each transition, with the phase that was left."""
    observer: DispatchObserver = attrs.field(factory=NoObserver, init=False)
    sink: ResultSink | None = attrs.field(default=None, init=False)
    """Takes results past the outbox, as long as it can; its consumer sets it."""
    left_queue: trio.Event = attrs.field(factory=trio.Event, init=False)
    """It has, or had, a slot, or it will never have one."""
    arrived_s: float = attrs.field(factory=trio.current_time, init=False)
    agents: list[str] = attrs.field(factory=list, init=False)
    """Names of the agents it was given to, in order."""
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
        """Of every token sampled for this answer, on whatever agent."""
        if self._seed is None:
            self._seed = secrets.randbits(32)
        return self._seed

    @property
    def log_id(self) -> str:
        """Its id in logs, here and on agents."""
        return self.id[:MAX_LOG_ID_CHARS]

    @property
    def trace_id(self) -> str | None:
        """The trace that it belongs to."""
        return None if self.trace is None else self.trace.trace_id

    @property
    def log_fields(self) -> dict[str, str]:
        """What names it in each line of the log."""
        if self.trace is None:
            return {"request": self.log_id}
        return {"request": self.log_id, "trace": self.trace.trace_id}

    @property
    def lease(self) -> Lease | None:
        """The slot it holds, if it holds one."""
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
        """What it may have killed, as it is sent to an agent; None for nothing."""
        if self.may_kill_agents:
            return "agent"
        return "engine" if self.suspicions else None

    @property
    def ending(self) -> Ending | None:
        """How it ended for the client; None as long as it did not."""
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
        self.work = attrs.evolve(work, body=b"", paddler_body=None)
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
        """Until it holds nothing any more; a request that is over may still have its slot."""
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
        self.observer.delivered(self, results, now_s)
        return True

    def begin_stream(self, now_s: float) -> None:
        """The server that it was forwarded to answers: no other can go on with it."""
        assert isinstance(self.phase, Leased), f"{self} has no slot"
        lease = self.phase.lease
        self.is_continuable = False
        self.num_results += 1
        self._enter(Streaming(lease))
        self.observer.delivered(self, Results(lease.agent.name, FORWARDED, []), now_s)

    async def left_phase(self, phase: type[Phase]) -> None:
        """Until it is in another phase."""
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


def client_digest(client: str) -> str:
    """Tells clients apart on agents without naming them."""
    return hashlib.blake2s(client.encode(), digest_size=8).hexdigest()
