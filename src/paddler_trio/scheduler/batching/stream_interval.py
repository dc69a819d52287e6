"""Decide when the tokens of short passes are handed over: several passes together, none of them
late.

Whatever passes tokens on pays for a delivery, not for the tokens in it. Where passes are short, a
delivery for each of them costs more processor time than the reader gains by it.
"""

from __future__ import annotations

import math

import attrs


@attrs.define
class StreamInterval:
    """Passes go together as long as the next one is expected within ``interval_s`` after the last
    delivery. Passes of more than half of it are delivered one by one, so nothing changes there.

    Args:
      interval_s: no token waits longer than this; 0 delivers every pass by itself.
    """

    interval_s: float
    _delivered_s: float = attrs.field(default=-math.inf, init=False)
    _passed_s: float = attrs.field(default=-math.inf, init=False)

    @property
    def due_s(self) -> float:
        """The time at which what waits is delivered, whether or not there is another pass until
        then."""
        return self._delivered_s + self.interval_s

    def passed(self, now_s: float) -> bool:
        """Note that a pass ended; return whether it is delivered now, with those before it, since
        the next one would come too late if it took as long."""
        took_s = now_s - self._passed_s
        self._passed_s = now_s
        return now_s + took_s > self.due_s

    def delivered(self, now_s: float) -> None:
        """Note that all that waited is on its way."""
        self._delivered_s = now_s
