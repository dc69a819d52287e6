"""Decide how often a child may crash, without a clock of its own."""

from __future__ import annotations

from collections import deque

import attrs

_MAX_DOUBLINGS = 64


@attrs.define
class RestartBudget:
    """A budget of at most ``max_restarts`` within ``period_s``; restarts in between back off
    exponentially.

    (OTP calls the two intensity and period.) A child that stayed up for ``period_s`` starts
    again with the shortest pause.
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
