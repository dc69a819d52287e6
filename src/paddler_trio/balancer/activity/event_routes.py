"""``GET /api/v2/events`` on the management port: the feed as server-sent events.

    GET /api/v2/events?topics=agents,requests      all topics without the parameter

The first event is full, or with a ``Last-Event-ID`` that the feed still remembers what was missed.
A comment follows every silence, so that a client can tell silence from a lost connection. The
stream ends with the balancer's goodbye. 400: a topic that there is not. 503: too many watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs

import attrs
import trio

from paddler_trio.balancer.activity.event_feed import EventFeed, TooManyWatchersError, Watcher
from paddler_trio.balancer.front.event_stream import KEEP_ALIVE_S
from paddler_trio.net.server import streaming
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.streaming import BodyWriter, body_writer, cancelled_on_disconnect

PIECE_BYTES: Final = 256 * 1024
"""Of an event, written at once: copying it takes a tenth of a millisecond."""
_KEEP_ALIVE = streaming.comment("keep-alive")
_RETRY_AFTER_S = 5


@attrs.define(eq=False)
class EventRoutes:
    """The handler of this route."""

    feed: EventFeed
    goodbye: trio.Event

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.stream("GET", "/api/v2/events", self._events)

    async def _events(self, exchange: Exchange, params: Params) -> None:
        topics = _wanted(exchange, self.feed.names)
        try:
            with self.feed.watch(topics) as watcher:
                last = exchange.header(b"last-event-id")
                if last is not None:
                    watcher.resume(last.decode("latin-1"))
                async with cancelled_on_disconnect(exchange) as nursery:
                    nursery.start_soon(self._end, nursery.cancel_scope, name="goodbye watch")
                    await exchange.send(
                        {"type": "http.response.start", "status": 200, "headers": streaming.HEADERS}
                    )
                    await _write_events(watcher, body_writer(exchange))
        except TooManyWatchersError as error:
            retry = (b"retry-after", b"%d" % _RETRY_AFTER_S)
            raise HttpProblem(503, str(error), [retry]) from error
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end(self, stream: trio.CancelScope) -> None:
        await self.goodbye.wait()
        stream.cancel(reason="balancer is shutting down")


async def _write_events(watcher: Watcher, write: BodyWriter) -> None:
    """Write events and comments until cancelled."""
    await write(_KEEP_ALIVE)  # the first look may take a moment
    while True:
        event = _KEEP_ALIVE
        with trio.move_on_after(KEEP_ALIVE_S):
            event = await watcher.next()
        for start in range(0, len(event), PIECE_BYTES):
            await write(event[start : start + PIECE_BYTES])


def _wanted(exchange: Exchange, names: Sequence[str]) -> Sequence[str]:
    """Return the topics of the query, all without one; HttpProblem 400."""
    query = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True)
    texts = query.pop("topics", None)
    if query:
        raise HttpProblem(400, f"unknown parameter {min(query)[:80]!r}: topics is taken")
    if texts is None:
        return names
    if len(texts) > 1:
        raise HttpProblem(400, "topics is given twice: write topics=a,b")
    topics: list[str] = texts[0].split(",", maxsplit=len(names))
    for topic in topics:
        if topic not in names:
            raise HttpProblem(400, f"topics: {topic[:80]!r} is none of {', '.join(names)}")
    return topics
