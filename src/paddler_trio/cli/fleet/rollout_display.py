"""Rollouts, shown: a live table on a terminal, a line for each change elsewhere.

Of a large fleet the rows that fit on the terminal are shown, those first where something happens;
the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import attrs
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.fleet.fleet_client import InstanceView, RolloutView
from paddler_trio.cli.management_client import Json
from paddler_trio.cli.model.cache_display import file_words, place_words, speed_words
from paddler_trio.cli.terminal import printable

BAR_COLUMNS: Final = 20
ORDER: Final = (
    "failed",
    "gone",
    "probing",
    "loading",
    "draining",
    "prefetching",
    "rolled_back",
    "prefetched",
    "waiting",
    "serving",
)
"""From what an operator wants to see most."""
COLOURS: Final = {
    "serving": "green",
    "complete": "green",
    "failed": "red",
    "gone": "red",
    "aborted": "red",
    "rolling_back": "yellow",
    "rolled_back": "yellow",
    "paused": "yellow",
    "waiting": "",
    "prefetched": "",
}
LEAST_ROWS: Final = 3
"""For each rollout, however low the terminal is."""


class RolloutDisplay(Protocol):
    def show(self, rollouts: Sequence[RolloutView]) -> None: ...

    def tell(self, words: str) -> None:
        """Something about the command itself, such as that the balancer is away."""


@contextmanager
def rollout_display(console: Console) -> Iterator[RolloutDisplay]:
    """The display that fits where the output goes."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _LiveTable(live)


@attrs.define
class _LiveTable:
    live: Live

    def show(self, rollouts: Sequence[RolloutView]) -> None:
        self.live.update(rollouts_shown(rollouts, self.live.console.height), refresh=True)

    def tell(self, words: str) -> None:
        self.live.console.print(Text(printable(words), style="yellow"))


@attrs.define
class _Lines:
    """A line where a phase or a file is another one; percentages alone make none."""

    console: Console
    _said: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)

    def show(self, rollouts: Sequence[RolloutView]) -> None:
        for rollout in rollouts:
            self._say((rollout.deployment, ""), headline(rollout))
            for each in rollout.agents:
                reason = f" ({each.detail})" if each.phase == "failed" and each.detail else ""
                file = ""
                if each.download is not None:
                    file = f" {file_words(each.download)}{_state_of(each.download)}"
                words = f"{rollout.deployment}, {each.agent}: {words_of(each.phase)}{file}{reason}"
                self._say((rollout.deployment, each.agent), words)

    def tell(self, words: str) -> None:
        self.console.print(Text(printable(words)))

    def _say(self, key: tuple[str, str], words: str) -> None:
        if self._said.get(key) != words:
            self._said[key] = words
            self.tell(words)


def rollouts_shown(rollouts: Sequence[RolloutView], height: int | None = None) -> Group:
    """A headline and a table for each rollout; ``height``: lines that the terminal has, None for
    as many as are needed."""
    parts: list[Text | Table] = []
    rows = None
    if height is not None and rollouts:
        rows = max(LEAST_ROWS, (height - 1) // len(rollouts) - 2)
    for rollout in rollouts:
        words = headline(rollout) + _wait(rollout)
        head = Text(printable(words), style=COLOURS.get(rollout.phase, "cyan"))
        head.no_wrap, head.overflow = rows is not None, "ellipsis"
        parts.append(head)
        if rollout.agents:
            parts.extend(_agents(rollout.agents, rows))
    return Group(*parts)


def headline(rollout: RolloutView) -> str:
    """One line about a rollout, without its agents."""
    words = [f"{rollout.deployment}: {words_of(rollout.phase)}"]
    if rollout.to is not None:
        is_first = rollout.before in {None, rollout.to}
        way = f"{rollout.to}" if is_first else f"{rollout.before} -> {rollout.to}"
        words.append(f"revision {way}")
    if rollout.reason:
        words.append(rollout.reason)
    return ", ".join(words)


def _wait(rollout: RolloutView) -> str:
    """Return what requests wait for, if no other agent takes them; not in the headline, since it
    changes all the time."""
    if rollout.waits_for is None or not rollout.is_live:
        return ""
    ready = "" if rollout.ready_in_s is None else f", ready in about {rollout.ready_in_s:.0f} s"
    return f"; {rollout.waits_for}{ready}"


def words_of(phase: str) -> str:
    """A phase as people write it."""
    return phase.replace("_", " ")


def _agents(agents: Sequence[InstanceView], rows: int | None) -> Iterator[Table | Text]:
    order = {phase: place for place, phase in enumerate(ORDER)}
    by_interest = sorted(agents, key=lambda each: (order.get(each.phase, 0), each.agent))
    is_cut = rows is not None and len(agents) > rows
    shown = by_interest[: rows - 1] if is_cut and rows is not None else by_interest
    table = Table(box=None, show_header=False, padding=(0, 1), expand=rows is not None)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=rows is not None, overflow="ellipsis", ratio=rows and 1)
    for each in shown if is_cut else sorted(shown, key=lambda each: each.agent):
        table.add_row(
            Text(printable(f"  {each.agent}")),
            Text(printable(words_of(each.phase)), style=COLOURS.get(each.phase, "cyan")),
            _bar(each),
        )
    yield table
    if is_cut:
        left = Counter(words_of(each.phase) for each in by_interest[len(shown) :])
        others = f"   and {', '.join(f'{n} {what}' for what, n in left.items())}"
        yield Text(printable(others), no_wrap=True, overflow="ellipsis")


def _bar(each: InstanceView) -> ProgressBar | Table | Text:
    if each.progress is not None and each.phase in {"prefetching", "loading"}:
        bar = ProgressBar(total=1.0, completed=min(1.0, each.progress), width=BAR_COLUMNS)
        return bar if each.download is None else _download(bar, each.download)
    if each.download is not None:
        return _download(None, each.download)
    return Text(printable(each.detail or ""), style="red" if each.phase == "failed" else "")


def _download(bar: ProgressBar | None, download: Json) -> Table:
    """The bar and how far it is in words, as much of them as there is room for."""
    row = Table.grid(padding=(0, 1))
    words = f"{speed_words(download)}{place_words(download)}{_state_of(download)}"
    text = Text(printable(words), no_wrap=True, overflow="ellipsis")
    row.add_row(text) if bar is None else row.add_row(bar, text)
    return row


def _state_of(download: Json) -> str:
    """Return what is done with the file, unless its bytes arrive here."""
    phase = download.get("phase")
    return "" if phase in {None, "downloading"} else f", {phase}"
