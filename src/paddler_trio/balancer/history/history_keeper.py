"""The task that writes the history every two seconds, and what of it is wrong.

Nothing of a request waits for it: a thread writes, what cannot be written is added up in memory,
and when that is too much the oldest figures go, never what was used. Two processes may both run one
while one takes over from the other; each writes what it counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import attrs
import structlog
import trio

from paddler_trio.balancer.history.history_collector import (
    HistoryCollector,
    Piece,
    SeriesNames,
    Unstored,
)
from paddler_trio.balancer.history.history_file import HistoryError, HistoryFile
from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("history")

WRITE_S: Final = 2.0
FINAL_S: Final = 5.0
"""How long the end of the balancer waits for the last write."""
SLOW_S: Final = 10.0
"""How long a read waits for the file, and a write takes before it is a problem."""
MAX_SAMPLES: Final = 20_000
"""That are not written, of some 500 bytes."""

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class HistoryKeeper:
    """See the module docstring."""

    file: HistoryFile
    collector: HistoryCollector
    unix_s: Callable[[], float] = time.time
    dropped: int = attrs.field(default=0, init=False)
    """Samples that never reached the file."""
    _failure: str = attrs.field(default="", init=False)
    """Why the last write failed; empty if it did not."""
    _names: SeriesNames = attrs.field(factory=SeriesNames, init=False)
    _pieces: deque[Piece] = attrs.field(factory=deque, init=False)
    """Collected, and not looked at in a thread yet: a write that is broken off leaves them here."""
    _unstored: Unstored = attrs.field(factory=Unstored, init=False)
    _writing_since_s: float | None = attrs.field(default=None, init=False)
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    """Of threads at the file: one at a time."""

    def __repr__(self) -> str:
        state = f", {self._failure}" if self._failure else ""
        return f"<HistoryKeeper {len(self._unstored.samples)} samples to write{state}>"

    @property
    def problem(self) -> str:
        """Why the history is not as it should be; empty if nothing is wrong with it."""
        since_s = self._writing_since_s
        if self._failure:
            lost = f"; {self.dropped} figures are lost" if self.dropped else ""
            return f"{self.file.path or 'its memory'} cannot be written: {self._failure}{lost}"
        if since_s is not None and trio.current_time() - since_s > SLOW_S:
            return f"a write to {self.file.path} has taken more than {SLOW_S:g} s"
        if self.file.set_aside is not None:
            return f"it was damaged and is set aside as {self.file.set_aside}"
        return ""

    async def run(self) -> None:
        """Write until cancelled, and once more."""
        explain_this_task(lambda: repr(self))
        try:
            while True:
                await trio.sleep(WRITE_S)
                await self.collector.look()
                await self.write()
        finally:
            with trio.move_on_after(FINAL_S, shield=True):
                await self.write()
                await self._in_thread(self.file.close)

    async def write(self) -> None:
        """Write what has come, and what could not be written before."""
        self._pieces.extend(self.collector.take())
        self._writing_since_s = trio.current_time()
        failure = await self._in_thread(partial(self._write, int(self.unix_s())))
        self._writing_since_s = None
        if failure and not self._failure:
            log.error("the history cannot be written", path=str(self.file.path), reason=failure)
        elif self._failure and not failure:
            log.info("the history is written again", path=str(self.file.path))
        self._failure = failure

    async def read(self, query: Callable[[HistoryFile], T]) -> T:
        """Return what a query finds; HistoryError, also where the file is too slow."""
        with trio.move_on_after(SLOW_S):
            return await self._in_thread(partial(query, self.file))
        raise HistoryError(f"the history was not read within {SLOW_S:g} s: its disk is too slow")

    # ------------------------------------------------------------- private

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Cancellation: what has begun goes on in its thread; the next one waits for it."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one)

    def _write(self, now: int) -> str:
        """Write in a thread; return why it failed, or nothing."""
        unstored = self._unstored
        while self._pieces:
            unstored.include((self._pieces.popleft(),), self._names)
        usage = unstored.usage.take()
        try:
            self.file.write(unstored.samples, usage, now)
        except HistoryError as error:
            unstored.usage.include(usage)
            self._drop_oldest()
            return str(error)
        unstored.samples.clear()
        return ""

    def _drop_oldest(self) -> None:
        samples = self._unstored.samples
        while len(samples) > MAX_SAMPLES:
            del samples[next(iter(samples))]
            self.dropped += 1
