"""Reading requests page by page, and writing them as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs
from rich.text import Text

from paddler_trio.cli.figures import NOTHING, count, duration, part_of, rate
from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.live.request_views import Clock, RequestsPage, RequestView, with_raw
from paddler_trio.cli.live.top_columns import request_phase
from paddler_trio.cli.management_client import ManagementClient

REQUESTS_PATH: Final = "/api/v2/requests"
MAX_PAGE: Final = 1000
"""What the balancer sends at once."""


@attrs.frozen(kw_only=True)
class RequestsQuery:
    """The requests that are asked for; empty for all. ``since_s``: ended no longer ago, or not
    yet."""

    state: str = "all"
    client: str = ""
    deployment: str = ""
    agent: str = ""
    ending: str = ""
    since_s: float | None = None
    limit: int = 50

    def parameters(self, now_ms: int | None) -> dict[str, str]:
        given = {
            "state": self.state,
            "client": self.client,
            "deployment": self.deployment,
            "agent": self.agent,
            "ending": self.ending,
        }
        if self.since_s is not None and now_ms is not None:
            given["since_ms"] = str(max(0, now_ms - round(self.since_s * 1000)))
        return {name: value for name, value in given.items() if value}


def read_requests(client: ManagementClient, query: RequestsQuery) -> RequestsPage:
    """Return as many as are asked for, over as many pages as that takes; newest first."""
    now_ms = None
    if query.since_s is not None:  # times are on the balancer's clock
        now_ms = _page(client, {"limit": "1"}).now_ms
    parameters = query.parameters(now_ms)
    found: list[RequestView] = []
    while True:
        limit = min(MAX_PAGE, query.limit - len(found))
        page = _page(client, {**parameters, "limit": str(limit)})
        found += page.requests
        if page.next is None or not page.requests or len(found) >= query.limit:
            return attrs.evolve(page, requests=found)
        parameters["before"] = str(page.next)


def cancel_request(client: ManagementClient, key: int) -> None:
    """End a request; its client gets an error."""
    client.ask("DELETE", f"{REQUESTS_PATH}/{key}")


def _page(client: ManagementClient, parameters: Mapping[str, str]) -> RequestsPage:
    raw = client.ask("GET", REQUESTS_PATH, params=parameters)
    page = client.structured(raw, RequestsPage)
    return attrs.evolve(page, requests=with_raw(page.requests, raw.get("requests")))


# ------------------------------------------------------------------------------------ writing


def table_lines(page: RequestsPage, width: int | None) -> list[Text]:
    """Return the lines of a table for people."""
    clock = Clock.of(page.now_ms, page.time)
    return table(_columns(clock), page.requests, width)


def csv_lines(page: RequestsPage) -> Iterator[str]:
    """Yield lines, that of names first; times are RFC 3339 in UTC or milliseconds.

    A text that a spreadsheet would take for a formula is preceded by an apostrophe.
    """
    clock = Clock.of(page.now_ms, page.time)
    yield _csv_line(CSV_FIELDS)
    for request in page.requests:
        yield _csv_line([_plain(figure(request, clock)) for figure in CSV_FIELDS.values()])


def _plain(value: object) -> object:
    is_formula = isinstance(value, str) and value[:1] in set("=+-@\t\r")
    return f"'{value}" if is_formula else value


def _speed(request: RequestView, clock: Clock) -> float | None:
    speed = request.tokens_per_s(clock.now_ms)
    return None if speed is None else round(speed, 2)


CSV_FIELDS: Final[Mapping[str, Callable[[RequestView, Clock], object]]] = {
    "key": lambda r, clock: r.key,
    "id": lambda r, clock: r.id,
    "client": lambda r, clock: r.client,
    "deployment": lambda r, clock: r.deployment,
    "what": lambda r, clock: r.what,
    "phase": lambda r, clock: r.phase,
    "arrived": lambda r, clock: clock.utc(r.arrived_ms),
    "agent": lambda r, clock: r.agent,
    "queue_ms": lambda r, clock: r.waited_ms(clock.now_ms),
    "first_ms": lambda r, clock: r.first_after_ms,
    "total_ms": lambda r, clock: r.age_ms(clock.now_ms),
    "prompt_tokens": lambda r, clock: r.placement and r.placement.prompt_tokens,
    "cached_tokens": lambda r, clock: r.placement and r.placement.cached_tokens,
    "tokens": lambda r, clock: r.tokens,
    "tokens_per_s": _speed,
    "continuations": lambda r, clock: r.continuations,
    "ending": lambda r, clock: r.ending and r.ending.kind,
    "code": lambda r, clock: r.ending and r.ending.code,
    "text": lambda r, clock: r.ending and r.ending.text,
    "finish": lambda r, clock: r.ending and r.ending.finish,
    "source": lambda r, clock: r.source,
    "preset": lambda r, clock: r.preset,
}
"""The columns of CSV, in order."""


def _csv_line(values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)  # type: ignore[arg-type]
    return text.getvalue()


def _columns(clock: Clock) -> list[Column[RequestView]]:
    def first(request: RequestView) -> str:
        return duration(request.first_after_ms)

    def waited(request: RequestView) -> str:
        return duration(request.waited_ms(clock.now_ms)) if request.queue else NOTHING

    def prompt(request: RequestView) -> str:
        last = request.placement
        if last is None or last.prompt_tokens is None:
            return NOTHING
        cached = part_of(last.cached_tokens, last.prompt_tokens)
        return f"{count(last.prompt_tokens)} ({cached} cached)"

    def ending(request: RequestView) -> str:
        if request.ending is None or request.ending.kind == "done":
            return NOTHING
        return request.ending_words

    return [
        Column("key", 0, lambda r: str(r.key), is_right=True),
        Column("arrived", 0, lambda r: clock.hours(r.arrived_ms), importance=1),
        Column("client", 0, lambda r: r.who or NOTHING, importance=3),
        Column("deployment", 0, lambda r: r.deployment, importance=3),
        Column("what", 0, lambda r: r.what, importance=5),
        Column("phase", 0, request_phase),
        Column("agent", 0, lambda r: r.place or NOTHING, importance=1),
        Column("queue", 0, waited, importance=4, is_right=True),
        Column("first", 0, first, importance=3, is_right=True),
        Column("total", 0, lambda r: duration(r.age_ms(clock.now_ms)), importance=1, is_right=True),
        Column("prompt", 0, prompt, importance=5, is_right=True),
        Column("tokens", 0, lambda r: count(r.tokens), importance=2, is_right=True),
        Column(
            "tok/s", 0, lambda r: rate(r.tokens_per_s(clock.now_ms)), importance=4, is_right=True
        ),
        Column("id", 0, lambda r: r.id or NOTHING, importance=6),
        Column("ending", 20, ending),
    ]
