"""Waiting for agents, shown: a live table on a terminal, a line for each change elsewhere.

Both go to standard error; the outcome is the command's to print.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerUnreachableError
from paddler_trio.cli.live.agents import phase_text
from paddler_trio.cli.management_client import SILENCE_S, AgentView, ManagementClient
from paddler_trio.cli.swap.swap_progress import AgentSwapState, Outcome, SwapProgress, SwapResult
from paddler_trio.cli.terminal import printable

BAR_COLUMNS = 20
ENDS = ("serving", "failed", "waiting")


def wait_for_fleet(
    client: ManagementClient, progress: SwapProgress, *, timeout_s: float, console: Console
) -> Outcome:
    """Follow the fleet until ``progress`` has an outcome, or for ``timeout_s``."""
    give_up_s = time.monotonic() + timeout_s
    try:
        with _display(console) as display:
            for view in client.watch_fleet(silence_s=min(SILENCE_S, max(timeout_s, 0.1))):
                progress.observe(view, time.monotonic())
                display.show(progress.standings)
                if progress.outcome is not None:
                    return progress.outcome
                if time.monotonic() >= give_up_s:
                    break
    except BalancerUnreachableError:
        if time.monotonic() < give_up_s:
            raise
    return Outcome.TIMEOUT


class _Display(Protocol):
    def show(self, standings: list[AgentSwapState]) -> None: ...


@contextmanager
def _display(console: Console) -> Iterator[_Display]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _LiveTable(live)


@attrs.define
class _LiveTable:
    live: Live

    def show(self, standings: list[AgentSwapState]) -> None:
        table = Table("agent", "phase", "", "slots", "", box=None)
        for standing in standings:
            agent = standing.agent
            table.add_row(
                Text(printable(agent.label)),
                _phase(standing),
                _bar(standing),
                f"{agent.slots_processing}/{agent.slots_total}",
                Text(printable(standing.reason), style="red" if _failed(standing) else ""),
            )
        self.live.update(table, refresh=True)


@attrs.define
class _Lines:
    console: Console
    _said: dict[str, str] = attrs.field(factory=dict, init=False)

    def show(self, standings: list[AgentSwapState]) -> None:
        for standing in standings:
            agent = standing.agent
            words = [agent.label + ":", _phase(attrs.evolve(standing, agent=_still(agent))).plain]
            if standing.reason:
                words.append(f"({standing.reason})")
            line = printable(" ".join(words))
            if self._said.get(agent.id) != line:
                self._said[agent.id] = line
                self.console.print(line)


def _still(agent: AgentView) -> AgentView:
    """Without its percentage, which would make a line of every step."""
    return attrs.evolve(agent, progress=None, download_total=0)


def _phase(standing: AgentSwapState) -> Text:
    if standing.gone_since_s is not None:
        return Text("offline", style="red" if _failed(standing) else "yellow")
    if _failed(standing):
        return Text("failed", style="red")
    if standing.result is SwapResult.PENDING and standing.agent.phase in ENDS:
        return Text("has not begun")  # that is the end of what it did before
    return phase_text(standing.agent)


def _bar(standing: AgentSwapState) -> ProgressBar | str:
    agent = standing.agent
    if standing.result is not SwapResult.PENDING or standing.gone_since_s is not None:
        return ""
    if agent.progress is not None:
        return ProgressBar(total=1.0, completed=agent.progress, width=BAR_COLUMNS)
    if agent.download_total:
        return ProgressBar(
            total=agent.download_total, completed=agent.download_current, width=BAR_COLUMNS
        )
    return ""


def _failed(standing: AgentSwapState) -> bool:
    return standing.result is SwapResult.FAILED
