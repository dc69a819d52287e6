"""Decide how many slots of an agent a balancer keeps that hands over to another one.

What it does not keep, the agent offers to the other. Nothing can be taken back, so the number only
falls: to what runs, and what may have to run there since it waits.
"""

from __future__ import annotations


def slots_kept(before: int, *, held: int, waiting: int) -> int:
    """Return the slots to keep from now on.

    Args:
      before: what was kept until now.
      held: how many are in use; at most ``before``.
      waiting: how many requests wait for a slot of this agent or of another one like it.
    """
    return min(before, held + waiting)
