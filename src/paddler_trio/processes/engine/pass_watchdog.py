"""Breaks off passes that take many times what they should, so that fewer threads compute them anew.

A thread of its own looks from time to time: to arm a timer for each pass would cost every pass more
than the few that are broken off are worth.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.02
_QUIET_LOOKS: Final = 50
"""Without a pass to watch; then it looks no more until there is one."""


class PassWatchdog:
    """Watches one pass at a time, for the thread that computes it.

    Args:
      abort: ends the pass that is being computed; from any thread. A pass that has just begun when
        the one before it was to be broken off may be hit instead: it is computed again, too.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._pass: _Pass | None = None
        self._has_passes = threading.Event()
        self._thread: threading.Thread | None = None

    def begins(self, limit_s: float) -> None:
        """Note that a pass begins, which may take so long; inf for as long as it likes."""
        if limit_s == math.inf:
            return
        self._pass = _Pass(time.monotonic() + limit_s)
        if not self._has_passes.is_set():
            self._has_passes.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()

    def ended(self) -> bool:
        """Note that the pass has ended; return whether it was broken off."""
        watched, self._pass = self._pass, None
        return watched is not None and watched.is_broken_off

    def _run(self) -> None:
        quiet = 0
        while True:
            self._has_passes.wait()
            time.sleep(LOOK_S)
            watched = self._pass
            quiet = 0 if watched is not None else quiet + 1
            if watched is not None and not watched.is_broken_off:
                if time.monotonic() >= watched.due_s:
                    watched.is_broken_off = True
                    self._abort()
            elif quiet > _QUIET_LOOKS:
                self._has_passes.clear()
                if self._pass is not None:  # it began just now, and saw no need to wake anybody
                    self._has_passes.set()


class _Pass:
    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.is_broken_off = False
