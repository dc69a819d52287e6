"""Limit how often something may happen: a burst, and a rate after it."""

from __future__ import annotations

import attrs


@attrs.define
class TokenBucket:
    """A full bucket has ``burst`` tokens; ``per_s`` come back each second.

    Args:
      now_s: the time at which it is full; all times are of one clock.
    """

    burst: float
    per_s: float
    now_s: float
    _tokens: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._tokens = self.burst

    def take(self, now_s: float) -> bool:
        """Take one token; False, and nothing taken, when there is none."""
        self._refill(now_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_s(self, now_s: float) -> float:
        """Return how long it takes until there is a token; 0 if there is one."""
        self._refill(now_s)
        return max(0.0, (1 - self._tokens) / self.per_s)

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self.burst, self._tokens + (now_s - self.now_s) * self.per_s)
        self.now_s = now_s
