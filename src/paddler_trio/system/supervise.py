"""Restart a child that failed for outside reasons, within a budget; let everything else rise."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ChildGaveUpError, one_line
from paddler_trio.system.printed_tree import forget_this_task, history_of_this_task

log = structlog.get_logger("supervise")

RESTARTS: Final = 12
PERIOD_S: Final = 60.0
_MAX_DOUBLINGS: Final = 64


@attrs.define
class RestartBudget:
    """A budget of at most ``max_restarts`` within ``period_s``; restarts in between back off
    exponentially.

    It has no clock of its own. (OTP calls the two intensity and period.) A child that stayed up for
    ``period_s`` starts again with the shortest pause.
    """

    max_restarts: int = attrs.field(validator=attrs.validators.ge(1))
    period_s: float
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    _crashes_s: deque[float] = attrs.field(factory=deque, init=False)

    def crashed(self, now_s: float) -> float | None:
        """Record a crash; the pause before the next start, or None if the budget is spent."""
        self._forget_before(now_s - self.period_s)
        self._crashes_s.append(now_s)
        if len(self._crashes_s) > self.max_restarts:
            return None
        pause_s = self.first_pause_s * 2.0 ** min(len(self._crashes_s) - 1, _MAX_DOUBLINGS)
        return min(pause_s, self.longest_pause_s)

    def refilled_in_s(self, now_s: float) -> float:
        """Return how long it takes until a crash would be forgiven again; 0 if it would be now."""
        self._forget_before(now_s - self.period_s)
        if len(self._crashes_s) < self.max_restarts:
            return 0.0
        return self._crashes_s[-self.max_restarts] + self.period_s - now_s

    def _forget_before(self, moment_s: float) -> None:
        while self._crashes_s and self._crashes_s[0] <= moment_s:
            self._crashes_s.popleft()


@attrs.frozen
class Child:
    """Name what to run, which crashes are the outside world's fault, and how many are forgiven.

    ``on_crash`` is called with each; with ``wait_for_refill`` a spent budget means a
    long pause instead of giving up: right for what only time or an operator can heal.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    restart_on: tuple[type[Exception], ...]
    budget: RestartBudget
    wait_for_refill: bool = False
    on_crash: Callable[[BaseException], None] = lambda crash: None


async def supervise(child: Child) -> None:
    """Run ``child`` again after each forgiven crash; return when it returns."""
    history = history_of_this_task()
    try:
        while True:
            crash: ExceptionGroup[Exception] | None = None
            try:
                await child.run()
            except* child.restart_on as group:  # bugs, Cancelled and Ctrl-C pass through
                crash = group
            if crash is None:
                return
            reason = one_line(crash)
            history.restarts += 1
            history.last_crash = reason
            child.on_crash(crash)
            now_s = trio.current_time()
            pause_s = child.budget.crashed(now_s)
            if pause_s is None:
                if not child.wait_for_refill:
                    raise ChildGaveUpError(
                        f"{child.name} crashed more than {child.budget.max_restarts} times in "
                        f"{child.budget.period_s:g} s; the last time: {reason}"
                    ) from crash
                pause_s = child.budget.refilled_in_s(now_s)
            log.error("child crashed", child=child.name, reason=reason, again_in_s=pause_s)
            await trio.sleep(pause_s)
    finally:
        forget_this_task()


async def keep(
    name: str,
    restart_on: type[Exception],
    run: Callable[[], Awaitable[None]],
    on_crash: Callable[[BaseException], None] = lambda crash: None,
) -> None:
    """Run a child again after each crash of this kind; too many in a minute mean a pause, not the
    end: the rest goes on meanwhile."""
    budget = RestartBudget(max_restarts=RESTARTS, period_s=PERIOD_S)
    await supervise(
        Child(name, run, (restart_on,), budget, wait_for_refill=True, on_crash=on_crash)
    )
