"""One request as the balancer sees it, from its first byte to its last.

A request is emitted into by exactly one task at a time and read by exactly one consumer. What
passes through its outbox are whole steps; when the outbox is full its reader is too slow, and this
request alone is stopped. However it ends, it ends once: either the last result that passed was an
ending one, or ``failure`` says what to tell the client.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from paddler_trio.nursery_tree.synchronization import Verdict
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.wire.trio.written_work import WrittenWork

if TYPE_CHECKING:
    from paddler_trio.nursery_tree.lease import Lease, Outcome

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
    """What was drawn in this step; nothing if the agent does not say."""


@attrs.frozen
class Failure:
    """An ending that no agent produced; ``code`` mirrors HTTP status numbers."""

    code: int
    description: str


@attrs.frozen
class Stopped:
    """The client is gone or asked to stop; it hears nothing more."""


@attrs.frozen
class ShuttingDown:
    """The balancer takes no more work; who still waits is told so."""


Seat: TypeAlias = "Lease | Stopped | ShuttingDown"
"""How waiting for a slot ends: with a slot on an agent, or without."""


@attrs.define(eq=False)
class Request:
    """See the module docstring.

    Args:
      key: arrival number, also its place in the queue.
      id: what the client calls it; never routes anything.
      work: the body for an agent, e.g. ``{"ContinueFromRawPrompt": {...}}``, as bytes.
      client: hexadecimal digits that tell clients apart.
    """

    key: RequestKey
    id: str
    work: WrittenWork
    client: str = ""
    outbox: trio.MemoryReceiveChannel[Results] = attrs.field(init=False)
    failure: Failure | None = attrs.field(default=None, init=False)
    seat: Verdict[Seat] = attrs.field(factory=Verdict, init=False)
    arrived_s: float = attrs.field(factory=trio.current_time, init=False)
    agents: list[str] = attrs.field(factory=list, init=False)
    """Names of the agents it was given to, in order."""
    placements: int = attrs.field(default=0, init=False)
    """How often it was granted a slot; makes its ids on links unique."""
    waited_s: float = attrs.field(default=0.0, init=False)
    """In the queue, all its stays together."""
    num_results: int = attrs.field(default=0, init=False)
    seed: int = attrs.field(factory=lambda: secrets.randbits(32), init=False)
    """Of every draw of this answer, on whatever agent."""
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
    is_stopped: bool = attrs.field(default=False, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Around its newest wait for a slot."""
    patience_ends_s: float = attrs.field(default=0.0, init=False)
    """When that wait ends, if the request is not stranded."""
    stranded_s: float | None = attrs.field(default=None, init=False)
    """Since when no agent that is connected could ever continue it; None if one could."""
    left_queue: trio.Event = attrs.field(factory=trio.Event, init=False)
    """It has, or had, a slot, or it will never have one."""
    _lease_verdict: Verdict[Outcome] | None = attrs.field(default=None, init=False)
    _emit: trio.MemorySendChannel[Results] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._emit, self.outbox = trio.open_memory_channel[Results](OUTBOX_STEPS)

    # ------------------------------------------------- the client's side

    def stop(self) -> None:
        """The client does not want it any more: leave the queue, or tell the agent to stop."""
        self.is_stopped = True
        self.seat.give(Stopped())
        if self._lease_verdict is not None:
            self._lease_verdict.give(Stopped())

    def interrupts(self, verdict: Verdict[Outcome]) -> None:
        """From now on :meth:`stop` answers this question, how a lease ends."""
        self._lease_verdict = verdict
        if self.is_stopped:
            verdict.give(Stopped())

    # ------------------------------------------------ the agent's side

    def emit(self, results: Results, *, ends: bool) -> bool:
        """Pass one step on; False if the reader lags too far behind. ``ends``: nothing follows."""
        if self.is_over:
            return True
        try:
            self._emit.send_nowait(results)
        except trio.WouldBlock:
            return False
        except trio.BrokenResourceError:  # the consumer left; stop() is on its way
            return True
        self.num_results += len(results.results)
        if ends:
            self._close()
        return True

    def fail(self, code: int, description: str) -> None:
        """End with an error, unless it is over already."""
        if not self.is_over:
            self.failure = Failure(code, description)
            self._close()

    def _close(self) -> None:
        self.is_over = True
        self.left_queue.set()
        self._emit.close()
