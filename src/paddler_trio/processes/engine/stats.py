"""Count what the engine does: cheap to keep, reported now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from paddler_trio.scheduler.batching.streams import Streams
from paddler_trio.wire.engine.engine_pipe import EngineStats

INTERVAL_S = 0.5


@attrs.define
class _ReportTimer:
    """A timer that says when one thread reports: after passes, and not again at once."""

    _reported_passes: int = 0
    _due_s: float = 0.0

    def is_due(self, passes: int, now_s: float, *, force: bool) -> bool:
        """Return whether there were passes since the last report, and that is a while ago, or
        ``force``."""
        if passes == self._reported_passes or (now_s < self._due_s and not force):
            return False
        self._reported_passes = passes
        self._due_s = now_s + INTERVAL_S
        return True


@attrs.define(eq=False)
class Counters:
    """The statistics of one engine since the model was loaded, kept by the threads that compute.

    No field of ``now`` is written by two threads, so counting needs no lock. Reporting does:
    reports leave in the order in which the counts grew, from whichever thread.

    Args:
      report: takes a copy of the statistics; from any of the threads, but one at a time.
    """

    report: Callable[[EngineStats], None]
    now: EngineStats = attrs.field(factory=EngineStats, init=False)
    _generation: _ReportTimer = attrs.field(factory=_ReportTimer, init=False)
    _embedding: _ReportTimer = attrs.field(factory=_ReportTimer, init=False)
    _reporting: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    # ------------------------------------------------------- the thread that generates

    def passed(self, *, sequences: int, tokens: int, prompt_tokens: int, pass_ms: float) -> None:
        """Note that llama.cpp computed a pass of this shape."""
        now = self.now
        now.passes += 1
        now.prompt_tokens += prompt_tokens
        now.busy_ms += pass_ms
        now.last_sequences, now.last_tokens, now.last_ms = sequences, tokens, pass_ms

    def is_due(self, now_s: float, *, force: bool) -> bool:
        """Return whether something was generated since the last report, and that is a while ago, or
        ``force``."""
        return self._generation.is_due(self.now.passes, now_s, force=force)

    def report_streams(self, streams: Streams, *, stored_tokens: int, stored_bytes: int) -> None:
        """Report everything, with what the streams hold now."""
        now, cells = self.now, streams.cells
        now.preemptions = streams.preemptions
        now.running = streams.num_running
        now.waiting = streams.num_waiting
        now.cells_total = cells.num_used + cells.num_free
        now.cells_used = cells.num_used
        now.cells_resident = streams.num_resident
        now.stored_tokens = stored_tokens
        now.stored_bytes = stored_bytes
        self._report()

    # ---------------------------------------------------------- the thread that embeds

    def embedded(self, *, documents: int, tokens: int, pass_ms: float) -> None:
        """Note that llama.cpp computed a pass of the context that embeds."""
        now = self.now
        now.embedding_passes += 1
        now.embedding_documents += documents
        now.embedding_tokens += tokens
        now.embedding_ms += pass_ms

    def report_embedding(self, now_s: float, *, force: bool) -> None:
        """Report everything if something was embedded since, a while ago, or ``force``."""
        if self._embedding.is_due(self.now.embedding_passes, now_s, force=force):
            self._report()

    def _report(self) -> None:
        with self._reporting:
            self.report(attrs.evolve(self.now))
