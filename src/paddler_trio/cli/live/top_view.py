"""The choices of whoever watches ``top``: pane, row, order, filter; and what keys do.

Pure: a key changes the view, and may be an order that is carried out elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeAlias, TypeVar

import attrs

from paddler_trio.cli.live.columns import UNKNOWN, Column
from paddler_trio.cli.live.live_picture import LiveAgent, LivePicture
from paddler_trio.cli.live.request_views import RequestView
from paddler_trio.cli.live.top_columns import (
    agent_columns,
    agent_words,
    request_columns,
    request_words,
)

MAX_FILTER_CHARS: Final = 80
PAGE: Final = 10

T = TypeVar("T")


class Pane(Enum):
    AGENTS = "agents"
    REQUESTS = "requests"


@attrs.frozen
class Quit:
    """Leave."""


@attrs.frozen
class CancelRequest:
    """End a request; its client gets an error."""

    key: int


@attrs.frozen
class DrainAgent:
    """Give an agent nothing new, or work again if it is not to be ``drained``."""

    id: str
    label: str
    drained: bool


@attrs.frozen
class ExplainRequest:
    """Show what happened to a request."""

    key: int


Order: TypeAlias = CancelRequest | DrainAgent
Action: TypeAlias = Quit | Order | ExplainRequest


@attrs.define
class PaneView:
    """One table: where its selection is, what it is sorted by, what it shows.

    ``selected`` is the key of a row, which the selection follows; ``place`` is where it was, for
    when that row has gone.
    """

    sorted_by: str
    reverse: bool = False
    filter: str = ""
    selected: str | None = None
    place: int = 0

    def move(self, keys: Sequence[str], by: int) -> None:
        """Select the row so many below, around the ends for single steps."""
        if not keys:
            return
        place = self.place_in(keys) + by
        place = place % len(keys) if abs(by) == 1 else min(max(place, 0), len(keys) - 1)
        self.place, self.selected = place, keys[place]

    def place_in(self, keys: Sequence[str]) -> int:
        """Return the place of the selected row, or of the one that has taken its place."""
        if self.selected in keys:
            self.place = keys.index(self.selected)
        return min(self.place, max(0, len(keys) - 1))

    def sort_next(self, titles: Sequence[str]) -> None:
        place = titles.index(self.sorted_by) if self.sorted_by in titles else -1
        self.sorted_by, self.reverse = titles[(place + 1) % len(titles)], False


@attrs.define(eq=False)
class TopView:
    """See the module docstring.

    Args:
      asking: an order that is to be confirmed.
      typing: the filter is being typed.
      message: what is shown below, such as how an order went.
      detail: lines about a request that are shown in the place of the tables, the first of them
        ``detail_from``.
    """

    panes: dict[Pane, PaneView] = attrs.field(
        factory=lambda: {Pane.AGENTS: PaneView("name"), Pane.REQUESTS: PaneView("age")}
    )
    active: Pane = Pane.REQUESTS
    asking: Order | None = None
    typing: bool = False
    shows_help: bool = False
    message: str = ""
    detail: list[str] | None = None
    detail_from: int = 0

    @property
    def pane(self) -> PaneView:
        return self.panes[self.active]

    def agents(self, picture: LivePicture, now_ms: int) -> list[LiveAgent]:
        """The rows of the table, in order."""
        view = self.panes[Pane.AGENTS]
        return _rows(
            picture.agents.values(), view, agent_columns(picture, now_ms), agent_words, _agent_key
        )

    def requests(self, picture: LivePicture, now_ms: int) -> list[RequestView]:
        """The rows of the table, in order."""
        view = self.panes[Pane.REQUESTS]
        rows = _rows(
            picture.requests.values(), view, request_columns(now_ms), request_words, _request_key
        )
        return sorted(rows, key=lambda request: request.is_finished)  # those that ended come last

    def keys(self, picture: LivePicture, now_ms: int) -> list[str]:
        """Return the keys of the rows of the active table."""
        if self.active is Pane.AGENTS:
            return [_agent_key(agent) for agent in self.agents(picture, now_ms)]
        return [_request_key(request) for request in self.requests(picture, now_ms)]

    def press(self, key: str, picture: LivePicture, now_ms: int) -> Action | None:
        """Do what a key means now."""
        if self.asking is not None:
            order, self.asking = self.asking, None
            return order if key in {"y", "Y"} else None
        if self.typing:
            self._type(key)
            return None
        self.message = ""
        if self.shows_help or self.detail is not None:
            return self._leave(key)
        keys = self.keys(picture, now_ms)
        step = _step(key, len(keys))
        if step is not None:
            self.pane.move(keys, step)
            return None
        return self._command(key, picture, keys, now_ms)

    def explain(self, lines: list[str]) -> None:
        """Show these instead of the tables."""
        self.detail, self.detail_from = lines, 0

    def _leave(self, key: str) -> Quit | None:
        """Back to the tables, or further down in what is shown."""
        lines = len(self.detail or ())
        step = _step(key, lines)
        if step is not None and self.detail is not None:
            self.detail_from = min(max(0, self.detail_from + step), lines - 1)
            return None
        self.shows_help, self.detail = False, None
        return Quit() if key == "q" else None

    def _command(
        self, key: str, picture: LivePicture, keys: list[str], now_ms: int
    ) -> Action | None:
        match key:
            case "q" | "escape":
                if key == "escape" and self.pane.filter:
                    self.pane.filter = ""
                    return None
                return Quit()
            case "tab" | "back tab" | "left" | "right":
                self.active = Pane.AGENTS if self.active is Pane.REQUESTS else Pane.REQUESTS
            case "s":
                self.pane.sort_next(self._titles(picture, now_ms))
            case "r":
                self.pane.reverse = not self.pane.reverse
            case "/":
                self.typing, self.pane.filter = True, ""
            case "?" | "h":
                self.shows_help = True
            case "c" | "d" | "enter":
                return self._about_selected(key, picture, keys)
        return None

    def _about_selected(
        self, key: str, picture: LivePicture, keys: list[str]
    ) -> ExplainRequest | None:
        selected = keys[self.pane.place_in(keys)] if keys else None
        if key == "d":
            agent = picture.agents.get(selected or "") if self.active is Pane.AGENTS else None
            if agent is None:
                self.message = "select an agent to drain it: Tab changes the table"
            else:
                self.asking = DrainAgent(agent.id, agent.label, drained=not agent.is_drained)
            return None
        request = picture.requests.get(selected or "") if self.active is Pane.REQUESTS else None
        if request is None:
            self.message = "select a request first: Tab changes the table"
        elif key == "enter":
            return ExplainRequest(request.key)
        elif request.is_finished:
            self.message = f"request {request.key} has ended"
        else:
            self.asking = CancelRequest(request.key)
        return None

    def _type(self, key: str) -> None:
        text = self.pane.filter
        match key:
            case "enter":
                self.typing = False
            case "escape":
                self.typing, self.pane.filter = False, ""
            case "backspace":
                self.pane.filter = text[:-1]
            case "clear":
                self.pane.filter = ""
            case _ if len(key) == 1 and len(text) < MAX_FILTER_CHARS:
                self.pane.filter = text + key

    def _titles(self, picture: LivePicture, now_ms: int) -> list[str]:
        if self.active is Pane.AGENTS:
            return [c.title for c in agent_columns(picture, now_ms) if c.order is not None]
        return [c.title for c in request_columns(now_ms) if c.order is not None]


def _step(key: str, rows: int) -> int | None:
    """Return how far a key moves; None if it moves nothing."""
    match key:
        case "down" | "j":
            return 1
        case "up" | "k":
            return -1
        case "page down":
            return PAGE
        case "page up":
            return -PAGE
        case "end" | "G":
            return rows + 1
        case "home" | "g":
            return -rows - 1
    return None


def question(order: Order) -> str:
    """The question before an order is carried out."""
    match order:
        case CancelRequest(key):
            return f"cancel request {key}? its client gets an error (y/n)"
        case DrainAgent(label=label, drained=True):
            return f"drain {label}? it finishes what it has and gets nothing new (y/n)"
        case DrainAgent(label=label):
            return f"give {label} work again? (y/n)"


def _rows(
    rows: Iterable[T],
    view: PaneView,
    columns: Sequence[Column[T]],
    words: Callable[[T], str],
    key: Callable[[T], str],
) -> list[T]:
    wanted = view.filter.casefold().split()
    shown = [row for row in rows if not wanted or all(word in words(row) for word in wanted)]
    order = next((c.order for c in columns if c.title == view.sorted_by), None)
    shown.sort(key=key)
    if order is not None:
        shown.sort(key=order, reverse=view.reverse)
        if view.reverse:  # what is not known stays last
            shown.sort(key=lambda row: order(row)[0] == UNKNOWN[0])
    return shown


def _agent_key(agent: LiveAgent) -> str:
    return str(agent.key)


def _request_key(request: RequestView) -> str:
    return str(request.key)
