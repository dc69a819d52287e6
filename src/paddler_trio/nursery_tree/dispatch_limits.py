"""The limits of how many requests may wait, and how long requests may last."""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits

STOP_CONFIRMATION_S = 5.0
"""How long a slot stays taken after its request was stopped and the agent does not confirm."""


@attrs.frozen
class DispatchLimits:
    """Times in seconds."""

    max_buffered: int = 30
    """In the queue of each deployment."""
    buffered_timeout_s: float = 10.0
    item_timeout_s: float = 30.0
    continuation: ContinuationLimits = attrs.field(factory=ContinuationLimits)
    continuation_wait_s: float = 3.0
    """How long an answer that was begun waits for an agent that can continue it to connect."""
    rollout_wait_s: float = 180.0
    """The same while a rollout is about to put its model on more agents: they drain and load it."""
    stop_confirmation_s: float = STOP_CONFIRMATION_S
