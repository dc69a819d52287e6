"""``paddler-trio agents``: who is connected, what each agent serves and what keeps it from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated
from urllib.parse import quote

import attrs
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags, WideOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.fleet.issue_words import issues_words
from paddler_trio.cli.live import engine_orders
from paddler_trio.cli.live.agent_machine import (
    MachineView,
    machine_columns,
    machine_lines,
    machines_of,
)
from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.live.request_views import StateView
from paddler_trio.cli.management_client import AgentView, FleetView, ManagementClient
from paddler_trio.cli.model.memory_words import chosen_words, memory_words, slot_context
from paddler_trio.cli.terminal import (
    one_line_errors,
    print_json,
    print_lines,
    printable,
    shown_width,
    stdout,
)

KNOWN_PATH = "/api/v2/known_agents"
RATED = ("drawn_tokens", "embedding_tokens")
"""Figures of an engine that only grow, and of which the speed is shown."""
STATE_STYLES = {"ok": "green", "info": "cyan", "quiet": "yellow", "warn": "yellow", "bad": "red"}


agents = typer.Typer(invoke_without_command=True)
"""A command that also has sub-commands: without one, it lists who is connected."""


@agents.callback()
@with_flags
def show(
    *,
    context: typer.Context,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Show every change as it happens, until Ctrl-C; also what each engine does: "
            "tokens sampled and tokens embedded a second, how much of the prompts came from the "
            "cache, and cells in use.",
        ),
    ] = False,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the connected agents: slots, phase, model, and issues in plain words."""
    if context.invoked_subcommand is not None:
        return
    with one_line_errors(), ManagementClient.open(management) as client:
        if not watch:
            machines = machines_of(client) if wide and not as_json else {}
            _show(client.fleet(), as_json=as_json, wide=wide, machines=machines)
            if not as_json:
                _show_gone(client)
        elif as_json or not stdout().is_terminal:
            for view in _changes(client.watch_fleet()):
                _show(view, as_json=as_json, wide=wide)
        else:
            rates = EngineRates()
            with Live(console=stdout(), auto_refresh=False) as live:
                for view in _changes(client.watch_fleet()):
                    rates.look(view.agents, time.monotonic())
                    width = None if wide else live.console.width
                    lines = agents_table(view.agents, rates, width=width)
                    live.update(Group(*lines), refresh=True)


@agents.command("show")
@with_flags
def show_one(
    *,
    name: Annotated[
        str, typer.Argument(help="Name or id.", autocompletion=completion_values.agents)
    ],
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Show the machine of an agent: CPU, memory, GPUs, versions, and how busy and hot they are."""
    with one_line_errors(), ManagementClient.open(management) as client:
        raw = client.ask_agent("GET", name, "machine")
        if as_json:
            print_json(raw)
            return
        rows = list(machine_lines(client.structured(raw, MachineView)))
        width = max(len(title) for title, _ in rows)
        for title, value in rows:
            stdout().print(printable(f"{title:{width}}  {value}"), soft_wrap=True)


@agents.command()
@with_flags
def credentials(
    *,
    wide: WideOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the agents that joined with a token, and whose credential may have been copied."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access.join_token_run import list_credentials

        list_credentials(client, wide=wide, as_json=as_json)


@agents.command()
@with_flags
def revoke(
    *,
    name: Annotated[
        str,
        typer.Argument(
            help="As `agents credentials` shows it.", autocompletion=completion_values.credentials
        ),
    ],
    management: ManagementFlags,
) -> None:
    """Cut an agent off and make its credential worthless; what it computes goes on elsewhere."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access.join_token_run import revoke_credential

        revoke_credential(client, name)


@agents.command()
@with_flags
def forget(
    *,
    name: Annotated[str, typer.Argument(help="As `agents` shows one that is offline or stopped.")],
    management: ManagementFlags,
) -> None:
    """Expect an agent no more that is gone for good: it is listed as offline until then."""
    with one_line_errors(), ManagementClient.open(management) as client:
        client.ask("DELETE", f"{KNOWN_PATH}/{quote(name, safe='')}")
        stdout().print(printable(f"{name} is forgotten"))


agents.command("unload")(engine_orders.unload)
agents.command("load")(engine_orders.load)
agents.command("restart")(engine_orders.restart)


@attrs.frozen(kw_only=True)
class GoneAgent:
    """One agent that was here; ``since`` is RFC 3339."""

    name: str
    since: str = ""
    state: StateView = attrs.field(factory=StateView)


@attrs.frozen(kw_only=True)
class GoneView:
    agents: list[GoneAgent]


def _changes(views: Iterable[FleetView]) -> Iterable[FleetView]:
    """Without the repetitions that only say that the balancer is alive."""
    before: FleetView | None = None
    for view in views:
        if view is not before:
            yield view
        before = view


def _show(
    view: FleetView, *, as_json: bool, wide: bool, machines: dict[str, MachineView] | None = None
) -> None:
    if as_json:
        print_json(view.raw)
    elif not view.agents:
        stdout().print("no agent is connected; start one with `paddler-trio agent`")
    else:
        width = shown_width(wide=wide)
        print_lines(agents_table(view.agents, width=width, machines=machines or {}))


def _show_gone(client: ManagementClient) -> None:
    """Print the agents that were here."""
    for agent in client.structured(client.ask("GET", KNOWN_PATH), GoneView).agents:
        words = f"{agent.name} is {agent.state.word} since {agent.since}: {agent.state.sentence}"
        style = "red" if agent.state.severity == "bad" else "dim"
        stdout().print(Text(printable(words), style=style), soft_wrap=True)


@attrs.define
class EngineRates:
    """The speed of each agent's engine, from what it had counted at two looks."""

    _seen: dict[str, tuple[dict[str, float], float]] = attrs.field(factory=dict, init=False)
    _rates: dict[str, dict[str, float]] = attrs.field(factory=dict, init=False)

    def look(self, shown: Iterable[AgentView], now_s: float) -> None:
        """Take what the agents say now; a look less than half a second after the last is too
        early."""
        for agent in shown:
            if agent.engine is None:
                continue
            counted = {name: agent.engine.get(name, 0.0) for name in RATED}
            before, before_s = self._seen.get(agent.id, (counted, now_s))
            if any(counted[name] < before[name] for name in RATED):  # the engine was started anew
                self._rates.pop(agent.id, None)
            elif now_s - before_s >= 0.5:
                elapsed_s = now_s - before_s
                self._rates[agent.id] = {
                    name: (counted[name] - before[name]) / elapsed_s for name in RATED
                }
            elif agent.id in self._seen:
                continue
            self._seen[agent.id] = (counted, now_s)

    def of(self, agent: AgentView, name: str) -> float | None:
        """Return how fast a figure of ``RATED`` grows; None if that is not known yet."""
        return self._rates.get(agent.id, {}).get(name)


def agents_table(
    shown: Iterable[AgentView],
    rates: EngineRates | None = None,
    *,
    width: int | None = None,
    machines: dict[str, MachineView] | None = None,
) -> list[Text]:
    """Return lines, one an agent, by name; with `rates` also what its engine does, with `machines`
    what it runs on."""
    by_name = sorted(shown, key=lambda agent: (agent.label, agent.id))
    columns = _columns(by_name, rates)
    return table([*columns, *(machine_columns(machines) if machines else ())], by_name, width)


def _columns(shown: list[AgentView], rates: EngineRates | None) -> list[Column[AgentView]]:
    columns = [Column[AgentView]("name", 16, lambda agent: agent.label)]
    columns.append(Column("id", 0, lambda agent: agent.id, importance=6))
    if any(agent.address for agent in shown):
        columns.append(Column("address", 0, lambda agent: agent.address or "-", importance=2))
    if any(agent.deployment != "default" for agent in shown):
        columns.append(Column("deployment", 0, lambda agent: agent.deployment, importance=1))
    columns += [
        Column("protocol", 0, lambda agent: agent.protocol, importance=5),
        Column("slots", 0, lambda agent: f"{agent.slots_processing}/{agent.slots_total}"),
        Column("phase", 0, lambda agent: phase_text(agent).plain, style=_phase_style),
    ]
    if rates is not None:
        columns += _engine_columns(rates)
    columns.append(Column("model", 20, _model, importance=1, keeps_end=True))
    if any(slot_context(agent) for agent in shown):
        columns.append(Column("context", 0, lambda agent: slot_context(agent) or "-", importance=3))
    if any(chosen_words(agent) for agent in shown):
        columns.append(Column("chosen", 0, lambda agent: chosen_words(agent) or "-", importance=4))
    return [
        *columns,
        Column("memory", 0, lambda agent: memory_words(agent) or "-", importance=3),
        Column("issues", 24, lambda agent: issues_words(agent.issues) or agent.detail or "-"),
    ]


def _phase_style(agent: AgentView) -> str:
    return str(phase_text(agent).style)


def _model(agent: AgentView) -> str:
    return agent.model_path or ", ".join(agent.models) or "-"


def _engine_columns(rates: EngineRates) -> list[Column[AgentView]]:
    """Return tokens sampled and tokens embedded a second, the share of prompts that came from the
    cache, and cells in use; an engine that has nothing of a kind shows a dash."""

    def sampled(agent: AgentView, engine: dict[str, float]) -> str:
        rate = rates.of(agent, RATED[0])
        return "-" if rate is None or not engine["cells_total"] else f"{rate:.0f}"

    def embedded(agent: AgentView, engine: dict[str, float]) -> str:
        rate = rates.of(agent, RATED[1])
        return "-" if rate is None or not engine.get(RATED[1]) else f"{rate:.0f}"

    def cached(agent: AgentView, engine: dict[str, float]) -> str:
        read = engine["cached_tokens"] + engine["prompt_tokens"]
        return f"{engine['cached_tokens'] / read:.0%}" if read else "-"

    def cells(agent: AgentView, engine: dict[str, float]) -> str:
        total = engine["cells_total"]
        return f"{engine['cells_used']:.0f}/{total:.0f}" if total else "-"

    def column(
        title: str, figure: Callable[[AgentView, dict[str, float]], str], importance: int
    ) -> Column[AgentView]:
        def text(agent: AgentView) -> str:
            return "-" if agent.engine is None else figure(agent, agent.engine)

        return Column(title, 0, text, importance=importance)

    return [
        column("tokens/s", sampled, 1),
        column("embedded/s", embedded, 3),
        column("cached", cached, 3),
        column("cells", cells, 2),
    ]


def phase_text(agent: AgentView) -> Text:
    """Return what an agent is doing, in the balancer's word; of one that fetches, also how fast."""
    words = agent.state.get("word", "?")
    if agent.phase == "downloading":
        words += _speed(agent.download or {})
    return Text(printable(words), style=STATE_STYLES.get(agent.state.get("severity", ""), ""))


def _speed(download: Mapping[str, object]) -> str:
    """Return how fast, how long still, and which file of several; empty while nothing is known."""
    parts = []
    speed, left_s, count = (download.get(k) for k in ("bytes_per_s", "remaining_s", "file_count"))
    if isinstance(speed, int) and speed > 0:
        parts.append(f"{speed / 1e6:.1f} MB/s")
        if isinstance(left_s, int):
            parts.append(f"{left_s // 60}:{left_s % 60:02} left")
    if isinstance(count, int) and count > 1:
        parts.append(f"file {download.get('file_index')} of {count}")
    return "".join(f", {part}" for part in parts)
