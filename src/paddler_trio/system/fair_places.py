"""A bounded number of places, given to waiting clients in turns.

No client holds more than its share, so that one that sends much, or dear things, leaves places to
the others.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs
import trio

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.scheduler.dispatch.sorted_places import SortedPlaces

_Turn: TypeAlias = "tuple[Place, str]"
"""The turn of the first that waits of a client, and whose it is."""


@attrs.frozen(eq=False)
class _Waiting:
    place: Place
    client: str
    granted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def tag(self) -> float:
        """The number of its turn."""
        return self.place[0] - Priority.NORMAL.value


@attrs.define(eq=False)
class FairPlaces:
    """See the module docstring. A place costs the same among 10 clients that wait as among 10,000.

    Args:
      limit: places in all.
      share: places that one client may hold at a time.
    """

    limit: int
    share: int
    _held: Counter[str] = attrs.field(factory=Counter, init=False)
    _num_held: int = attrs.field(default=0, init=False)
    _waiting: dict[str, OrderedDict[_Waiting, None]] = attrs.field(factory=dict, init=False)
    """Those that wait of each client, in the order of their turns; a client that waits for nothing
    is not there."""
    _next: dict[str, _Turn] = attrs.field(factory=dict, init=False)
    """The turn of each client that waits and holds less than its share."""
    _turns: SortedPlaces[_Turn] = attrs.field(factory=SortedPlaces, init=False)
    """The same turns in order."""
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
        self._waiting.setdefault(client, OrderedDict())[own] = None
        self._set_turn(client)
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
                self._order.gave_up(client, own.tag, None if last is None else last.tag)
            self._set_turn(client)
            self._grant()

    def _grant(self) -> None:
        while self._num_held < self.limit and self._turns:
            place, client = self._turns.first
            first = next(iter(self._waiting[client]))
            self._remove(first)
            self._order.granted(place, Priority.NORMAL)
            self._num_held += 1
            self._held[client] += 1
            self._set_turn(client)
            first.granted.set()

    def _remove(self, own: _Waiting) -> None:
        waiting = self._waiting[own.client]
        del waiting[own]
        if not waiting:
            del self._waiting[own.client]

    def _set_turn(self, client: str) -> None:
        """Note that what waits of ``client``, or what it holds, is another now."""
        before = self._next.pop(client, None)
        if before is not None:
            self._turns.remove(before)
        waiting = self._waiting.get(client)
        if waiting and self._held[client] < self.share:
            turn = self._next[client] = next(iter(waiting)).place, client
            self._turns.add(turn)
