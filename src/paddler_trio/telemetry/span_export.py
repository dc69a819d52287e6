"""Spans leave in the background: a bounded queue, one export at a time, a deadline at the end.

A request that has ended costs the event loop one entry in the queue. Its spans are made, encoded
and sent in a thread. When the collector is slow or away, what does not fit into the queue is
dropped and counted; nothing ever waits for it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.telemetry.span_data import MakeSpans, SpanData

log = structlog.get_logger("tracing")

MAX_WAITING: Final = 2048
"""Requests, of which each is a few kilobytes."""
LINGER_S: Final = 0.5
"""The time that the first of a batch waits for others."""
BATCH: Final = 32
"""Requests whose spans are sent at once."""
SWITCH_S: Final = 0.0005
"""The time that the event loop waits for the interpreter at most while spans are encoded, which
takes eight milliseconds for a batch; Python's own limit is five."""
FLUSH_S: Final = 1.5
"""The time for what waits when the daemon ends."""
REPORT_S: Final = 60.0
"""Failures are logged at most so often."""


class SpanExporter(Protocol):
    """Sends spans; both are called in a thread, ``close`` perhaps during an ``export``."""

    def export(self, spans: Sequence[SpanData], *, wall_offset_s: float) -> str | None:
        """Export spans; return why they were not taken, None if they were. ``wall_offset_s`` added
        to a time of Trio's clock is a Unix time."""
        ...

    def close(self) -> None:
        """Give up what is under way."""
        ...


@attrs.define(eq=False, repr=False)
class SpanExport:
    """See the module docstring."""

    exporter: SpanExporter
    num_exported: int = attrs.field(default=0, init=False)
    """Spans."""
    num_dropped: int = attrs.field(default=0, init=False)
    """Requests whose spans were lost."""
    _waiting: deque[MakeSpans] = attrs.field(factory=deque, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _turn: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _problem: str = attrs.field(default="", init=False)
    _num_reported: int = attrs.field(default=0, init=False)
    _report_after_s: float = attrs.field(default=0.0, init=False)

    def __repr__(self) -> str:
        return (
            f"<SpanExport {len(self._waiting)} of {MAX_WAITING} requests wait, "
            f"{self.num_exported} spans sent, {self.num_dropped} requests dropped>"
        )

    def put(self, make: MakeSpans) -> None:
        """Take the spans of one request; never blocks."""
        if len(self._waiting) >= MAX_WAITING:
            self.num_dropped += 1
            self._problem = self._problem or f"{MAX_WAITING} requests wait to be sent"
            return
        self._waiting.append(make)
        self._news.set()

    async def run(self) -> None:
        """Send until cancelled, and then for ``FLUSH_S`` what still waits."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await self._news.wait()
                await trio.sleep(LINGER_S)
                self._news = trio.Event()
                await self._send_all()
        finally:
            with trio.move_on_after(FLUSH_S, shield=True) as flush:
                await self._send_all()
            if flush.cancelled_caught:
                self._problem = self._problem or f"not sent within {FLUSH_S:g} s at the end"
            self.num_dropped += len(self._waiting)
            self._waiting.clear()
            self._report(at_once=True)
            self.exporter.close()

    async def _send_all(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            num_sent, problem = 0, "given up at the end"
            try:
                num_sent, problem = await trio.to_thread.run_sync(
                    self._send,
                    batch,
                    time.time() - trio.current_time(),
                    limiter=self._turn,
                    abandon_on_cancel=True,
                )
            finally:
                if problem:
                    self._problem = problem
                    self.num_dropped += len(batch)
                self.num_exported += num_sent
            self._report()

    def _send(self, batch: Sequence[MakeSpans], wall_offset_s: float) -> tuple[int, str]:
        """Send a batch in a thread; return how many spans were sent, and why none were."""
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            spans = [span for make in batch for span in make()]
            problem = self.exporter.export(spans, wall_offset_s=wall_offset_s)
        finally:
            sys.setswitchinterval(usual_s)
        return (0, problem) if problem else (len(spans), "")

    def _report(self, *, at_once: bool = False) -> None:
        lost, now_s = self.num_dropped - self._num_reported, trio.current_time()
        if not lost or not (at_once or now_s >= self._report_after_s):
            return
        log.warning("spans dropped", requests=lost, reason=self._problem)
        self._num_reported, self._report_after_s = self.num_dropped, now_s + REPORT_S
        self._problem = ""
