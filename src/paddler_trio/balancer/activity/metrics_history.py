"""Figures of the last hour, one row for every ten seconds: latencies, tokens, load.

What happens is counted in the bucket that is open; a task of the tree closes it and keeps its row.
So nothing that is recorded looks at the clock or at the row, and an hour has a fixed size. Times in
seconds here, in milliseconds in the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from paddler_trio.balancer.activity.latency_histogram import LatencyHistogram
from paddler_trio.balancer.activity.moments import ms, utc_ms
from paddler_trio.system.printed_tree import explain_this_task

BUCKET_S: Final = 10.0
MAX_ROWS: Final = 360
"""An hour."""
FIELDS: Final = (
    "start_ms",
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
"""Of a row. ``requests`` are those that ended, ``failed`` among them; ``itl``: between tokens."""
WAITED_S: Final = 1e-3
"""A request that leaves the queue sooner found a free slot, and did not wait."""

Row: TypeAlias = Sequence[int | float | None]
"""The values of :data:`FIELDS`; None where nothing was measured."""


@attrs.define(eq=False, repr=False)
class MetricsHistory:
    """See the module docstring.

    Args:
      slots: how many there are now.
    """

    slots: Callable[[], int]
    ttft: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    """From the arrival to the first result."""
    between_tokens: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    queue: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    """Until the first slot."""
    requests: int = attrs.field(default=0, init=False)
    failed: int = attrs.field(default=0, init=False)
    prompt_tokens: int = attrs.field(default=0, init=False)
    cached_tokens: int = attrs.field(default=0, init=False)
    generated_tokens: int = attrs.field(default=0, init=False)
    waiting: int = attrs.field(default=0, init=False)
    """Now, as ``busy``."""
    busy: int = attrs.field(default=0, init=False)
    _waiting_max: int = attrs.field(default=0, init=False)
    _busy_max: int = attrs.field(default=0, init=False)
    _start_s: float = attrs.field(factory=lambda: _aligned(trio.current_time()), init=False)
    _rows: deque[Row] = attrs.field(factory=lambda: deque(maxlen=MAX_ROWS - 1), init=False)
    """Of closed buckets, oldest first."""

    def __repr__(self) -> str:
        return f"<MetricsHistory of {len(self._rows)} buckets, {self.requests} requests in this>"

    # ------------------------------------------------------------ recording

    def enters_queue(self) -> None:
        """A request has arrived, or has lost its slot."""
        self.waiting += 1

    def leaves_queue(self, waited_s: float, *, granted: bool, is_first: bool) -> None:
        """It did, after so long; ``is_first``: it never had a slot before."""
        if waited_s >= WAITED_S and self.waiting > self._waiting_max:
            self._waiting_max = self.waiting  # the level falls only here, so here was its top
        self.waiting -= 1
        if granted:
            self.busy += 1
            if self.busy > self._busy_max:
                self._busy_max = self.busy
            if is_first:
                self.queue.add(waited_s)

    def leaves_slot(self) -> None:
        """A request does not hold its slot any more."""
        self.busy -= 1

    def first_result(self, ttft_s: float, tokens: int) -> None:
        """So long after its arrival a request had its first result, of so many tokens."""
        self.ttft.add(ttft_s)
        self.generated_tokens += tokens

    def step(self, gap_s: float, tokens: int) -> None:
        """Tokens of one request came, so long after those before them."""
        self.generated_tokens += tokens
        if tokens == 1:
            self.between_tokens.add(gap_s)
        elif tokens:
            self.between_tokens.add(gap_s / tokens, tokens)

    def prompt(self, tokens: int, cached: int) -> None:
        """A prompt was computed, except for what was cached of it."""
        self.prompt_tokens += tokens
        self.cached_tokens += cached

    def ended(self, *, failed: bool) -> None:
        """A request is over for its client."""
        self.requests += 1
        self.failed += failed

    # -------------------------------------------------------------- reading

    async def run(self) -> None:
        """Close buckets in time, until cancelled."""
        explain_this_task(lambda: f"{len(self._rows)} rows; the next is due in 10 s or less")
        while True:
            await trio.sleep_until(self._start_s + BUCKET_S)
            self.close(trio.current_time())

    def close(self, now_s: float) -> None:
        """Keep the row of the open bucket, and begin the next one."""
        self._rows.append(self.current())
        self._start_s = max(self._start_s + BUCKET_S, _aligned(now_s))
        for histogram in (self.ttft, self.between_tokens, self.queue):
            histogram.clear()
        self.requests = self.failed = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self._waiting_max, self._busy_max = self.waiting, self.busy

    def current(self) -> Row:
        """Return the row of the open bucket, as far as it goes."""
        return (
            ms(self._start_s),
            self.requests,
            self.failed,
            _ms(self.ttft.quantile(0.5)),
            _ms(self.ttft.quantile(0.95)),
            _ms(self.between_tokens.quantile(0.5)),
            _ms(self.between_tokens.quantile(0.95)),
            _ms(self.queue.quantile(0.5)),
            _ms(self.queue.quantile(0.95)),
            self.prompt_tokens,
            self.cached_tokens,
            self.generated_tokens,
            max(self._waiting_max, self.waiting),
            max(self._busy_max, self.busy),
            self.slots(),
        )

    def view(self, now_s: float) -> Mapping[str, object]:
        """Return the document of ``GET /api/v2/metrics/history``; the newest row may still grow."""
        return {
            "now_ms": ms(now_s),
            "time": utc_ms(),
            "bucket_ms": ms(BUCKET_S),
            "fields": FIELDS,
            "rows": [*self._rows, self.current()],
        }


def _aligned(now_s: float) -> float:
    return now_s // BUCKET_S * BUCKET_S


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 2)
