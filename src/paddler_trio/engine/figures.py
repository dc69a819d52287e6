"""What the engine counts about itself: cheap to keep, reported now and then."""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.batching.streams import Streams
from paddler_trio.wire.engine_pipe import Figures

INTERVAL_S = 0.5


@attrs.define
class Counters:
    """Since the model was loaded; see :class:`Figures`."""

    passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drawn_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    busy_ms: float = 0.0
    draw_ms: float = 0.0
    _last: tuple[int, int, float] = (0, 0, 0.0)
    _reported_passes: int = 0
    _due_s: float = 0.0

    def passed(self, *, sequences: int, tokens: int, prompt_tokens: int, pass_ms: float) -> None:
        """llama.cpp computed a pass of this shape."""
        self.passes += 1
        self.prompt_tokens += prompt_tokens
        self.busy_ms += pass_ms
        self._last = (sequences, tokens, pass_ms)

    def is_due(self, now_s: float, *, force: bool) -> bool:
        """Something happened since the last report, and that is a while ago, or ``force``."""
        if self.passes == self._reported_passes or (now_s < self._due_s and not force):
            return False
        self._reported_passes = self.passes
        self._due_s = now_s + INTERVAL_S
        return True

    def figures(self, streams: Streams, *, stored_tokens: int, stored_bytes: int) -> Figures:
        """Everything, with what the streams hold now."""
        sequences, tokens, pass_ms = self._last
        cells = streams.cells
        return Figures(
            passes=self.passes,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            drawn_tokens=self.drawn_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            preemptions=streams.preemptions,
            busy_ms=self.busy_ms,
            draw_ms=self.draw_ms,
            last_sequences=sequences,
            last_tokens=tokens,
            last_ms=pass_ms,
            running=len(streams.running),
            waiting=streams.num_waiting,
            cells_total=cells.num_used + cells.num_free,
            cells_used=cells.num_used,
            cells_resident=streams.num_resident,
            stored_tokens=stored_tokens,
            stored_bytes=stored_bytes,
        )
