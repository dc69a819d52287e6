"""May a request that lost its agent be placed again? Bounded, so that one cannot bring down many.

The first loss of a request is forgiven freely: when an agent with eleven streams dies, all eleven
must go on elsewhere. What must not happen is a request that kills one engine after another. So a
request that was in flight on two engines that died is failed, and going on a second time is
rationed by a budget shared by all (a share of the active requests, and always a few).
"""

from __future__ import annotations

import attrs


@attrs.frozen
class ContinuationLimits:
    """``max_continuations`` counts placements after the first; ``budget_share`` is 0..1."""

    max_continuations: int = 2
    max_engines_lost: int = 2
    budget_share: float = 0.2
    budget_minimum: int = 3


@attrs.frozen
class Loss:
    """What a request has been through when it loses its agent, this loss included.

    Args:
      has_output: the client was sent something, or tokens were produced.
      is_continuable: every token produced is known, so that another agent can go on after them.
      continuations: how often it was placed again before.
      engines_lost: engine processes that died under it.
    """

    has_output: bool
    is_continuable: bool
    continuations: int
    engines_lost: int


def refusal(
    loss: Loss, limits: ContinuationLimits, *, continuing_again: int, active: int
) -> str | None:
    """Why it may not be placed again; None if it may.

    Args:
      continuing_again: active requests that go on for the second time or more.
      active: all requests that wait or run.
    """
    if loss.has_output and not loss.is_continuable:
        return "Agent controller connection closed"
    if loss.engines_lost >= limits.max_engines_lost:
        return f"{loss.engines_lost} engines died while they worked on this request"
    if loss.continuations >= limits.max_continuations:
        return f"Agent controller connection closed, after {loss.continuations} continuations"
    budget = max(limits.budget_minimum, int(active * limits.budget_share))
    if loss.continuations >= 1 and continuing_again >= budget:
        return (
            f"Agent controller connection closed, and {continuing_again} requests, as many as may, "
            "are being continued again already"
        )
    return None
