"""Waiting for a revision that was stored, shown as it goes, and told at its end."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from rich.text import Text

from paddler_trio.cli.fleet.fleet_client import FleetClient, RolloutView
from paddler_trio.cli.fleet.rollout_display import rollout_display
from paddler_trio.cli.fleet.rollout_progress import Ended, Ending, RolloutProgress, exit_code
from paddler_trio.cli.fleet.rollout_run import wait_for_revision
from paddler_trio.cli.terminal import FAILED, printable, stderr

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
