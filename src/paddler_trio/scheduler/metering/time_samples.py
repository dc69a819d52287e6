"""Add up what happened to requests in a piece of time; two pieces make one that is longer.

Numbers add up, levels are the greatest of both, and latencies are counted in buckets. So it does
not matter in which order pieces are put together, nor how often a piece is added to: a process that
writes what came since it last wrote needs to know nothing of what others wrote.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.metering.latency_histogram import LatencyHistogram

Kind: TypeAlias = Literal["fleet", "deployment", "agent", "client", "key"]
"""Of what a series is; of the fleet there is one."""
KINDS: Final[tuple[Kind, ...]] = ("fleet", "deployment", "agent", "client", "key")
OTHER: Final = "other"
"""The series of all whose names are too many."""
FIELDS: Final = (
    "requests",
    "failed",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "queue_p50_ms",
    "queue_p95_ms",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "waiting_max",
    "busy_max",
    "slots",
)
"""Of a row, behind the moment at which it begins. ``itl``: between tokens."""
NUMBERS: Final = ("requests", "failed", "prompt_tokens", "cached_tokens", "generated_tokens")
LEVELS: Final = ("waiting_max", "busy_max", "slots")
LATENCIES: Final = ("ttft", "between_tokens", "queue")


@attrs.define
class Sample:
    """See the module docstring.

    Args:
      requests: those that ended; ``failed`` are among them.
      ttft: from the arrival to the first token.
      queue: until the first slot.
      waiting_max: most at a time, as the next two.
    """

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    waiting_max: int = 0
    busy_max: int = 0
    slots: int = 0
    ttft: LatencyHistogram = attrs.field(factory=LatencyHistogram)
    between_tokens: LatencyHistogram = attrs.field(factory=LatencyHistogram)
    queue: LatencyHistogram = attrs.field(factory=LatencyHistogram)

    def include(self, other: Sample) -> None:
        """Add another piece."""
        self.requests += other.requests
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens
        self.waiting_max = max(self.waiting_max, other.waiting_max)
        self.busy_max = max(self.busy_max, other.busy_max)
        self.slots = max(self.slots, other.slots)
        self.ttft.include(other.ttft)
        self.between_tokens.include(other.between_tokens)
        self.queue.include(other.queue)

    def without(self, before: Sample) -> Sample:
        """Return what has come since it was ``before``; the levels are those of now."""
        return Sample(
            *(getattr(self, name) - getattr(before, name) for name in NUMBERS),
            *(getattr(self, name) for name in LEVELS),
            *(getattr(self, name).without(getattr(before, name)) for name in LATENCIES),
        )

    def row(self) -> tuple[int | float | None, ...]:
        """Return the values of :data:`FIELDS`; None where nothing was measured."""
        return (
            self.requests,
            self.failed,
            *(
                None if value_s is None else round(value_s * 1000, 2)
                for histogram in (self.ttft, self.between_tokens, self.queue)
                for value_s in (histogram.quantile(0.5), histogram.quantile(0.95))
            ),
            self.prompt_tokens,
            self.cached_tokens,
            self.generated_tokens,
            self.waiting_max,
            self.busy_max,
            self.slots,
        )
