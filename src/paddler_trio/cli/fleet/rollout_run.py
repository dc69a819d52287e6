"""The work of ``paddler-trio rollout`` and its sub-commands, once the command line is
understood.

Following rollouts over lost connections and balancers that are started again.

The balancer carries a rollout on by itself: to lose it, or to stop looking, changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerUnreachableError, BalancerVersionError
from paddler_trio.cli.fleet.fleet_client import FleetClient, RolloutsView, RolloutView
from paddler_trio.cli.fleet.rollout_display import RolloutDisplay, rollout_display, rollouts_shown
from paddler_trio.cli.fleet.rollout_progress import (
    Ended,
    Ending,
    RolloutProgress,
    exit_code,
    needs_operator,
)
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


NO_AGENT = (
    "no agent is connected: it is stored, and nobody serves it yet; "
    "start one with `paddler-trio agent`"
)
GOES_ON = "the rollout goes on without this command: `paddler-trio rollout --watch` shows it"
NEXT_STEPS: Mapping[Ending, str] = {
    Ending.ROLLED_BACK: "what was served before is served again",
    Ending.ABORTED: "`paddler-trio fleet show` shows what is served",
    Ending.PAUSED: "`paddler-trio rollout resume{name}` goes on, `rollout undo{name}` goes back",
    Ending.FAILED: "agents try again; `paddler-trio rollout undo{name}` goes back",
    Ending.SUPERSEDED: "`paddler-trio fleet history` lists who stored what",
    Ending.TIMED_OUT: "the rollout goes on: `paddler-trio rollout --watch` shows it",
}


@attrs.frozen
class Waited:
    """The end of a wait: of each deployment, and the rollouts as they were shown last."""

    ended: list[Ended]
    rollouts: list[RolloutView]
    has_agents: bool = True

    @property
    def exit_code(self) -> int:
        return exit_code(self.ended) if self.has_agents else FAILED

    def tell(self) -> None:
        """Print what went wrong, and the next step, on standard error."""
        if not self.has_agents:
            stderr().print(NO_AGENT)
        for each in self.ended:
            if each.ending is not Ending.COMPLETE:
                stderr().print(Text(printable(ending_words(each))))

    def plain(self) -> dict[str, object]:
        """Return the document for ``--json``."""
        outcome = "no agent is connected"
        if self.has_agents:
            worst = [each for each in self.ended if each.ending.exit_code == self.exit_code]
            outcome = (worst[0].ending if worst else Ending.COMPLETE).value
        return {
            "outcome": outcome,
            "deployments": [
                {
                    "deployment": each.deployment,
                    "outcome": each.ending.value,
                    "reason": each.reason or None,
                }
                for each in self.ended
            ],
        }


def wait_and_show(
    client: FleetClient, progress: RolloutProgress, *, timeout_s: float, needs_agents: bool
) -> Waited:
    """Follow on standard error until it has ended, at most for ``timeout_s``.

    Args:
      needs_agents: something is to be served at once, so without any agent there is no use.
    """
    if needs_agents and not client.management.fleet().agents:
        return Waited([], [], has_agents=False)
    try:
        with rollout_display(stderr()) as display:
            ended = wait_for_revision(client, progress, display, timeout_s=timeout_s)
    except KeyboardInterrupt:
        stderr().print(GOES_ON)
        raise
    return Waited(ended, progress.shown)


def ending_words(ended: Ended) -> str:
    """One line: how it ended, why, and what to do."""
    name = "" if ended.deployment == "default" else f" {ended.deployment}"
    words = f"{ended.deployment}: {ended.ending.value}"
    if ended.reason:
        words += f": {ended.reason}"
    step = NEXT_STEPS.get(ended.ending)
    return words if step is None else f"{words}; {step.format(name=name)}"
