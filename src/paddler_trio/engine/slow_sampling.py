"""Ends the engine when the sampling of one token does not end.

llama.cpp cannot be interrupted while it checks which tokens fit a grammar, and for some grammars
that never ends. Meanwhile no sequence gets a token, and the thread that answers pings does not
notice. Grammars are inspected before they come here; one that passes nevertheless costs this
process, as an abort of llama.cpp would, and the crash record names its request.

Time is the sampling thread's own processor time: a busy machine makes no token slow.
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
    """A watchdog over all threads that sample.

    Args:
      record: which requests they sample for.
    """

    record: CrashRecord
    _since: dict[ActivityCells, tuple[int, float]] = attrs.field(factory=dict, init=False)
    """What each was seen at first: the number of its token, and its processor time then."""

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Watch from a thread of its own; ``on_crash`` ends the process, also if that fails."""

        def run() -> None:
            try:
                while (cells := self.stuck(_cpu_s)) is None:
                    time.sleep(LOOK_S)
                os.write(2, b"a token was sampled for %d s without an end\n" % MAX_SAMPLE_CPU_S)
                self.record.failed(cells.thread)
            except Exception:  # noqa: BLE001  # without a watchdog, sampling may hang unnoticed
                traceback.print_exc()
            on_crash()

        threading.Thread(target=run, name="slow sampling", daemon=True).start()

    def stuck(self, cpu_s: Callable[[int], float]) -> ActivityCells | None:
        """Look once: the thread whose present token has taken too long since it was first seen, if
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
