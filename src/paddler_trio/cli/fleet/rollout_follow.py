"""Following rollouts over lost connections and balancers that are started again.

The balancer carries a rollout on by itself: to lose it, or to stop looking, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from paddler_trio.cli.balancer_http import BalancerUnreachableError, BalancerVersionError
from paddler_trio.cli.fleet.fleet_client import FleetClient
from paddler_trio.cli.fleet.fleet_views import RolloutsView
from paddler_trio.cli.fleet.rollout_display import RolloutDisplay
from paddler_trio.cli.fleet.rollout_progress import Ended, RolloutProgress
from paddler_trio.cli.management_client import SILENCE_S

LOST_S: Final = 60.0
"""How long a balancer may be away: it is started again in seconds."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 3.0
LEAST_S: Final = 0.1
"""Of a read, however little time is left."""


def wait_for_revision(
    client: FleetClient,
    progress: RolloutProgress,
    display: RolloutDisplay,
    *,
    timeout_s: float | None,
) -> list[Ended]:
    """Follow until every deployment has an ending, at most for ``timeout_s``."""
    give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
    ended = progress.ended  # nothing to wait for
    if ended is not None:
        return ended
    for view in followed(client, give_up_s=give_up_s, tell=display.tell):
        now_s = time.monotonic()
        progress.observe(view, now_s)
        display.show(progress.shown)
        if progress.asks_for_state:
            try:
                progress.look_at(client.state(), now_s)
            except BalancerVersionError:
                raise
            except BalancerUnreachableError:
                continue  # the stream has lost it too, and comes back with it
        ended = progress.ended
        if ended is not None:
            return ended
    return progress.give_up()


def followed(
    client: FleetClient, *, give_up_s: float | None, tell: Callable[[str], None]
) -> Iterator[RolloutsView]:
    """Yield what the balancer shows of rollouts, also every few seconds without a change, until the
    monotonic time ``give_up_s``.

    Errors:
      BalancerUnreachableError: it was away for ``LOST_S``, or speaks another version.
      BalancerRefusedError: it knows no rollouts, or wants another key.
    """
    lost_s: float | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        try:
            for view in client.watch_rollouts(silence_s=min(SILENCE_S, _left_s(give_up_s))):
                if lost_s is not None:
                    lost_s = None
                    tell("the balancer is back")
                yield view
                if _is_over(give_up_s):
                    return
        except BalancerVersionError:
            raise
        except BalancerUnreachableError as error:
            if _is_over(give_up_s):
                return
            now_s = time.monotonic()
            if now_s - began_s > LONGEST_PAUSE_S:  # else it comes and goes: ask it less often
                pause_s = FIRST_PAUSE_S
            if lost_s is None:
                lost_s = now_s
                tell(f"{error}; the rollout goes on, and this command looks again")
            elif now_s - lost_s >= LOST_S:
                raise BalancerUnreachableError(
                    f"{error}; it was away for {LOST_S:g} s: look later with `paddler-trio rollout`"
                ) from error
        time.sleep(min(pause_s, _left_s(give_up_s)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _left_s(give_up_s: float | None) -> float:
    if give_up_s is None:
        return SILENCE_S
    return max(give_up_s - time.monotonic(), LEAST_S)


def _is_over(give_up_s: float | None) -> bool:
    return give_up_s is not None and time.monotonic() >= give_up_s
