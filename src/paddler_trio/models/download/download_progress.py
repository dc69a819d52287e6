"""Publish how far a download is, as a value, at most four times a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

import attrs
import trio

from paddler_trio.net.client.download_errors import DownloadError, ServerFailedError

MIN_INTERVAL_S: Final = 0.25
SPEED_WINDOW_S: Final = 5.0
WAITING: Final = "waiting for another process"
"""The phase of a file whose lock somebody else holds."""


@attrs.frozen(kw_only=True)
class DownloadProgress:
    """One file on its way.

    Args:
      source: the host that it comes from.
      filename: as people know it.
      file_index, file_count: of the files that make up the model; the index is from 1.
      current_bytes: here already, those of an earlier attempt too.
      total_bytes: None if the server does not announce it.
      bytes_per_s: over the last seconds; None before there is anything to measure.
      phase: what goes on.
    """

    source: str
    filename: str
    file_index: int = 1
    file_count: int = 1
    current_bytes: int = 0
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    phase: str = "downloading"

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at this speed; None if nobody can know."""
        if self.total_bytes is None or not self.bytes_per_s:
            return None
        return max(0.0, (self.total_bytes - self.current_bytes) / self.bytes_per_s)


@attrs.define(eq=False)
class ProgressMeter:
    """Counts bytes; :meth:`run` publishes :class:`DownloadProgress` values as they change.

    A model of many small parts, or of parts that are here already, is another file at every moment:
    what is over before it may be published is not published.

    Args:
      publish: called with None when there is nothing under way any more. Must not block.
    """

    publish: Callable[[DownloadProgress | None], None]
    progress: DownloadProgress | None = attrs.field(default=None, init=False)
    """Now, without the bytes since it was last published."""
    current_bytes: int = attrs.field(default=0, init=False)
    total_bytes: int | None = attrs.field(default=None, init=False)
    received_bytes: int = attrs.field(default=0, init=False)
    """The bytes from the network, of all files together; what is fetched twice counts twice."""
    _samples: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)
    _published: DownloadProgress | None = attrs.field(default=None, init=False)
    _next_s: float = attrs.field(default=-inf, init=False)
    """Nothing is published before."""

    async def run(self) -> None:
        """Publish what has changed, four times a second, until cancelled."""
        while True:
            await trio.sleep(MIN_INTERVAL_S)
            self._tick()

    def begin(self, progress: DownloadProgress) -> None:
        """Begin another file, or another phase of it; published as soon as it may be."""
        self._samples.clear()
        self.current_bytes, self.total_bytes = progress.current_bytes, progress.total_bytes
        self.progress = progress
        if trio.current_time() >= self._next_s:
            self._publish(progress)

    def begin_phase(self, phase: str) -> None:
        """Begin something else with the same file."""
        assert self.progress is not None
        if self.progress.phase != phase:
            self.begin(attrs.evolve(self._now(), phase=phase, bytes_per_s=None))

    def end(self) -> None:
        """Note that nothing is under way any more."""
        self.progress = self._published = None
        self.publish(None)

    def add(self, count: int) -> None:
        """Note that ``count`` more bytes are here."""
        self.current_bytes += count
        self.received_bytes += count

    def set(self, current_bytes: int, total_bytes: int | None = None) -> None:
        """Set how many bytes are here; ``total_bytes`` None keeps what is known."""
        self.current_bytes = current_bytes
        if total_bytes is not None:
            self.total_bytes = total_bytes

    def _now(self) -> DownloadProgress:
        assert self.progress is not None
        return attrs.evolve(
            self.progress, current_bytes=self.current_bytes, total_bytes=self.total_bytes
        )

    def _tick(self) -> None:
        if self.progress is None:
            return
        now_s = trio.current_time()
        self._samples.append((now_s, self.current_bytes))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > SPEED_WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        speed = None
        if now_s > first_s:
            speed = max(0.0, (self.current_bytes - first_bytes) / (now_s - first_s))
        self.progress = attrs.evolve(self._now(), bytes_per_s=speed)
        if self.progress != self._published and now_s >= self._next_s:
            self._publish(self.progress)

    def _publish(self, progress: DownloadProgress) -> None:
        self._published = progress
        self._next_s = trio.current_time() + MIN_INTERVAL_S
        self.publish(progress)


FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
PERMANENT_RETRY_S: Final = 600.0
"""The pause after a permanent error, unless the token or the desired state changes before."""


@attrs.define
class RetryDelay:
    """Doubles from 1 s to 60 s; a server's Retry-After counts up to ten minutes.

    Args:
      random: a number in [0, 1), a new one for each delay: machines that failed together do not
        come back together.
    """

    _failures: int = attrs.field(default=0, init=False)

    def after(self, error: Exception, random: float) -> float:
        """Return the seconds until the next attempt; one more failure is counted."""
        if isinstance(error, DownloadError) and error.is_permanent:
            return PERMANENT_RETRY_S
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(self._failures, 16), LONGEST_RETRY_S)
        self._failures += 1
        delay_s *= 0.5 + random / 2
        if isinstance(error, ServerFailedError) and error.retry_after_s is not None:
            return min(max(delay_s, error.retry_after_s), PERMANENT_RETRY_S)
        return delay_s

    def reset(self) -> None:
        """Note that something succeeded, or something else is asked for."""
        self._failures = 0
