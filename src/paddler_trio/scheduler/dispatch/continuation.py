"""Decide whether a request that lost its agent may be placed again.

What must not happen is a request that kills one engine, or one agent, after another; and a request
that only ran beside it must not pay for that. So every loss carries how many may be its cause. A
request that was ever among them is worked on apart from all others from then on, and the next death
is its own or is not. Everybody else goes on as if nothing had happened, a bounded number of times.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class ContinuationLimits:
    """``max_continuations`` counts placements after the first; ``max_suspicions`` deaths."""

    max_continuations: int = 2
    max_suspicions: int = 2


@attrs.frozen
class Loss:
    """The history of a request that loses its agent, this loss included.

    Args:
      has_output: the client was sent something, or tokens were produced.
      is_continuable: every token produced is known, so that another agent can go on after them.
      continuations: how often it was placed again before.
      suspicions: deaths of engines, agents and servers that it may be the cause of.
      suspects: how many requests may be the cause of this one, it among them; 0 if it is not.
    """

    has_output: bool
    is_continuable: bool
    continuations: int
    suspicions: int
    suspects: int


def refusal(loss: Loss, limits: ContinuationLimits) -> str | None:
    """Return why the request may not be placed again; None if it may."""
    if loss.has_output and not loss.is_continuable:
        return "Agent controller connection closed"
    if loss.suspects == 1 and loss.suspicions >= limits.max_suspicions:
        return (
            f"{loss.suspicions} engines, agents or servers died while they worked on this request, "
            "the last one on nothing else: it is not tried again"
        )
    if loss.continuations >= limits.max_continuations:
        return f"Agent controller connection closed, after {loss.continuations} continuations"
    return None
