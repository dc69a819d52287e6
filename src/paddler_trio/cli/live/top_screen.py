"""The screen of ``top``: lines that fill a terminal of any size, or plain lines for one look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, TypeVar

import attrs
from rich.console import Group
from rich.text import Text

from paddler_trio.cli.figures import NOTHING, duration, rate
from paddler_trio.cli.live.columns import Column, fitting, header_line, plain_table, row_line
from paddler_trio.cli.live.live_picture import DeploymentView, LivePicture
from paddler_trio.cli.live.top_columns import UPDATED, agent_columns, request_columns
from paddler_trio.cli.live.top_view import Pane, TopView, question
from paddler_trio.cli.terminal import printable

KEYS: Final = (
    "Tab table  ↑↓ row  s sort  r reverse  / filter  Enter explain  c cancel  d drain  ? help  "
    "q quit"
)
HELP: Final = (
    "Tab          the other table",
    "↑ ↓ j k      the row above, below; PgUp, PgDn, Home, End too",
    "s, r         sort by the next column; reverse the order",
    "/            filter: words that a row must have; Enter keeps it, Esc ends it",
    "Enter        what happened to the selected request, step by step",
    "c            cancel the selected request: its client gets an error",
    "d            drain the selected agent, or give it work again",
    "q, Esc       quit",
    "",
    "slots        p prefill, d decode, q waits for the engine, s stopping, · idle",
    "in/s, out/s  prompt tokens read and tokens generated a second, over the last seconds",
    "cached       of the prompt tokens, those that were in the cache",
    "updated      since the balancer had something new to say of this agent",
    "queue        how many requests stand before it",
    "first        from arrival to the first result",
)
LEAST_ROWS: Final = 3
MAX_DEPLOYMENT_LINES: Final = 6
MAX_PROBLEM_LINES: Final = 3

T = TypeVar("T")


@attrs.frozen
class Link:
    """The state of the feed; ``lost`` is why there is none, and ``lost_ms`` since how long."""

    address: str
    lost: str | None = None
    lost_ms: float = 0


def screen(
    picture: LivePicture,
    view: TopView,
    link: Link,
    *,
    now_ms: int,
    size: tuple[int, int],
) -> Group:
    """Everything, as exactly as many lines as the terminal has.

    Args:
      now_ms: the balancer's clock.
      size: columns and lines.
    """
    width, height = size
    lines = [*_head(picture, link, now_ms)]
    foot = _foot(view)
    if view.shows_help:
        lines += [Text(), *(Text(line) for line in HELP)]
    elif view.detail is not None:
        lines += [Text(), *(Text(printable(line)) for line in view.detail[view.detail_from :])]
    else:
        lines += _tables(picture, view, now_ms, (width, height - len(lines) - 1))
    lines = lines[: max(0, height - 1)]
    lines += [Text()] * (height - 1 - len(lines))
    for line in (*lines, foot):
        line.no_wrap, line.overflow = True, "crop"
        line.truncate(width)
    return Group(*lines, foot)


def plain_lines(picture: LivePicture) -> Iterator[str]:
    """One look at all of it, for a pipe."""
    now_ms = picture.now_ms
    view = TopView()
    yield from (line.plain for line in _head(picture, None, now_ms))
    yield ""
    agents = view.agents(picture, now_ms)
    columns = [c for c in agent_columns(picture, now_ms) if c.title != UPDATED]
    yield from _plain("agents", agents, columns)
    yield ""
    requests = view.requests(picture, now_ms)
    yield from _plain("requests", requests, request_columns(now_ms))


def _plain(name: str, rows: Sequence[T], columns: Sequence[Column[T]]) -> Iterator[str]:
    if rows:
        yield from plain_table(columns, rows)
    else:
        yield f"no {name}"


# ---------------------------------------------------------------------------------- the parts


def _head(picture: LivePicture, link: Link | None, now_ms: int) -> Iterator[Text]:
    balancer = picture.balancer
    first = Text()
    first.append(f"paddler-trio {balancer.version}", style="bold")
    if link is not None:
        first.append(f"  {link.address}  ")
        if link.lost is None:
            first.append("live", style="green")
        else:
            words = f"lost for {duration(link.lost_ms)}, tries again: {printable(link.lost)}"
            first.append(words, style="bold red")
    up = _up(balancer.started, picture.time)
    first.append(f"  up {up}" if up else "")
    first.append(f"  revision {balancer.revision}" if balancer.revision is not None else "")
    if balancer.draining:
        first.append("  draining: it is shutting down", style="yellow")
    yield first
    yield _figures(picture)
    problems = sorted(picture.problems.values(), key=lambda each: each.severity != "bad")
    for problem in problems[:MAX_PROBLEM_LINES]:
        style = "bold red" if problem.severity == "bad" else "yellow"
        yield Text(f"! {printable(problem.subject)}: {printable(problem.sentence)}", style=style)
    if len(problems) > MAX_PROBLEM_LINES:
        more = len(problems) - MAX_PROBLEM_LINES
        yield Text(f"  and {more} more: `paddler-trio problems` has all", style="yellow")
    deployments = sorted(picture.deployments.items())
    if len(deployments) > 1:
        for name, each in deployments[:MAX_DEPLOYMENT_LINES]:
            yield _deployment(name, each)
        if len(deployments) > MAX_DEPLOYMENT_LINES:
            yield Text(f"  and {len(deployments) - MAX_DEPLOYMENT_LINES} more", style="dim")
    else:
        for _, each in deployments:
            if each.held is not None:
                yield Text(f"requests wait: {printable(each.held.reason)}", style="yellow")


def _figures(picture: LivePicture) -> Text:
    balancer, agents = picture.balancer, picture.agents.values()
    rates = [agent.rates for agent in agents if agent.rates is not None]
    oldest_ms = max(
        (each.oldest_wait_ms for each in picture.deployments.values() if each.oldest_wait_ms),
        default=None,
    )
    waiting = f"{balancer.buffer.waiting}/{balancer.buffer.limit}"
    if oldest_ms is not None:
        waiting += f" (oldest {duration(oldest_ms)})"
    in_per_s = sum(each.prompt_tokens_per_s or 0.0 for each in rates)
    out_per_s = sum(each.generated_tokens_per_s or 0.0 for each in rates)
    lag = balancer.loop_lag_ms
    figures = (
        ("agents", str(len({agent.host or agent.id for agent in agents}))),
        ("slots", f"{balancer.slots.busy}/{balancer.slots.total} busy"),
        ("queue", waiting),
        ("in", f"{rate(in_per_s if rates else None)} tok/s"),
        ("out", f"{rate(out_per_s if rates else None)} tok/s"),
        ("lag", NOTHING if lag is None else f"{lag:.1f} ms"),
    )
    line = Text()
    for place, (name, value) in enumerate(figures):
        line.append("   " if place else "")
        line.append(f"{name} ", style="dim")
        line.append(value)
    return line


def _deployment(name: str, each: DeploymentView) -> Text:
    line = Text()
    line.append(f"  {printable(name):<16.16}", style="bold")
    line.append(f"{each.phase or NOTHING:<9.9} ")
    waiting = f"{each.waiting} waiting"
    if each.oldest_wait_ms:
        waiting += f" (oldest {duration(each.oldest_wait_ms)})"
    line.append(f"{each.serving} agents, {each.running}/{each.slots} slots, {waiting}")
    if each.held is not None:
        line.append(f", {printable(each.held.reason)}", style="yellow")
    return line


def _up(started: str | None, now: str) -> str:
    if started is None:
        return ""
    try:
        began, at = datetime.fromisoformat(started), datetime.fromisoformat(now)
        return duration((at - began).total_seconds() * 1000)
    except (ValueError, TypeError):
        return ""


def _tables(
    picture: LivePicture, view: TopView, now_ms: int, size: tuple[int, int]
) -> Iterator[Text]:
    """Both tables; what one does not need the other one gets."""
    width, height = size
    agents, requests = view.agents(picture, now_ms), view.requests(picture, now_ms)
    room = max(2 * LEAST_ROWS, height - 4)  # a blank line and a header each
    of_agents = min(len(agents) or 1, max(room // 2, room - (len(requests) or 1)))
    of_requests = max(1, room - of_agents)
    advice = "no agent is connected; start one with `paddler-trio agent`"
    hidden = f"no agent has {view.panes[Pane.AGENTS].filter!r}"
    yield Text()
    yield from _table(
        agents,
        fitting(agent_columns(picture, now_ms), width),
        view,
        Pane.AGENTS,
        of_agents,
        lambda agent: str(agent.key),
        hidden if picture.agents else advice,
    )
    hidden = f"no request has {view.panes[Pane.REQUESTS].filter!r}"
    yield Text()
    yield from _table(
        requests,
        fitting(request_columns(now_ms), width),
        view,
        Pane.REQUESTS,
        of_requests,
        lambda request: str(request.key),
        hidden if picture.requests else "no request is in flight",
    )


def _table(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    view: TopView,
    pane: Pane,
    room: int,
    key: Callable[[T], str],
    empty: str,
) -> Iterator[Text]:
    """The header, and the rows around the selected one."""
    chosen = view.panes[pane]
    header = header_line(columns, sorted_by=chosen.sorted_by, reverse=chosen.reverse)
    if pane is not view.active:
        header.stylize("dim")
    yield header
    if not rows:
        yield Text(empty, style="dim")
        return
    place = chosen.place_in([key(row) for row in rows])
    is_cut = len(rows) > room
    shown = max(1, room - 1) if is_cut else room
    first = min(max(0, place - shown // 2), max(0, len(rows) - shown))
    for number, row in enumerate(rows[first : first + shown], first):
        yield row_line(columns, row, is_selected=pane is view.active and number == place)
    if is_cut:
        last = first + len(rows[first : first + shown])
        yield Text(f"{first + 1} to {last} of {len(rows)}", style="dim")


def _foot(view: TopView) -> Text:
    if view.asking is not None:
        return Text(printable(question(view.asking)), style="bold yellow")
    if view.typing:
        return Text(f"filter {view.active.value}: {printable(view.pane.filter)}▏", style="bold")
    if view.message:
        return Text(printable(view.message), style="bold")
    if view.shows_help:
        return Text("any key goes back, q quits", style="dim")
    if view.detail is not None:
        return Text("↑↓ scroll  q quits  any other key goes back", style="dim")
    chosen = f"filter {view.pane.filter!r} (Esc ends it)  " if view.pane.filter else ""
    return Text.assemble((printable(chosen), "bold"), (KEYS, "dim"))
