"""``/api/v2/requests`` and ``/api/v2/agents/history`` on the management port.

    GET     /api/v2/requests               newest first, filtered; JSON or CSV
    GET     /api/v2/requests/{key or id}   one, with an explanation
    DELETE  /api/v2/requests/{key}         cancels it: 204
    GET     /api/v2/agents/history         when agents came, left, and did what

A list is rendered and sent in pieces, so that no token waits for it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import parse_qs

import attrs
import structlog
import trio

from paddler_trio.balancer.activity.agent_history import AgentEvent
from paddler_trio.balancer.activity.finished_requests import MAX_FINISHED, PackedRecord
from paddler_trio.balancer.activity.moments import ms, utc_ms, utc_of
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.balancer.activity.request_words import explanation
from paddler_trio.net.server.asgi import (
    Header,
    HttpProblem,
    Send,
    send_empty,
    send_json,
)
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.request import MAX_LOG_ID_CHARS
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.truth.request_truth import CANCELLED_CODE, ENDINGS
from paddler_trio.wire.codec import dumps

log = structlog.get_logger("requests")

MAX_LIMIT: Final = 1000
MAX_EXPORT: Final = 20_000
"""Of a CSV file: all that are kept, and those in flight."""
PIECE: Final = 25
"""Records, or events of agents, that are rendered between two checkpoints: less than half a
millisecond."""
SORTED: Final = 1000
"""Records that are sorted between two checkpoints."""
PART: Final = 100
"""Records that are looked at between two checkpoints."""
CANCELLED: Final = Failure(CANCELLED_CODE, "An operator cancelled this request")
STATES: Final = ("in_flight", "finished", "all")
FORMATS: Final = ("json", "csv")
COLUMNS: Final = (
    "key",
    "id",
    "client",
    "deployment",
    "kind",
    "route",
    "phase",
    "arrived",
    "arrived_ms",
    "waited_ms",
    "first_result_ms",
    "ended_ms",
    "tokens",
    "prompt_tokens",
    "cached_tokens",
    "agents",
    "continuations",
    "ending",
    "code",
    "text",
    "finish",
    "why",
    "trace",
    "source",
    "preset",
)


@attrs.frozen(kw_only=True)
class Filter:
    """Say which records a list has; None: any."""

    state: str = "all"
    limit: int = 100
    before: int | None = None
    since_s: float | None = None
    deployment: str | None = None
    client: str | None = None
    agent: str | None = None
    ending: str | None = None
    as_csv: bool = False

    @classmethod
    def read(cls, exchange: Exchange) -> Filter:
        """Read the filter from the query; HttpProblem 400 names what is wrong with it."""
        query = {name: values[-1] for name, values in _query(exchange).items()}
        unknown = sorted(set(query) - _PARAMETERS)
        if unknown:
            raise HttpProblem(
                400, f"{unknown[0][:40]!r} is no parameter: use {', '.join(sorted(_PARAMETERS))}"
            )
        as_csv = _one_of(query, "format", FORMATS, "json") == "csv"
        since_ms = _number(query, "since_ms", 2**53, least=0)
        limit = _number(query, "limit", MAX_EXPORT if as_csv else MAX_LIMIT)
        default = MAX_EXPORT if as_csv else 100
        return cls(
            state=_one_of(query, "state", STATES, "all") or "all",
            limit=default if limit is None else limit,
            before=_number(query, "before", 2**63),
            since_s=None if since_ms is None else since_ms / 1000,
            deployment=query.get("deployment"),
            client=query.get("client"),
            agent=query.get("agent"),
            ending=_one_of(query, "ending", ENDINGS, None),
            as_csv=as_csv,
        )

    def admits(self, record: RequestRecord) -> bool:
        """Whatever its key is."""
        return (
            (self.deployment is None or record.deployment == self.deployment)
            and (self.client is None or self.client in (record.client, record.source))
            and (self.agent is None or self.agent in record.agents)
            and (self.ending is None or record.ending_kind == self.ending)
            and (self.since_s is None or record.ended_s is None or record.ended_s >= self.since_s)
        )


@attrs.frozen(eq=False)
class RequestRoutes:
    """The handlers of these routes."""

    activity: RequestActivity

    def add_to(self, routes: Router) -> None:
        """Answer these paths too."""
        routes.stream("GET", "/api/v2/requests", self._list)
        routes.http("GET", "/api/v2/requests/{name}", self._show)
        routes.http("DELETE", "/api/v2/requests/{name}", self._cancel)
        routes.stream("GET", "/api/v2/agents/history", self._history)

    async def _list(self, exchange: Exchange, params: Params) -> None:
        wanted = Filter.read(exchange)
        found = await self._found(wanted)
        if wanted.as_csv:
            await _send_pieces(exchange.send, _CSV_HEADERS, _csv(found))
            return
        now_s = trio.current_time()
        head = {"now_ms": ms(now_s), "time": utc_ms()}
        more = found[-1].key if len(found) == wanted.limit else None
        await _send_pieces(exchange.send, _JSON_HEADERS, _json(head, found, more, now_s))

    async def _show(self, exchange: Exchange, params: Params) -> None:
        record = self._record(params["name"])
        now_s = trio.current_time()
        await send_json(
            exchange.send,
            200,
            {
                "now_ms": ms(now_s),
                "time": utc_ms(),
                "request": record.view(now_s),
                "explanation": explanation(record, now_s),
            },
        )

    async def _cancel(self, exchange: Exchange, params: Params) -> None:
        record = self._record(params["name"])
        request = self.activity.request(record.key)
        if request is None or request.is_over:
            raise HttpProblem(409, f"request {record.key} is over already")
        log.info(
            "cancelled by an operator",
            request=record.id[:MAX_LOG_ID_CHARS],
            trace=record.trace,
            key=record.key,
        )
        request.abort(CANCELLED)
        exchange.audit.record(exchange, "request cancelled", str(record.key), request=record.id)
        await send_empty(exchange.send, 204)

    async def _history(self, exchange: Exchange, params: Params) -> None:
        query = {name: values[-1] for name, values in _query(exchange).items()}
        since_ms = _number(query, "since_ms", 2**53, least=0) or 0
        events = list(self.activity.agents.since(since_ms / 1000))
        head = {"now_ms": ms(trio.current_time()), "time": utc_ms()}
        await _send_pieces(exchange.send, _JSON_HEADERS, _events_json(head, events))

    # ------------------------------------------------------------- private

    def _record(self, name: str) -> RequestRecord:
        record = self.activity.find(name)
        if record is None:
            raise HttpProblem(
                404,
                f"there is no request {name[:80]!r} in flight or among the last "
                f"{MAX_FINISHED} that ended",
            )
        return record

    async def _found(self, wanted: Filter) -> list[RequestRecord]:
        """Return the newest that are wanted, by the time of their arrival."""
        activity = self.activity
        flying = list(reversed(activity.in_flight.values())) if wanted.state != "finished" else []
        ended = activity.finished.packed() if wanted.state != "in_flight" else []
        runs: list[list[_Entry]] = [[*flying]]
        for start in range(0, len(ended), SORTED):
            runs.append(sorted(ended[start : start + SORTED], key=_key, reverse=True))
            await trio.lowlevel.checkpoint()
        entries = merge(*runs, key=_key, reverse=True)
        found: list[RequestRecord] = []
        while len(found) < wanted.limit and (part := list(islice(entries, PART))):
            for entry in part:
                if wanted.before is not None and _key(entry) >= wanted.before:
                    continue
                if not isinstance(entry, RequestRecord):
                    entry = activity.finished.unpack(entry)
                if wanted.admits(entry):
                    found.append(entry)
            await trio.lowlevel.checkpoint()
        return found[: wanted.limit]


_Entry: TypeAlias = "RequestRecord | PackedRecord"


def _key(entry: _Entry) -> int:
    return entry.key if isinstance(entry, RequestRecord) else entry[0]


# ------------------------------------------------------------------------------ parameters

_PARAMETERS: Final = frozenset(
    {
        "state",
        "limit",
        "before",
        "since_ms",
        "deployment",
        "client",
        "agent",
        "ending",
        "format",
    }
)


def _query(exchange: Exchange) -> dict[str, list[str]]:
    try:
        return parse_qs(exchange.query.decode(), max_num_fields=20)
    except ValueError as error:
        raise HttpProblem(400, f"the query cannot be read: {error}") from error


def _number(query: Mapping[str, str], name: str, most: int, *, least: int = 1) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise HttpProblem(400, f"{name} is {text[:40]!r}, must be a number from {least} to {most}")
    return int(text)


def _one_of(
    query: Mapping[str, str], name: str, values: tuple[str, ...], default: str | None
) -> str | None:
    value = query.get(name, default)
    if value is not None and value not in values:
        raise HttpProblem(400, f"{name} is {value[:40]!r}, must be {', '.join(values)}")
    return value


# ------------------------------------------------------------------------------- rendering

_JSON_HEADERS: Final[list[Header]] = [(b"content-type", b"application/json")]
_CSV_HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/csv; charset=utf-8"),
    (b"content-disposition", b'attachment; filename="requests.csv"'),
]


async def _send_pieces(send: Send, headers: list[Header], pieces: Iterator[bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await trio.lowlevel.checkpoint()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _json(
    head: Mapping[str, object], records: list[RequestRecord], more: int | None, now_s: float
) -> Iterator[bytes]:
    yield dumps(head)[:-1] + b',"requests":['
    for start in range(0, len(records), PIECE):
        texts = [dumps(record.view(now_s)) for record in records[start : start + PIECE]]
        yield (b"," if start else b"") + b",".join(texts)
    yield b'],"next":' + dumps(more) + b"}"


def _events_json(head: Mapping[str, object], events: list[AgentEvent]) -> Iterator[bytes]:
    yield dumps(head)[:-1] + b',"events":['
    for start in range(0, len(events), PIECE):
        texts = [dumps(event.view()) for event in events[start : start + PIECE]]
        yield (b"," if start else b"") + b",".join(texts)
    yield b"]}"


def _csv(records: list[RequestRecord]) -> Iterator[bytes]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for start in range(0, len(records), PIECE):
        writer.writerows(_row(record) for record in records[start : start + PIECE])
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue().encode()


def _row(record: RequestRecord) -> list[object]:
    last = record.placements[-1] if record.placements else None
    facts = record.ending_facts
    waited_s = sum(stay.until_s - stay.since_s for stay in record.stays if stay.until_s)
    return [
        record.key,
        _cell(record.id),
        _cell(record.client),
        _cell(record.deployment),
        record.kind,
        _cell(record.route or ""),
        record.phase,
        utc_of(record.arrived_s),
        ms(record.arrived_s),
        ms(waited_s),
        "" if record.first_s is None else ms(record.first_s),
        "" if record.ended_s is None else ms(record.ended_s),
        record.tokens,
        "" if last is None or last.prompt_tokens is None else last.prompt_tokens,
        "" if last is None or last.cached_tokens is None else last.cached_tokens,
        _cell(" ".join(record.agents)),
        record.continuations,
        "" if facts is None else facts.kind,
        "" if facts is None or facts.code is None else facts.code,
        "" if facts is None else _cell(facts.text),
        record.finish or "",
        "" if last is None else last.why,
        record.trace or "",
        _cell(record.source),
        _cell(record.preset),
    ]


def _cell(text: str) -> str:
    """A spreadsheet takes a text that begins so for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
