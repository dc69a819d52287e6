"""``/api/v2/metrics/range`` and ``/api/v2/usage`` on the management port: what is kept of the past.

GET /api/v2/metrics/range?range=24h&by=deployment
    {"by", "begin", "end", "step_s", "fields", "series": [{"name", "is_other", "rows"}], "problem"}
GET /api/v2/usage?by=key&per=month&month=2026-11
    {"by", "per", "begin", "end", "time_zone": "UTC", "by_user", "rows": [...], "problem"}

A range is a length up to now, such as 90s, 30m, 12h or 7d, or ``from`` and ``to``: RFC 3339, or
seconds of Unix. ``by`` is fleet, deployment, agent, client or key; of many the busiest come by
name, and ``name`` asks for one. Usage is of a ``month``, or of the days ``from`` to ``to``, and
with ``format=csv`` a table. All days and months are of UTC.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar, get_args
from urllib.parse import parse_qs

import attrs

from paddler_trio.balancer.front.end_user import USER_NAMES
from paddler_trio.balancer.history.history_file import HistoryError, HistoryFile
from paddler_trio.balancer.history.history_keeper import HistoryKeeper
from paddler_trio.balancer.history.history_queries import (
    By,
    Per,
    SeriesRows,
    UsageRow,
    days_of_month,
    series_of,
    usage_of,
)
from paddler_trio.balancer.keys.key_terms import check_expires, duration_s
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import HttpProblem, send_bytes, send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.scheduler.limits.periods import (
    day_from,
    day_of,
    day_text,
    month_from,
    month_of,
)
from paddler_trio.scheduler.metering.time_samples import FIELDS, KINDS, Kind
from paddler_trio.scheduler.metering.time_steps import STEPS, USAGE_KEPT_DAYS, Plan, plan_for
from paddler_trio.wire.codec import dumps

LEAST_RANGE_S: Final = 60
MOST_RANGE_S: Final = STEPS[-1].kept_s
DEFAULT_RANGE: Final = "1h"
MAX_PARAMETERS: Final = 8
CSV_COLUMNS: Final = tuple(field.name for field in attrs.fields(UsageRow) if field.name != "last_s")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is computed by programs for tables."""

T = TypeVar("T", bound=str)


@attrs.frozen(kw_only=True)
class MetricsRange:
    """The answer to a range; ``begin`` and ``end`` are seconds of Unix."""

    by: Kind
    begin: int
    end: int
    step_s: int
    fields: Sequence[str] = ("start_s", *FIELDS)
    series: Sequence[SeriesRows]
    problem: str


@attrs.frozen(kw_only=True)
class UsageTable:
    """The answer about usage; ``by_user``: users are told apart."""

    by: By
    per: Per
    begin: str
    end: str
    time_zone: str = "UTC"
    by_user: bool
    rows: Sequence[UsageRow]
    problem: str


@attrs.frozen(eq=False)
class HistoryRoutes:
    """The handlers of these routes."""

    keeper: HistoryKeeper
    unix_s: Callable[[], float] = time.time

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.http("GET", "/api/v2/metrics/range", self._range)
        routes.http("GET", "/api/v2/usage", self._usage)

    async def _range(self, exchange: Exchange, params: Params) -> None:
        query = _query(exchange, ("range", "from", "to", "by", "name"))
        kind: Kind = _one_of(query, "by", KINDS, "fleet")
        plan = self._plan(query)
        name = query.get("name")
        problem = self.keeper.problem  # here: it looks at a clock that threads have not

        def answer(file: HistoryFile) -> bytes:
            return dumps(
                attrs.asdict(
                    MetricsRange(
                        by=kind,
                        begin=plan.begin,
                        end=plan.end,
                        step_s=plan.shown_s,
                        series=series_of(file, plan, kind, name),
                        problem=problem,
                    )
                )
            )

        await send_json(exchange.send, 200, await self._read(exchange, answer))

    async def _usage(self, exchange: Exchange, params: Params) -> None:
        query = _query(exchange, ("by", "per", "month", "from", "to", "format"))
        by: By = _one_of(query, "by", get_args(By), "key")
        per: Per = _one_of(query, "per", get_args(Per), "month")
        as_csv = _one_of(query, "format", ("json", "csv"), "json") == "csv"
        days = self._days(query, per)
        problem = self.keeper.problem

        def answer(file: HistoryFile) -> bytes:
            rows = usage_of(file, days, by, per)
            if as_csv:
                return _csv(rows)
            return dumps(
                attrs.asdict(
                    UsageTable(
                        by=by,
                        per=per,
                        begin=day_text(days.start),
                        end=day_text(days.stop - 1),
                        by_user=USER_NAMES.is_kept,
                        rows=rows,
                        problem=problem,
                    )
                )
            )

        found = await self._read(exchange, answer)
        if as_csv:
            name = f"usage-{day_text(days.start)}-{day_text(days.stop - 1)}.csv".encode()
            attached = [(b"content-disposition", b'attachment; filename="%b"' % name)]
            kind = b"text/csv; charset=utf-8"
            await send_bytes(exchange.send, 200, found, content_type=kind, headers=attached)
        else:
            await send_json(exchange.send, 200, found)

    # ------------------------------------------------------------- private

    async def _read(self, exchange: Exchange, query: Callable[[HistoryFile], bytes]) -> bytes:
        try:
            return await while_connected(exchange, partial(self.keeper.read, query))
        except HistoryError as error:
            raise HttpProblem(503, f"the history cannot be read: {error}") from error

    def _plan(self, query: Mapping[str, str]) -> Plan:
        now = int(self.unix_s())
        if "from" in query or "to" in query:
            if "range" in query:
                raise HttpProblem(400, "give range, or from and to, not both")
            end = min(_moment(query["to"], "to"), now) if "to" in query else now
            if "from" not in query:
                raise HttpProblem(400, "from is missing: give from and to, or range")
            begin = _moment(query["from"], "from")
        else:
            end, begin = now, now - _length(query.get("range", DEFAULT_RANGE))
        if not LEAST_RANGE_S <= end - begin <= MOST_RANGE_S:
            raise HttpProblem(
                400,
                f"the range is {end - begin} s long, must be from {LEAST_RANGE_S} to "
                f"{MOST_RANGE_S} s, and end by now",
            )
        return plan_for(max(0, begin), end + 1, now)

    def _days(self, query: Mapping[str, str], per: Per) -> range:
        today = day_of(self.unix_s())
        if "month" in query:
            if "from" in query or "to" in query:
                raise HttpProblem(400, "give month, or from and to, not both")
            month = month_from(query["month"])
            if month is None:
                shown = query["month"][:40]
                raise HttpProblem(400, f"month is {shown!r}, must be one such as 2026-11")
            return days_of_month(month)
        if "from" not in query and "to" not in query:
            if per == "day":
                return days_of_month(month_of(today))
            return range(max(0, today - USAGE_KEPT_DAYS), today + 2)
        begin = _day(query, "from", max(0, today - USAGE_KEPT_DAYS))
        end = _day(query, "to", today)
        if begin > end:
            raise HttpProblem(400, f"from is {day_text(begin)}, which is after {day_text(end)}")
        return range(begin, end + 1)


def _query(exchange: Exchange, names: Sequence[str]) -> dict[str, str]:
    known = ", ".join(names)
    try:
        text = exchange.query.decode("latin-1")
        found = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise HttpProblem(400, f"more than {MAX_PARAMETERS} parameters: use {known}") from error
    for name in found:
        if name not in names:
            raise HttpProblem(400, f"{name[:40]!r} is no parameter: use {known}")
    return {name: values[-1] for name, values in found.items()}


def _one_of(query: Mapping[str, str], name: str, words: Iterable[T], default: T) -> T:
    given = query.get(name, default)
    for word in words:
        if given == word:
            return word
    raise HttpProblem(400, f"{name} is {given[:40]!r}, must be one of {', '.join(words)}")


def _length(text: str) -> int:
    try:
        return duration_s(text, "range")
    except ConfigurationError as error:
        raise HttpProblem(400, str(error)) from error


def _moment(text: str, name: str) -> int:
    """Read RFC 3339, or seconds of Unix."""
    if text.isascii() and text.isdecimal() and len(text) <= 11:
        return int(text)
    try:
        return int(check_expires(text, name).astimezone(UTC).timestamp())
    except ConfigurationError as error:
        raise HttpProblem(400, f"{error}, or seconds of Unix") from error


def _day(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    day = default if text is None else day_from(text)
    if day is None:
        shown = (text or "")[:40]
        raise HttpProblem(400, f"{name} is {shown!r}, must be a day such as 2026-11-29")
    return day


def _csv(rows: Iterable[UsageRow]) -> bytes:
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\r\n")
    table.writerow((*CSV_COLUMNS, "last"))
    for row in rows:
        last = datetime.fromtimestamp(row.last_s, UTC).isoformat().replace("+00:00", "Z")
        table.writerow([*(_cell(getattr(row, name)) for name in CSV_COLUMNS), last])
    return buffer.getvalue().encode()


def _cell(value: object) -> object:
    """Names are strangers': one that a program would compute is marked as text."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
