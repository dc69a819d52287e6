"""The feed's topic ``requests``: each request when it changed, and for a moment after its end.

Of a large number of requests the topic has those that changed last; the lanes of the agents have
them all. Token counts grow with every step, so they alone are no change: they are shown once a
second, as long as few requests are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Final

import attrs

from paddler_trio.balancer.activity.feed_document import Change
from paddler_trio.balancer.activity.feed_topic import shown
from paddler_trio.balancer.activity.request_activity import RequestActivity, Touched
from paddler_trio.balancer.activity.request_record import RequestRecord

MAX_SHOWN: Final = 2000
FEW: Final = 200
"""So many requests in flight have token counts once a second."""
TOKENS_S: Final = 1.0
ENDED_S: Final = 2.0
"""A request that ended is shown so long."""


@attrs.define(eq=False)
class RequestsTopic:
    """A :class:`~paddler_trio.balancer.activity.feed_topic.Topic`."""

    activity: RequestActivity
    max_shown: int = MAX_SHOWN
    name: str = attrs.field(default="requests", init=False)
    _tokens: dict[int, int] = attrs.field(factory=dict, init=False)
    """By request, how many were shown; those that changed last come last."""
    _ended: deque[tuple[float, int]] = attrs.field(factory=deque, init=False)
    """When to drop which, in order."""
    _tokens_due_s: float = attrs.field(default=0.0, init=False)
    _subscription: ExitStack = attrs.field(factory=ExitStack, init=False)
    _touched: Touched = attrs.field(factory=Touched, init=False)

    def open(self) -> None:
        self.close()
        self._touched = self._subscription.enter_context(self.activity.subscribe())
        for record in reversed(
            list(islice(reversed(self.activity.in_flight.values()), self.max_shown))
        ):
            self._touched.add(record)

    def look(self, now_s: float) -> Iterator[Change | None]:
        changed = self._touched.take()
        if now_s >= self._tokens_due_s:
            self._tokens_due_s = now_s + TOKENS_S
            changed += self._with_more_tokens()
        for record in changed[: -self.max_shown]:  # more than can be shown
            if self._tokens.pop(record.key, None) is not None:
                yield str(record.key), None
        for record in changed[-self.max_shown :]:
            self._tokens.pop(record.key, None)
            self._tokens[record.key] = record.tokens
            if record.ended_s is not None:
                self._ended.append((now_s + ENDED_S, record.key))
            yield str(record.key), shown(_shown(record, now_s))
        while self._ended and self._ended[0][0] <= now_s:
            _, key = self._ended.popleft()
            if self._tokens.pop(key, None) is not None:
                yield str(key), None
        while len(self._tokens) > self.max_shown:
            key = next(iter(self._tokens))
            del self._tokens[key]
            yield str(key), None

    def close(self) -> None:
        self._subscription.close()
        self._touched = Touched()
        self._tokens = {}
        self._ended = deque()
        self._tokens_due_s = 0.0

    def _with_more_tokens(self) -> list[RequestRecord]:
        in_flight = self.activity.in_flight
        if len(in_flight) >= FEW:
            return []
        return [
            record
            for record in in_flight.values()
            if self._tokens.get(record.key, record.tokens) != record.tokens
        ]


def _shown(record: RequestRecord, now_s: float) -> dict[str, object]:
    view = record.view(now_s, brief=True)
    del view["progress"], view["capture"]
    return view
