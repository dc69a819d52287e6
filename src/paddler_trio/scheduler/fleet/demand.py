"""Decide how many replicas a deployment should have now.

What runs is kept: a count falls only when replicas were idle for ``idle_ttl_s`` or are more than
``replicas.most``. It rises to ``least`` at once, to one at the first waiting request, and by one
more when requests have waited for ``SCALE_UP_AFTER_S`` although all replicas serve, the newest of
them for as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from paddler_trio.scheduler.fleet.fleet_index import FleetIndex, Placed
from paddler_trio.scheduler.fleet.fleet_values import Goal
from paddler_trio.scheduler.fleet.instance_state import is_moving

SCALE_UP_AFTER_S: Final = 5.0


def counts(placed: Placed) -> bool:
    """Return whether it is a replica, or will be one. One that failed or hangs, and serves nothing,
    is not."""
    instance = placed.instance
    return instance.serving is not None or not (placed.is_stuck or instance.phase == "failed")


def wanted(goal: Goal, index: FleetIndex, placed: Sequence[Placed]) -> int:
    """Return how many replicas there should be, of a deployment that is not on all hosts.

    Args:
      placed: those that count as replicas now.
    """
    replicas, queue = goal.replicas, index.queue(goal.deployment)
    most = len(index.states) if replicas.most is None else replicas.most
    number = len(placed)
    least = max(replicas.least, 1 if queue.waiting else 0)
    if number < least or not queue.waiting or number >= most:
        return min(max(least, number), max(most, replicas.least))
    return number + _grows(goal, index, placed, queue.oldest_wait_s)


def _grows(goal: Goal, index: FleetIndex, placed: Sequence[Placed], oldest_wait_s: float) -> bool:
    newest_s = 0.0
    for p in placed:
        if is_moving(p.instance) or p.instance.assigned is None:
            return False
        if p.instance.serving is not None and p.instance.served_s is not None:
            newest_s = max(newest_s, p.instance.served_s)
    since_s = max(newest_s, index.now_s - oldest_wait_s)
    index.wake(since_s + SCALE_UP_AFTER_S)
    return index.now_s - since_s >= SCALE_UP_AFTER_S


def has_been_idle(goal: Goal, index: FleetIndex, placed: Placed) -> bool:
    """Return whether its time to live has passed without a request."""
    instance = placed.instance
    if goal.idle_ttl_s is None or instance.idle_s is None or instance.busy:
        return False
    if is_moving(instance) or index.queue(goal.deployment).waiting:
        return False
    ends_s = instance.idle_s + goal.idle_ttl_s
    index.wake(ends_s)
    return index.now_s >= ends_s
