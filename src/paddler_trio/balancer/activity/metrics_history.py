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

from paddler_trio.balancer.activity.moments import ms, utc_ms
from paddler_trio.scheduler.metering.time_samples import FIELDS as SAMPLE_FIELDS
from paddler_trio.scheduler.metering.time_samples import LATENCIES, Sample
from paddler_trio.system.printed_tree import explain_this_task

BUCKET_S: Final = 10.0
MAX_ROWS: Final = 360
"""An hour."""
FIELDS: Final = ("start_ms", *SAMPLE_FIELDS)
"""Of a row; see ``time_samples.py``."""
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
    sample: Sample = attrs.field(factory=Sample, init=False)
    """What has happened in the open bucket, but for what is now."""
    waiting: int = attrs.field(default=0, init=False)
    """Now, as ``busy``."""
    busy: int = attrs.field(default=0, init=False)
    _waiting_max: int = attrs.field(default=0, init=False)
    _busy_max: int = attrs.field(default=0, init=False)
    _start_s: float = attrs.field(factory=lambda: _aligned(trio.current_time()), init=False)
    _rows: deque[Row] = attrs.field(factory=lambda: deque(maxlen=MAX_ROWS - 1), init=False)
    """Of closed buckets, oldest first."""
    _taken: Sample = attrs.field(factory=Sample, init=False)
    """What of the open bucket was taken already."""
    _left: Sample = attrs.field(factory=Sample, init=False)
    """What of closed ones was not."""

    def __repr__(self) -> str:
        return f"<MetricsHistory of {len(self._rows)} buckets and one that is open>"

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
                self.sample.queue.add(waited_s)

    def leaves_slot(self) -> None:
        """A request does not hold its slot any more."""
        self.busy -= 1

    def first_result(self, ttft_s: float, tokens: int) -> None:
        """So long after its arrival a request had its first result, of so many tokens."""
        self.sample.ttft.add(ttft_s)
        self.sample.generated_tokens += tokens

    def step(self, gap_s: float, tokens: int) -> None:
        """Tokens of one request came, so long after those before them."""
        sample = self.sample
        sample.generated_tokens += tokens
        if tokens == 1:
            sample.between_tokens.add(gap_s)
        elif tokens:
            sample.between_tokens.add(gap_s / tokens, tokens)

    def prompt(self, tokens: int, cached: int) -> None:
        """A prompt was computed, except for what was cached of it."""
        self.sample.prompt_tokens += tokens
        self.sample.cached_tokens += cached

    def ended(self, *, failed: bool) -> None:
        """A request is over for its client."""
        self.sample.requests += 1
        self.sample.failed += failed

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
        self._left = self.take()
        self._start_s = max(self._start_s + BUCKET_S, _aligned(now_s))
        self.sample, self._taken = Sample(), Sample()
        self._waiting_max, self._busy_max = self.waiting, self.busy

    def take(self) -> Sample:
        """Return what has happened since this was called last, and the levels of the open
        bucket."""
        left, self._left = self._left, Sample()
        now = self._measured()
        left.include(now.without(self._taken))
        self._taken = attrs.evolve(
            now,
            **{name: getattr(now, name).copy() for name in LATENCIES},
        )
        return left

    def current(self) -> Row:
        """Return the row of the open bucket, as far as it goes."""
        return (ms(self._start_s), *self._measured().row())

    def _measured(self) -> Sample:
        """Return the open bucket with its levels; it shares the latencies."""
        return attrs.evolve(
            self.sample,
            waiting_max=max(self._waiting_max, self.waiting),
            busy_max=max(self._busy_max, self.busy),
            slots=self.slots(),
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
