"""Decide when an agent that has no link to its balancer dials again.

The pause doubles with each attempt that led to no link, up to ``LONGEST_PAUSE_S``; between a
quarter of it and all of it is waited. So a balancer that is back is dialled by every agent within
``LONGEST_PAUSE_S``, and by agents that lost it together not in one moment: after two seconds a
third of them at most dial in the same half second, after five a fifth.

Only a link that lasted makes the pause short again: a balancer that accepts connections and does
not answer them is dialled ever more rarely, too.
"""

from __future__ import annotations

import math

import attrs

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
"""A fleet is back within ten seconds of its balancer: two are left to register."""
LEAST_SHARE = 0.25
"""The part of a pause which is waited at least."""
LASTING_S = 10.0
"""A link that was up for so long did not end because of what it was dialled with."""


@attrs.define
class Redial:
    """The pauses of one link; pure, the caller knows clock and chance."""

    _failures: int = attrs.field(default=0, init=False)

    def pause_s(self, linked_s: float, chance: float) -> float:
        """Return how long to wait after an attempt that has ended.

        Args:
          linked_s: for how long it was registered with the balancer; 0 if it never was.
          chance: uniform in 0..1.
        """
        if linked_s >= LASTING_S:
            self._failures = 0
        doublings = math.log2(LONGEST_PAUSE_S / FIRST_PAUSE_S)
        bound_s = FIRST_PAUSE_S * 2 ** min(self._failures, doublings)
        self._failures += 1
        return bound_s * (LEAST_SHARE + (1 - LEAST_SHARE) * chance)

    def begin_anew(self) -> None:
        """Note that the next attempt is the first one: the balancer itself asked for it."""
        self._failures = 0
