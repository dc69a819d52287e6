"""Measure how late the event loop is, by a task that sleeps and looks at the clock.

Whatever keeps the loop from turning makes that task late: a callback that computes too long, a
thread that holds the interpreter, a machine without a core to spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import structlog
import trio

from paddler_trio.system.printed_tree import explain_this_task

log = structlog.get_logger("loop")

INTERVAL_S = 0.1
STALL_S = 0.25
"""Later than this is logged."""
WINDOW_S = 60.0
"""The time for which the worst is remembered."""
LOG_EVERY_S = 5.0
"""A line is logged so often at most; it is about all stalls since the one before."""


def _ignore(late_s: float) -> None:
    """Count nothing."""


@attrs.define(eq=False)
class LoopLag:
    """Measurements of the lag. Times in seconds."""

    stalls: int = attrs.field(default=0, init=False)
    """The number of times that the loop was later than ``STALL_S``."""
    on_late: Callable[[float], None] = attrs.field(default=_ignore, init=False)
    """Called with each measure, in seconds."""
    stalled_s: float = attrs.field(default=0.0, init=False)
    """The time that it was late, those times, together."""
    _told_stalls: int = attrs.field(default=0, init=False)
    _told_s: float = attrs.field(default=-math.inf, init=False)
    _worst_s: float = attrs.field(default=0.0, init=False)
    _worst_before_s: float = attrs.field(default=0.0, init=False)
    _window_began_s: float = attrs.field(factory=trio.current_time, init=False)

    @property
    def worst_s(self) -> float:
        """The latest it was in the last one to two minutes."""
        return max(self._worst_s, self._worst_before_s)

    async def run(self) -> None:
        """Measure until cancelled."""
        explain_this_task(
            lambda: f"at most {self.worst_s * 1000:.0f} ms late, {self.stalls} stalls so far"
        )
        while True:
            due_s = trio.current_time() + INTERVAL_S
            await trio.sleep_until(due_s)
            self.note(trio.current_time() - due_s, trio.current_time())

    def note(self, late_s: float, now_s: float) -> None:
        """Note that the loop was so late now."""
        self.on_late(late_s)
        if now_s - self._window_began_s > WINDOW_S:
            self._worst_before_s, self._worst_s = self._worst_s, 0.0
            self._window_began_s = now_s
        self._worst_s = max(self._worst_s, late_s)
        if late_s > STALL_S:
            self.stalls += 1
            self.stalled_s += late_s
        if self.stalls > self._told_stalls and now_s - self._told_s >= LOG_EVERY_S:
            log.warning(
                "the event loop stood still",
                stalls=self.stalls - self._told_stalls,
                worst_ms=round(self.worst_s * 1000),
            )
            self._told_stalls, self._told_s = self.stalls, now_s
