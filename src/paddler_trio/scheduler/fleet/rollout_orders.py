"""Apply an operator's orders to a running rollout: pause, resume, abort.

Each returns the rollout to put into the next view, or None where the order does not apply.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.scheduler.fleet.fleet_values import Rollout, RolloutPhase

GOING_ON: Final = frozenset(
    {RolloutPhase.PREFETCHING, RolloutPhase.CANARY, RolloutPhase.ROLLING, RolloutPhase.PAUSED}
)
"""The phases on the way to the target, even if paused."""
GOING_BACK: Final = frozenset(
    {RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK, RolloutPhase.ABORTED}
)
"""The phases on the way back to the good state, or there."""


def paused(
    rollout: Rollout, *, now_s: float, reason: str = "paused by the operator"
) -> Rollout | None:
    """Pause a rollout: hosts that have begun finish; no other one begins. A first state cannot be
    paused."""
    if rollout.phase not in GOING_ON - {RolloutPhase.PAUSED} or rollout.good is None:
        return None
    return attrs.evolve(rollout, phase=RolloutPhase.PAUSED, reason=reason, advanced_s=now_s)


def resumed(rollout: Rollout, *, now_s: float) -> Rollout | None:
    """Resume a rollout: it goes on where it was; hosts that had failed get the target once more."""
    if rollout.phase is not RolloutPhase.PAUSED:
        return None
    phase = RolloutPhase.ROLLING if rollout.is_proven else RolloutPhase.PREFETCHING
    return attrs.evolve(rollout, phase=phase, reason=None, advanced_s=now_s, resumed_s=now_s)


def aborted(
    rollout: Rollout, *, now_s: float, reason: str = "aborted by the operator"
) -> Rollout | None:
    """Abort a rollout: every host goes back to the good state."""
    if rollout.phase not in GOING_ON or rollout.good is None:
        return None
    return attrs.evolve(rollout, phase=RolloutPhase.ABORTED, reason=reason, advanced_s=now_s)
