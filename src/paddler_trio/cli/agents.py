"""``paddler-trio agents``: who is connected, what each agent serves and what keeps it from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.issue_words import issues_words
from paddler_trio.cli.management_client import AgentView, FleetView, ManagementClient
from paddler_trio.cli.options import JsonOption, ManagementAddrOption
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stdout
from paddler_trio.config import DEFAULT_MANAGEMENT_ADDR

PHASE_COLOURS = {"serving": "green", "failed": "red", "waiting": "", "leaving": "yellow"}


def agents(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show every change as it happens, until Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
) -> None:
    """List the connected agents: slots, phase, model, and issues in plain words."""
    with one_line_errors(), ManagementClient.open(management_addr) as client:
        if not watch:
            _show(client.fleet(), as_json=as_json)
        elif as_json or not stdout().is_terminal:
            for view in _changes(client.watch_fleet()):
                _show(view, as_json=as_json)
        else:
            with Live(console=stdout(), auto_refresh=False) as live:
                for view in _changes(client.watch_fleet()):
                    live.update(agents_table(view.agents), refresh=True)


def _changes(views: Iterable[FleetView]) -> Iterable[FleetView]:
    """Without the repetitions that only say that the balancer is alive."""
    before: FleetView | None = None
    for view in views:
        if view is not before:
            yield view
        before = view


def _show(view: FleetView, *, as_json: bool) -> None:
    if as_json:
        print_json(view.raw)
    elif not view.agents:
        stdout().print("no agent is connected; start one with `paddler-trio agent`")
    else:
        stdout().print(agents_table(view.agents))


def agents_table(shown: Iterable[AgentView]) -> Table:
    """One row an agent, by name."""
    table = Table("name", "id", "protocol", "slots", "phase", "model", "issues", box=None)
    for agent in sorted(shown, key=lambda agent: (agent.label, agent.id)):
        table.add_row(
            _text(agent.name or "-"),
            _text(agent.id),
            _text(agent.protocol),
            f"{agent.slots_processing}/{agent.slots_total}",
            phase_text(agent),
            _text(agent.model_path or "-"),
            _text(issues_words(agent.issues) or agent.detail or "-"),
        )
    return table


def phase_text(agent: AgentView) -> Text:
    """What it is doing; of a Paddler agent only its own state's name is known."""
    phase = agent.phase or agent.state_application_status
    if agent.progress is not None:
        phase = f"{phase} {agent.progress:.0%}"
    elif agent.download_total:
        phase = f"downloading {agent.download_current / agent.download_total:.0%}"
    return Text(printable(phase), style=PHASE_COLOURS.get(agent.phase or "", "cyan"))


def _text(words: str) -> Text:
    return Text(printable(words))
