"""``paddler-trio agents``: who is connected, what each agent serves and what keeps it from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated

import attrs
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.fleet.issue_words import OLD_MODEL_SERVES, issues_words
from paddler_trio.cli.management_client import AgentView, FleetView, ManagementClient
from paddler_trio.cli.model.memory_words import chosen_words, memory_words
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stdout

RATED = ("drawn_tokens", "embedding_tokens")
"""Figures of an engine that only grow, and of which the speed is shown."""
PHASE_COLOURS = {"serving": "green", "failed": "red", "waiting": "", "leaving": "yellow"}


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
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the connected agents: slots, phase, model, and issues in plain words."""
    if context.invoked_subcommand is not None:
        return
    with one_line_errors(), ManagementClient.open(management) as client:
        if not watch:
            _show(client.fleet(), as_json=as_json)
        elif as_json or not stdout().is_terminal:
            for view in _changes(client.watch_fleet()):
                _show(view, as_json=as_json)
        else:
            rates = EngineRates()
            with Live(console=stdout(), auto_refresh=False) as live:
                for view in _changes(client.watch_fleet()):
                    rates.look(view.agents, time.monotonic())
                    live.update(agents_table(view.agents, rates), refresh=True)


@agents.command()
@with_flags
def credentials(
    *,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """List the agents that joined with a token, and whose credential may have been copied."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access.join_token_run import list_credentials

        list_credentials(client, as_json=as_json)


@agents.command()
@with_flags
def revoke(
    *,
    name: Annotated[str, typer.Argument(help="As `agents credentials` shows it.")],
    management: ManagementFlags,
) -> None:
    """Cut an agent off and make its credential worthless; what it computes goes on elsewhere."""
    with one_line_errors(), ManagementClient.open(management) as client:
        from paddler_trio.cli.access.join_token_run import revoke_credential

        revoke_credential(client, name)


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


@attrs.define
class EngineRates:
    """What the engine of each agent does a second, from what it had counted at two looks."""

    _seen: dict[str, tuple[dict[str, float], float]] = attrs.field(factory=dict, init=False)
    _rates: dict[str, dict[str, float]] = attrs.field(factory=dict, init=False)

    def look(self, shown: Iterable[AgentView], now_s: float) -> None:
        """What the agents say now; a look less than half a second after the last is too early."""
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
        """How fast a figure of ``RATED`` grows; None if that is not known yet."""
        return self._rates.get(agent.id, {}).get(name)


def agents_table(shown: Iterable[AgentView], rates: EngineRates | None = None) -> Table:
    """One row an agent, by name; with ``rates`` also what its engine does."""
    heads = ["name", "id", "protocol", "slots", "phase", "model", "memory", "issues"]
    if rates is not None:
        heads[5:5] = ["tokens/s", "embedded/s", "cached", "cells"]
    by_name = sorted(shown, key=lambda agent: (agent.label, agent.id))
    has_deployments = any(agent.deployment != "default" for agent in by_name)
    if has_deployments:
        heads[2:2] = ["deployment"]
    has_addresses = any(agent.address for agent in by_name)
    if has_addresses:
        heads[2:2] = ["address"]
    table = Table(*heads, box=None)
    for agent in by_name:
        table.add_row(
            _text(agent.name or "-"),
            _text(agent.id),
            *([_text(agent.address or "-")] if has_addresses else []),
            *([_text(agent.deployment)] if has_deployments else []),
            _text(agent.protocol),
            f"{agent.slots_processing}/{agent.slots_total}",
            phase_text(agent),
            *(() if rates is None else _engine_columns(agent, rates)),
            _text(" ".join(filter(None, [_model(agent), chosen_words(agent)]))),
            _text(memory_words(agent) or "-"),
            _text(issues_words(agent.issues) or agent.detail or "-"),
        )
    return table


def _model(agent: AgentView) -> str:
    return agent.model_path or ", ".join(agent.models) or "-"


def _engine_columns(agent: AgentView, rates: EngineRates) -> tuple[str, str, str, str]:
    """Tokens sampled and tokens embedded a second, the share of prompts that came from the cache,
    cells in use; an engine that has nothing of a kind shows a dash."""
    engine = agent.engine
    if engine is None:
        return "-", "-", "-", "-"
    sampled, embedded = (rates.of(agent, name) for name in RATED)
    read = engine["cached_tokens"] + engine["prompt_tokens"]
    cells = engine["cells_total"]
    return (
        "-" if sampled is None or not cells else f"{sampled:.0f}",
        "-" if embedded is None or not engine.get("embedding_tokens") else f"{embedded:.0f}",
        f"{engine['cached_tokens'] / read:.0%}" if read else "-",
        f"{engine['cells_used']:.0f}/{cells:.0f}" if cells else "-",
    )


def phase_text(agent: AgentView) -> Text:
    """What it is doing; of a Paddler agent only its own state's name is known."""
    phase = agent.phase or agent.state_application_status
    if agent.progress is not None:
        phase = f"{phase} {agent.progress:.0%}"
    elif agent.download_total:
        phase = f"downloading {agent.download_current / agent.download_total:.0%}"
        phase += _speed(agent.download or {})
    if agent.keeps_old_model:
        phase += f", {OLD_MODEL_SERVES}"
    if not agent.is_drained:
        return Text(printable(phase), style=PHASE_COLOURS.get(agent.phase or "", "cyan"))
    words = "drained" if phase == "serving" else f"{phase}, drained"
    return Text(printable(words), style="yellow")


def _speed(download: Mapping[str, object]) -> str:
    """How fast, how long still, and which file of several; empty while nothing of it is known."""
    parts = []
    speed, left_s, count = (download.get(k) for k in ("bytes_per_s", "remaining_s", "file_count"))
    if isinstance(speed, int) and speed > 0:
        parts.append(f"{speed / 1e6:.1f} MB/s")
        if isinstance(left_s, int):
            parts.append(f"{left_s // 60}:{left_s % 60:02} left")
    if isinstance(count, int) and count > 1:
        parts.append(f"file {download.get('file_index')} of {count}")
    return "".join(f", {part}" for part in parts)


def _text(words: str) -> Text:
    return Text(printable(words))
