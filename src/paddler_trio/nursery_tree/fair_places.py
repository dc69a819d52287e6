"""A bounded number of places, given to waiting clients in turns.

No client holds more than its share, so that one that sends much, or dear things, leaves places to
the others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey


@attrs.frozen(eq=False)
class _Waiting:
    place: Place
    client: str
    granted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def tag(self) -> int:
        """Its turn."""
        return self.place[0] - Priority.NORMAL.value


@attrs.define(eq=False)
class FairPlaces:
    """See the module docstring.

    Args:
      limit: places in all.
      share: places that one client may hold at a time.
    """

    limit: int
    share: int
    _held: Counter[str] = attrs.field(factory=Counter, init=False)
    _num_held: int = attrs.field(default=0, init=False)
    _waiting: dict[str, dict[_Waiting, None]] = attrs.field(factory=dict, init=False)
    """Of each client, in the order of their turns; a client that waits for nothing is not there."""
    _order: FairOrder = attrs.field(factory=FairOrder, init=False)
    _numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    @asynccontextmanager
    async def held_by(self, client: str) -> AsyncIterator[None]:
        """Hold a place for ``client`` within the block; waits for it.

        Cancellation: nothing is held.
        """
        key = RequestKey(next(self._numbers))
        place = self._order.place(key, client=client, priority=Priority.NORMAL)
        own = _Waiting(place, client)
        self._waiting.setdefault(client, {})[own] = None
        self._grant()
        try:
            await own.granted.wait()
            yield
        finally:
            if own.granted.is_set():
                self._num_held -= 1
                self._held[client] -= 1
                if not self._held[client]:
                    del self._held[client]
            else:
                self._remove(own)
                last = next(reversed(self._waiting.get(client, {})), None)
                self._order.gave_up(client, None if last is None else last.tag)
            self._grant()

    def _grant(self) -> None:
        while self._num_held < self.limit:
            eligible = [
                next(iter(waiting))
                for client, waiting in self._waiting.items()
                if self._held[client] < self.share
            ]
            if not eligible:
                return
            first = min(eligible, key=lambda each: each.place)
            self._remove(first)
            self._order.granted(first.place, Priority.NORMAL)
            self._num_held += 1
            self._held[first.client] += 1
            first.granted.set()

    def _remove(self, own: _Waiting) -> None:
        waiting = self._waiting[own.client]
        del waiting[own]
        if not waiting:
            del self._waiting[own.client]
