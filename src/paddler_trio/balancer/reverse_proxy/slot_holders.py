"""WebSockets that hold slots of servers, and which of them gives its slot up where others wait.

A WebSocket has no end of its own, so the fair queue alone would never come to the next client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.net.networks import household
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.nursery_tree.request import Buffered, Request
from paddler_trio.nursery_tree.request_endings import Failure

PATIENCE_S: Final = 1.0
"""The wait for a slot before a request asks for one that a WebSocket holds, and asks again."""
SILENCE_S: Final = 10.0
"""A WebSocket over which nothing but pings came for so long gives way to any other request."""
GAVE_WAY: Final = Failure(503, "Others wait, and this WebSocket was one of many or silent")


@attrs.define(eq=False)
class HeldSlot:
    """One WebSocket in a slot.

    Args:
      holder: the name of the API key, or the address, of IPv6 the household.
      give_up: ends it.
      heard_s: when something came last, either way.
    """

    pool: str
    holder: str
    give_up: Callable[[Failure], None]
    heard_s: float = attrs.field(factory=trio.current_time)

    def heard(self) -> None:
        """Note that something came, other than pings."""
        self.heard_s = trio.current_time()


@attrs.define(eq=False)
class SlotHolders:
    """All WebSockets of a balancer that hold slots."""

    _held: dict[HeldSlot, None] = attrs.field(factory=dict, init=False)

    async def turn(self, request: Request, exchange: Exchange, pool: str) -> None:
        """Wait until the request has a slot, or is over."""
        while True:
            with trio.move_on_after(PATIENCE_S):
                await request.left_phase(Buffered)
                return
            self.make_room(pool, exchange)

    @contextmanager
    def held(self, request: Request, exchange: Exchange, pool: str) -> Iterator[Callable[[], None]]:
        """Yield what notes that something came. A WebSocket counts here while the block lasts, and
        may have to give its slot up."""
        assert request.lease is not None
        progressed = request.lease.progressed
        if exchange.upgrade is None:
            yield progressed
            return
        held = HeldSlot(pool, holder_of(exchange), request.abort)

        def heard() -> None:
            held.heard()
            progressed()

        self._held[held] = None
        try:
            yield heard
        finally:
            del self._held[held]

    def make_room(self, pool: str, exchange: Exchange) -> None:
        """Have the one end that was silent longest, of those that have to give way to this request:
        of whom holds most, if that is at least two more than its own client holds; else of all that
        have been silent for ``SILENCE_S``."""
        held = [each for each in self._held if each.pool == pool]
        counts = Counter(each.holder for each in held)
        most = max(counts.values(), default=0)
        if most >= counts[holder_of(exchange)] + 2:
            held = [each for each in held if counts[each.holder] == most]
        else:
            long_ago_s = trio.current_time() - SILENCE_S
            held = [each for each in held if each.heard_s <= long_ago_s]
        if held:
            min(held, key=lambda each: each.heard_s).give_up(GAVE_WAY)


def holder_of(exchange: Exchange) -> str:
    """Return whose share it counts in: what anybody may say of himself counts for nothing."""
    return exchange.identity.key_name or household(exchange.client[0])
