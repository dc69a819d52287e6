"""``paddler-trio agents unload``, ``load`` and ``restart``: an agent's model and its engine."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Final, TypeAlias

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import AgentView, ManagementClient
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stderr, stdout

NAME_HELP: Final = "Name of an agent, for all that it serves; or the id of one of its links."
ENDS: Final = frozenset({"serving", "failed", "unloaded", "waiting"})
"""The phases in which nothing is under way."""

Name: TypeAlias = Annotated[
    str, typer.Argument(help=NAME_HELP, autocompletion=completion_values.agents)
]
Wait: TypeAlias = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or has failed.")
]


@attrs.frozen(kw_only=True)
class Outcome:
    """The fate of an order on one link."""

    id: str
    deployment: str = ""
    phase: str | None = None
    problem: str | None = None


@attrs.frozen(kw_only=True)
class OutcomesView:
    """Outcomes on all links that were meant."""

    agents: list[Outcome]


@with_flags
def unload(
    *, name: Name, wait: Wait = True, as_json: JsonOption = False, management: ManagementFlags
) -> None:
    """Free the memory of an agent's model; the agent stays, and loads nothing until `load`.

    Running answers end first. What has not ended at the agent's drain timeout goes on elsewhere.
    """
    _order(management, name, "unload", frozenset({"unloaded"}), wait=wait, as_json=as_json)


@with_flags
def load(
    *, name: Name, wait: Wait = True, as_json: JsonOption = False, management: ManagementFlags
) -> None:
    """Let an agent load again what is desired."""
    _order(management, name, "load", ENDS - {"unloaded"}, wait=wait, as_json=as_json)


@with_flags
def restart(
    *, name: Name, wait: Wait = True, as_json: JsonOption = False, management: ManagementFlags
) -> None:
    """End the engine of an agent and start it anew; what it answers goes on elsewhere.

    Where no other agent serves the same model it goes on when the engine is back.
    """
    _order(management, name, "restart_engine", ENDS, wait=wait, as_json=as_json)


def _order(
    management: ManagementFlags,
    name: str,
    order: str,
    until: Set[str],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    with one_line_errors(), ManagementClient.open(management) as client:
        raw = client.ask_agent("POST", name, order, answer_s=20.0)
        outcomes = client.structured(raw, OutcomesView).agents
        if as_json and not wait:
            print_json(raw)
        problems = [each for each in outcomes if each.problem]
        for each in problems:
            words = f"{each.deployment} on {each.id}: {each.problem}"
            stderr().print(printable(words), style="red", soft_wrap=True)
        done = [each for each in outcomes if not each.problem]
        if wait:
            views = _wait(client, {each.id for each in done}, until)
            _show(views, as_json=as_json)
        elif not as_json:
            for each in done:
                words = (
                    f"{each.deployment} on {name}: ordered, {each.phase or 'of an older version'}"
                )
                stdout().print(printable(words), soft_wrap=True)
        if problems:
            raise typer.Exit(1)


def _wait(client: ManagementClient, ids: Set[str], until: Set[str]) -> list[AgentView]:
    """Return the agents when nothing is under way on any of them."""
    for view in client.watch_fleet():
        found = [agent for agent in view.agents if agent.id in ids]
        if len(found) < len(ids):
            raise BalancerRefusedError(404, "the agent was lost meanwhile: see `agents`")
        if all(agent.phase in until for agent in found):
            return found
    raise AssertionError("the stream of a balancer ends with an error")


def _show(views: list[AgentView], *, as_json: bool) -> None:
    if as_json:
        shown = [
            {"id": each.id, "deployment": each.deployment, "phase": each.phase} for each in views
        ]
        print_json({"agents": shown})
        return
    for each in views:
        words = f"{each.label}, {each.deployment}: {each.phase}"
        words += f": {each.detail}" if each.detail else ""
        stdout().print(printable(words), soft_wrap=True)
