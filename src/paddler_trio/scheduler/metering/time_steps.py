"""Choose the steps of time in which history is kept, and the one that shows a range best."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.scheduler.limits.periods import DAY_S


@attrs.frozen
class Step:
    """A row for each ``step_s``, kept for ``kept_s``."""

    step_s: int
    kept_s: int


STEPS: Final = (
    Step(10, 6 * 3600),
    Step(60, 2 * DAY_S),
    Step(600, 30 * DAY_S),
    Step(3600, 400 * DAY_S),
    Step(DAY_S, 400 * DAY_S),
)
"""The finest first; each is a multiple of the one before."""
MAX_POINTS: Final = 400
"""Of one line that is shown."""
ENOUGH_POINTS: Final = 90
USAGE_KEPT_DAYS: Final = 400


@attrs.frozen
class Plan:
    """The rows that are read, and how many of them make one that is shown.

    Args:
      step_s: of the rows that are read.
      shown_s: a multiple of it.
      begin, end: of the range, seconds of Unix; multiples of ``shown_s``.
    """

    step_s: int
    shown_s: int
    begin: int
    end: int


def plan_for(begin: int, end: int, now: int) -> Plan:
    """Return how a range is shown best.

    The coarsest step that gives points enough is read, and the finest that is kept so long where
    none does. ``begin`` is before ``end``.
    """
    kept = [each for each in STEPS if now - begin <= each.kept_s] or [STEPS[-1]]
    enough = [each for each in kept if (end - begin) // each.step_s >= ENOUGH_POINTS]
    step_s = (enough[-1] if enough else kept[0]).step_s
    shown_s = step_s * max(1, -(-(end - begin) // (step_s * MAX_POINTS)))
    return Plan(step_s, shown_s, begin // shown_s * shown_s, -(-end // shown_s) * shown_s)
