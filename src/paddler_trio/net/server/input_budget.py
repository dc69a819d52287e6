"""The budget of input bytes that the process holds for all clients together, and the threads that
decode them.

One budget counts the bytes of every request body and every WebSocket message of all ports: what
has arrived and is not answered yet, its size after decompression, and the frame for an agent that
was made of it. A request that would exceed it is refused with 503, a WebSocket message with close
code 1013, when its bytes arrive; other requests go on.

* The first ``FREE_BYTES`` of each request and message are part of what a connection costs anyway
  and are not counted. So ordinary requests, and an agent's tokens, pass even when the budget is
  spent.
* The ports of clients may spend it up to ``PUBLIC_SHARE``; the rest is reserved for operators and
  agents.

A large text is decoded in a thread: there is one for the ports of clients and one for operators
and agents, so that neither waits for the other. More would not finish sooner, because Python runs
one thread at a time, and would make the event loop wait longer. Decoding needs a multiple of the
text's size for a moment; with two threads that is needed twice at most. Clients take turns in a
thread: one that sends many expensive bodies delays others by one of them at most.

All accounting is synchronous and happens on the event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, cast

import attrs
import trio
from attrs.validators import ge

from paddler_trio.errors import PaddlerError, forget_frames
from paddler_trio.scheduler.dispatch.service_rate import ServiceRate
from paddler_trio.system.fair_places import FairPlaces

MIB: Final = 1024 * 1024
DEFAULT_BYTES: Final = 256 * MIB
FREE_BYTES: Final = 32_768
PUBLIC_SHARE: Final = 0.75
AHEAD_SHARE: Final = 0.5
"""Of a client's share: how far bytes are read ahead of the request that is being answered."""
RETRY_AFTER_S: Final = 2
"""As long as it was not measured when there is room again."""
INLINE_BYTES: Final = 65_536
"""A text this short is decoded on the event loop: two milliseconds at most."""

HELD: Final = "paddler_trio.held_bytes"
"""In a WebSocket message: the bytes it holds until the application receives the next."""

MIN_PROGRESS_INTERVAL_S: Final = 10.0
MIN_PROGRESS_BYTES: Final = 32_768
"""A body that reserves room must grow by this much in every ``MIN_PROGRESS_INTERVAL_S``."""

T = TypeVar("T")


class BudgetSpentError(PaddlerError):
    """There is no room for more now; the request is refused and may be sent again after
    ``retry_after_s``."""

    def __init__(self, problem: str, retry_after_s: int) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


@attrs.define(eq=False)
class InputBudget:
    """See the module docstring. One for a process; make it inside the trio run."""

    limit_bytes: int = attrs.field(default=DEFAULT_BYTES, validator=ge(MIB))
    held_bytes: int = attrs.field(default=0, init=False)
    refusals: int = attrs.field(default=0, init=False)
    _threads: dict[float, DecodingThread] = attrs.field(factory=dict, init=False)
    _relief: ServiceRate = attrs.field(factory=ServiceRate, init=False)
    """How long it took until there was room for what had been refused."""
    _most_held: float | None = attrs.field(default=None, init=False)
    """With how much there will be for the least of what was refused, if something was."""

    def spent(self, size_bytes: int, share: float) -> BudgetSpentError:
        """Return the refusal of so many bytes more of this share."""
        now_s = time.monotonic()
        self.refusals += 1
        most = self.limit_bytes * share
        if size_bytes <= most:  # others never have room
            self._relief.waits(now_s)
            self._most_held = max(self._most_held or 0.0, most - size_bytes)
        is_known = self._relief.wait_s(1, now_s) is not None
        retry_after_s = self._relief.retry_after_s(0, now_s) if is_known else RETRY_AFTER_S
        return BudgetSpentError(
            f"{self.held_bytes // MIB} MiB of requests are being worked on, the balancer "
            f"takes {math.floor(most) // MIB} MiB at a time "
            "(--input-memory): try again, or send less at once",
            retry_after_s,
        )

    def give_back(self, size_bytes: int) -> None:
        """Hold so many bytes less."""
        self.held_bytes -= size_bytes
        if self._most_held is not None and self.held_bytes <= self._most_held:
            self._most_held = None
            self._relief.ended(time.monotonic(), waiting=0)

    def reservation(self, *, share: float = 1.0, client: str = "") -> Reservation:
        """A reservation for one request or one message; nothing is reserved yet.

        Args:
          share: the part of the budget that it may use at most.
          client: whose turns its decoding takes.
        """
        return Reservation(self, share, client)

    def thread_of(self, share: float) -> DecodingThread:
        """The one thread in which large inputs of this share are decoded."""
        return self._threads.setdefault(share, DecodingThread())


@attrs.define(eq=False)
class DecodingThread:
    """One thread, and the turns of clients in it."""

    _turns: FairPlaces = attrs.field(factory=partial(FairPlaces, limit=1, share=1), init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=partial(trio.CapacityLimiter, 1), init=False
    )

    async def run(self, work: Callable[[], T], *, client: str) -> T:
        """Run ``work`` in the thread when it is the client's turn.

        Cancellation: at once; the thread finishes the work in progress before it takes another.
        """
        async with self._turns.held_by(client):
            result, refusal = await trio.to_thread.run_sync(
                _attempted, work, limiter=self._limiter, abandon_on_cancel=True
            )
        if refusal is None:
            return cast("T", result)
        try:
            raise refusal
        finally:
            del refusal  # its traceback has this frame


def _attempted(work: Callable[[], T]) -> tuple[T | None, PaddlerError | None]:
    """The result of ``work``, or its refusal without a traceback: that would keep all frames of the
    thread, one of which keeps the refusal, and nobody may be left who waits for it."""
    try:
        return work(), None
    except PaddlerError as refusal:
        forget_frames(refusal)
        return None, refusal


@attrs.define(eq=False, repr=False)
class Reservation:
    """The bytes that one request or message holds of the budget; close it when that has ended."""

    budget: InputBudget
    _share: float
    client: str = ""
    """Whose turns decoding takes: the peer's address, until a key or a header names the client."""
    _used_bytes: int = attrs.field(default=0, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<Reservation of {self._used_bytes} bytes for {self.client or 'no client'}{state}>"

    def another(self) -> Reservation:
        """A further reservation of the same client."""
        return self.budget.reservation(share=self._share, client=self.client)

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the thread for large inputs, in the client's turn.

        Cancellation: at once; the thread finishes the work in progress before it takes another.
        """
        return await self.budget.thread_of(self._share).run(work, client=self.client)

    @property
    def used_bytes(self) -> int:
        """The bytes in use, the free ones included."""
        return self._used_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Return whether ``grow`` would succeed."""
        more = self._more_counted(size_bytes)
        return more <= 0 or self.budget.held_bytes + more <= self.budget.limit_bytes * self._share

    def grow(self, size_bytes: int) -> None:
        """Take room for ``size_bytes`` more; BudgetSpentError, and nothing taken, without it."""
        budget = self.budget
        if self._is_closed:
            return
        if not self.has_room(size_bytes):
            raise budget.spent(self._more_counted(size_bytes), self._share)
        budget.held_bytes += self._more_counted(size_bytes)
        self._used_bytes += size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Give back room for ``size_bytes``."""
        if not self._is_closed:
            less = _counted(self._used_bytes) - _counted(self._used_bytes - size_bytes)
            self.budget.give_back(less)
            self._used_bytes -= size_bytes

    def _more_counted(self, size_bytes: int) -> int:
        return _counted(self._used_bytes + size_bytes) - _counted(self._used_bytes)

    def close(self) -> None:
        """Give back all of it. Safe to call twice."""
        self.shrink(self._used_bytes)
        self._is_closed = True


@attrs.define
class UploadDeadline:
    """The time at which the next bytes of a body or a message must have arrived.

    A body that reserves nothing has until the deadline of the whole; one that does must also make
    progress in every window.
    """

    began_s: float
    whole_s: float
    _num_bytes: int = attrs.field(default=0, init=False)
    _window_began_s: float = attrs.field(default=0.0, init=False)
    _window_bytes: int = attrs.field(default=0, init=False)

    def received(self, size_bytes: int, now_s: float) -> None:
        """Count ``size_bytes`` that arrived now."""
        if self._num_bytes <= FREE_BYTES:
            self._window_began_s, self._window_bytes = now_s, 0
        self._num_bytes += size_bytes
        self._window_bytes += size_bytes
        if self._window_bytes >= MIN_PROGRESS_BYTES:
            self._window_began_s, self._window_bytes = now_s, 0

    @property
    def deadline_s(self) -> float:
        """On Trio's clock."""
        whole_s = self.began_s + self.whole_s
        if self._num_bytes <= FREE_BYTES:
            return whole_s
        return min(whole_s, self._window_began_s + MIN_PROGRESS_INTERVAL_S)


def _counted(used_bytes: int) -> int:
    return max(0, used_bytes - FREE_BYTES)
