"""Ends the engine when a draw does not end.

llama.cpp cannot be interrupted while it looks which tokens fit a grammar, and there are grammars
with which that takes for ever. Meanwhile nobody is given a token, and the thread that answers pings
does not notice. Grammars are looked at before they come here; what passes nevertheless costs this
process, as an abort of llama.cpp would, and the agent is told whom it drew for.

Time is the drawing thread's own processor time: a busy machine makes no draw slow.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import attrs

from paddler_trio.wire.engine.crash_record import ActivityCells, CrashRecord

MAX_SAMPLE_CPU_S = 3.0
LOOK_S = 1.0


@attrs.define(eq=False)
class SlowSampling:
    """Looks at all threads that draw, again and again.

    Args:
      record: where they say for whom.
    """

    record: CrashRecord
    _since: dict[ActivityCells, tuple[int, float]] = attrs.field(factory=dict, init=False)
    """What each was seen at first: the number of its draw, and its processor time then."""

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Look from a thread of its own; ``on_crash`` ends the process, also if that fails."""

        def run() -> None:
            try:
                while (cells := self.stuck(_cpu_s)) is None:
                    time.sleep(LOOK_S)
                os.write(2, b"a token was drawn for %d s without an end\n" % MAX_SAMPLE_CPU_S)
                self.record.failed(cells.thread)
            except Exception:  # noqa: BLE001  # nobody would notice a draw that does not end
                traceback.print_exc()
            on_crash()

        threading.Thread(target=run, name="slow draws", daemon=True).start()

    def stuck(self, cpu_s: Callable[[int], float]) -> ActivityCells | None:
        """Look once: the thread whose present draw has taken too long since it was first seen, if
        there is one. ``cpu_s`` is the processor time that a thread has had."""
        for cells in list(self.record.sampling):
            if not cells.is_working:
                self._since.pop(cells, None)
                continue
            now_s = cpu_s(cells.thread)
            number, since_s = self._since.get(cells, (-1, 0.0))
            if number != cells.num_begun:
                self._since[cells] = cells.num_begun, now_s
            elif now_s - since_s > MAX_SAMPLE_CPU_S:
                return cells
        return None


def _cpu_s(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
