"""Waiting until agents have given up their model, shown: a live table on a terminal, a line for
each change elsewhere. Both go to standard error; the outcome is the command's to print.

The progress of a fleet to that state is decided from snapshots, without a clock. An agent of ours
names the state it wants and the state it serves, so the answer is a comparison; it is ``Fresh``
until it has tried that state. A Paddler 4.1 agent names neither: it has done it when it has no
slots any more, and has failed when it reports issues. A failure in the words of one
from before the state was stored may be that very one, still on its way: it counts only if the
agent keeps reporting it for ``NEWS_S``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

import attrs
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerUnreachableError
from paddler_trio.cli.fleet.issue_words import issues_words
from paddler_trio.cli.live.agents import phase_text
from paddler_trio.cli.management_client import SILENCE_S, AgentView, FleetView, ManagementClient
from paddler_trio.cli.terminal import printable

NEWS_S = 3.0
GONE_S = 15.0
"""How long an agent that vanished may take to come back; redialling takes a few seconds."""


class SwapResult(StrEnum):
    """On one agent."""

    PENDING = "pending"
    SERVING = "serving"
    FAILED = "failed"


class Outcome(StrEnum):
    """The outcome of the whole swap."""

    ALL_SERVE = "all serve"
    SOME_FAILED = "some failed"
    NO_AGENT = "no agent is connected"
    SUPERSEDED = "another desired state was stored meanwhile"
    TIMEOUT = "timeout"


@attrs.frozen
class AgentSwapState:
    """One agent, as last seen. ``reason``: why it failed or what it is waiting for, else empty."""

    agent: AgentView
    result: SwapResult
    reason: str
    gone_since_s: float | None = None


@attrs.define
class SwapProgress:
    """Feed it snapshots; ask for the outcome after each.

    Args:
      digest: of the state that is being waited for.
      before: the agents when it was stored; empty if nothing had to be stored.
      stored_at_s: the caller's monotonic time then.
    """

    digest: str
    before: Mapping[str, AgentView]
    stored_at_s: float
    _standings: dict[str, AgentSwapState] = attrs.field(factory=dict, init=False)
    _superseded: bool = attrs.field(default=False, init=False)

    @property
    def standings(self) -> list[AgentSwapState]:
        """Every agent seen since the state was stored, by name."""
        return sorted(
            self._standings.values(), key=lambda standing: (standing.agent.label, standing.agent.id)
        )

    def observe(self, view: FleetView, now_s: float) -> None:
        """A snapshot, at ``now_s``; the same one again lets time pass."""
        self._superseded = view.desired_state_digest != self.digest
        present = {agent.id for agent in view.agents}
        for agent in view.agents:
            self._standings[agent.id] = self._judged(agent, self._standings.get(agent.id), now_s)
        names = {agent.name for agent in view.agents if agent.name is not None}
        for absent in self._standings.keys() - present:
            if self._standings[absent].agent.name in names:  # it was started again
                del self._standings[absent]
            else:
                self._standings[absent] = _gone(self._standings[absent], now_s)

    @property
    def outcome(self) -> Outcome | None:
        """None while there is something to wait for."""
        if self._superseded:
            return Outcome.SUPERSEDED
        results = {standing.result for standing in self._standings.values()}
        if not results:
            return Outcome.NO_AGENT
        if SwapResult.PENDING in results:
            return None
        return Outcome.SOME_FAILED if SwapResult.FAILED in results else Outcome.ALL_SERVE

    def _judged(
        self, agent: AgentView, last: AgentSwapState | None, now_s: float
    ) -> AgentSwapState:
        if self._serves(agent):
            return AgentSwapState(agent, SwapResult.SERVING, "")
        reason = agent.detail or issues_words(agent.issues)
        if self._fails(agent) and self._is_news(agent, now_s):
            return AgentSwapState(agent, SwapResult.FAILED, reason or "it does not say why")
        if last is not None and last.result is SwapResult.FAILED and last.gone_since_s is None:
            return AgentSwapState(agent, SwapResult.FAILED, last.reason)  # between two attempts
        # while it loads, its last crash; anything else is about the state before
        return AgentSwapState(agent, SwapResult.PENDING, reason if agent.phase == "loading" else "")

    def _serves(self, agent: AgentView) -> bool:
        if not agent.is_paddlers:
            return agent.is_accepting and agent.served_state == self.digest
        applied = agent.state_application_status == "Applied" and not agent.issues
        return applied and agent.slots_total == 0

    def _fails(self, agent: AgentView) -> bool:
        if agent.state_application_status == "Fresh":
            return False
        if agent.is_paddlers:
            return bool(agent.issues) or agent.state_application_status != "Applied"
        if agent.wanted_state != self.digest:
            return False
        # an engine that dies while it loads is started again and again: an issue says so
        return agent.phase == "failed" or (agent.phase == "loading" and bool(agent.issues))

    def _is_news(self, agent: AgentView, now_s: float) -> bool:
        known = self.before.get(agent.id)
        return known is None or _says(known) != _says(agent) or now_s - self.stored_at_s >= NEWS_S


def by_id(agents: Iterable[AgentView]) -> dict[str, AgentView]:
    """Return agents by their ids, for ``SwapProgress.before``."""
    return {agent.id: agent for agent in agents}


def _says(agent: AgentView) -> tuple[object, ...]:
    return (agent.detail, agent.issues)


def _gone(standing: AgentSwapState, now_s: float) -> AgentSwapState:
    since_s = now_s if standing.gone_since_s is None else standing.gone_since_s
    result = SwapResult.FAILED if now_s - since_s >= GONE_S else SwapResult.PENDING
    return attrs.evolve(standing, result=result, reason="it is offline", gone_since_s=since_s)


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
        table = Table("agent", "phase", "slots", "", box=None)
        for standing in standings:
            agent = standing.agent
            table.add_row(
                Text(printable(agent.label)),
                _phase(standing),
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
            words = [agent.label + ":", _phase(standing).plain]
            if standing.reason:
                words.append(f"({standing.reason})")
            line = printable(" ".join(words))
            if self._said.get(agent.id) != line:
                self._said[agent.id] = line
                self.console.print(line)


def _phase(standing: AgentSwapState) -> Text:
    if standing.gone_since_s is not None:
        return Text("offline", style="red" if _failed(standing) else "yellow")
    if _failed(standing):
        return Text("failed", style="red")
    if standing.result is SwapResult.PENDING and standing.agent.phase in ENDS:
        return Text("has not begun")  # that is the end of what it did before
    return phase_text(standing.agent)


def _failed(standing: AgentSwapState) -> bool:
    return standing.result is SwapResult.FAILED
