"""Read what one instance is doing: whether it is placed, moves, serves or has failed."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from paddler_trio.scheduler.fleet.fleet_values import DEFAULT, Instance

OUT_OF_SERVICE: Final = frozenset({"waiting", "resolving", "draining", "leaving"})
"""Phases in which an agent takes no request, whatever it still serves."""
BESIDE: Final = frozenset({"loading", "probing"})
"""These phases mean, with something served, that the new engine loads beside the old one."""


def is_placed(instance: Instance) -> bool:
    """Return whether the deployment is on this host: it serves or is told to, or has a link of its
    own."""
    return (
        instance.deployment != DEFAULT
        or instance.assigned is not None
        or instance.serving is not None
        or instance.is_unloading
    )


def is_moving(instance: Instance) -> bool:
    """Return whether a step on it is under way; one that failed is over, though the agent may try
    again."""
    if instance.is_unloading or instance.phase == "leaving":
        return True
    return (
        instance.assigned is not None
        and instance.assigned != instance.serving
        and instance.phase != "failed"
    )


def loads_beside(instance: Instance) -> bool:
    """Return whether it would go on serving while it loads something else."""
    return instance.is_ours and instance.can_load_beside is True and instance.serving is not None


def is_available(instance: Instance, admissible: Container[str]) -> bool:
    """Return whether it takes requests, and will until the step that is under way ends.

    An agent that downloads still serves, but soon drains: it counts as gone already.
    """
    if instance.serving is None or instance.serving not in admissible or instance.is_unloading:
        return False
    if instance.assigned is None or instance.assigned == instance.serving:
        return instance.phase not in OUT_OF_SERVICE or not instance.is_ours
    if instance.phase == "failed":
        return True
    if instance.phase in BESIDE and instance.is_ours:
        return True
    return loads_beside(instance) and instance.phase not in OUT_OF_SERVICE


def failure(instance: Instance, digest: str, *, since_s: float | None) -> str | None:
    """Return why ``digest`` failed there, if it did; what was assigned before ``since_s`` is
    forgiven."""
    if instance.assigned != digest or (since_s is not None and instance.assigned_s < since_s):
        return None
    if instance.phase == "failed":
        return instance.problem or "the model could not be loaded"
    if instance.crashes == 1:
        return "the engine crashed"
    if instance.crashes > 1:
        return f"the engine crashed {instance.crashes} times"
    return None
