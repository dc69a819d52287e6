"""How far a download is: a value for whoever shows it, published at most four times a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

MIN_INTERVAL_S: Final = 0.25
SPEED_WINDOW_S: Final = 5.0


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
    """Counts bytes and publishes :class:`DownloadProgress` values.

    Args:
      publish: called with None when there is nothing under way any more. Must not block.
    """

    publish: Callable[[DownloadProgress | None], None]
    progress: DownloadProgress | None = attrs.field(default=None, init=False)
    _published_s: float = attrs.field(default=float("-inf"), init=False)
    _samples: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)

    def begin(self, progress: DownloadProgress) -> None:
        """Another file, or another phase of it; published at once."""
        self._samples.clear()
        self.progress = progress
        self._publish(trio.current_time())

    def end(self) -> None:
        """Nothing is under way any more."""
        self.progress = None
        self._samples.clear()
        self.publish(None)

    def add(self, count: int) -> None:
        """``count`` more bytes; negative when some have to be fetched again."""
        assert self.progress is not None
        self.set(self.progress.current_bytes + count)

    def set(self, current_bytes: int, total_bytes: int | None = None) -> None:
        """So many bytes are here; ``total_bytes`` None keeps what is known."""
        assert self.progress is not None
        now_s = trio.current_time()
        total = self.progress.total_bytes if total_bytes is None else total_bytes
        if now_s - self._published_s < MIN_INTERVAL_S:
            self.progress = attrs.evolve(
                self.progress, current_bytes=current_bytes, total_bytes=total
            )
            return
        self._samples.append((now_s, current_bytes))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > SPEED_WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        speed = (current_bytes - first_bytes) / (now_s - first_s) if now_s > first_s else None
        self.progress = attrs.evolve(
            self.progress,
            current_bytes=current_bytes,
            total_bytes=total,
            bytes_per_s=None if speed is None else max(0.0, speed),
        )
        self._publish(now_s)

    def _publish(self, now_s: float) -> None:
        self._published_s = now_s
        self.publish(self.progress)
