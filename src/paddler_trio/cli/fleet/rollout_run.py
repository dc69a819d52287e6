"""The work of ``paddler-trio rollout`` and its sub-commands, once the command line is
understood.

Following rollouts over lost connections and balancers that are started again.

The balancer carries a rollout on by itself: to lose it, or to stop looking, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerUnreachableError, BalancerVersionError
from paddler_trio.cli.fleet.fleet_client import FleetClient, RolloutsView, RolloutView
from paddler_trio.cli.fleet.rollout_display import RolloutDisplay, rollout_display, rollouts_shown
from paddler_trio.cli.fleet.rollout_progress import Ended, RolloutProgress, needs_operator
from paddler_trio.cli.management_client import SILENCE_S, ManagementClient
from paddler_trio.cli.terminal import (
    DONE,
    FAILED,
    ROLLED_BACK,
    TIMED_OUT,
    print_json,
    printable,
    stderr,
    stdout,
)

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


NOTHING: Final = "no rollout is under way; `paddler-trio fleet show` shows what is served"
AFTERWARDS: Final = {
    "pause": "paused; `paddler-trio rollout resume{name}` goes on, `rollout undo{name}` goes back",
    "resume": "goes on; `paddler-trio rollout --watch` shows it",
    "abort": "given up; agents go back: `paddler-trio rollout --watch` shows it",
    "undo": "goes back; `paddler-trio rollout --watch` shows it",
}


def show_rollouts(client: ManagementClient, *, as_json: bool) -> int:
    """Print the rollouts as they are now; returns the exit code."""
    view = FleetClient(client).rollouts()
    if as_json:
        print_json(view.raw)
    elif view.rollouts:
        stdout().print(rollouts_shown(view.rollouts))
    else:
        stdout().print(NOTHING)
    return DONE


def watch_rollouts(client: ManagementClient, *, timeout_s: float | None, as_json: bool) -> int:
    """Print every change until no rollout is under way; returns the exit code."""
    fleet = FleetClient(client)
    if as_json:
        said: list[RolloutsView] = []

        def show(view: RolloutsView) -> None:
            if not said or said[-1] is not view:
                said[:] = [view]
                print_json(view.raw)

        return _watch(fleet, show, lambda words: stderr().print(words), timeout_s=timeout_s)
    with rollout_display(stdout()) as display:
        return _watch(fleet, _shown_on(display), display.tell, timeout_s=timeout_s)


def command_rollout(
    client: ManagementClient, deployment: str, command: str, *, as_json: bool
) -> None:
    """Have the balancer do something with a rollout, and print what comes of it."""
    raw = FleetClient(client).command(deployment, command)
    if as_json:
        print_json(raw)
        return
    name = "" if deployment == "default" else f" {deployment}"
    words = f"{deployment}: {AFTERWARDS[command].format(name=name)}"
    stdout().print(Text(printable(words)), soft_wrap=True)


def _shown_on(display: RolloutDisplay) -> Callable[[RolloutsView], None]:
    return lambda view: display.show(view.rollouts)


def _watch(
    client: FleetClient,
    show: Callable[[RolloutsView], None],
    tell: Callable[[str], None],
    *,
    timeout_s: float | None,
) -> int:
    give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
    client.rollouts()  # one that was never there is not waited for
    for view in followed(client, give_up_s=give_up_s, tell=tell):
        show(view)
        if not any(each.is_live and not needs_operator(each) for each in view.rollouts):
            if not view.rollouts:
                tell(NOTHING)
            return _code(view.rollouts)
    tell(f"still under way after {timeout_s:g} s; the rollout goes on")
    return TIMED_OUT


def _code(rollouts: Sequence[RolloutView]) -> int:
    phases = {rollout.phase for rollout in rollouts}
    if "rolled_back" in phases:
        return ROLLED_BACK
    return FAILED if phases & {"aborted", "paused"} else DONE
