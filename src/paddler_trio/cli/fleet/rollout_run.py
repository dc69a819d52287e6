"""The work of ``paddler-trio rollout`` and its sub-commands, once the command line is
understood."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from paddler_trio.cli.exit_codes import DONE, FAILED, ROLLED_BACK, TIMED_OUT
from paddler_trio.cli.fleet.fleet_client import FleetClient
from paddler_trio.cli.fleet.fleet_views import RolloutsView, RolloutView
from paddler_trio.cli.fleet.rollout_display import RolloutDisplay, rollout_display, rollouts_shown
from paddler_trio.cli.fleet.rollout_follow import followed
from paddler_trio.cli.fleet.rollout_progress import needs_operator
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import print_json, printable, stderr, stdout

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
