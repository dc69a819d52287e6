"""Decide whether a pass waits a moment for the request that follows an answer.

Where clients ask again as soon as they are answered, or requests queue for a slot, the next one
comes milliseconds after an answer ended: a moment too late for the prompts of this pass. Then it
would wait for the next pass, and with it for the prompt of the request after it. Such a wait is
short beside a pass, and it becomes rare where nothing comes.

Source: anticipatory scheduling of disks, Iyer and Druschel (SOSP '01).
"""

from __future__ import annotations

import attrs

_FRACTION = 1 / 4
"""The part of what a pass takes without prompts that the wait may take."""
_LONGEST_S = 0.01
_SHORTEST_S = 0.002
"""Nothing is answered and asked again in less."""
_RAREST = 5
"""One chance of 2 to the power of so many is tried at least."""


@attrs.define
class Anticipation:
    """Learns from what came of the waits before."""

    _misses: int = attrs.field(default=0, init=False)
    """Waits in a row in which nothing came, up to ``_RAREST``."""
    _skipped: int = attrs.field(default=0, init=False)

    def wait_s(self, pass_ms: float) -> float:
        """Return the seconds to wait now that an answer ended, 0 for not at all; generating
        sequences alone take ``pass_ms`` for a pass."""
        longest_s = min(_LONGEST_S, _FRACTION * pass_ms / 1e3)
        if longest_s < _SHORTEST_S:
            return 0.0
        self._skipped += 1
        if self._skipped < 2**self._misses:
            return 0.0
        self._skipped = 0
        return longest_s

    def waited(self, *, came: bool) -> None:
        """Note that something came meanwhile, or nothing."""
        self._misses = 0 if came else min(_RAREST, self._misses + 1)
