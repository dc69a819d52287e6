"""While another process takes over, changes of the state are refused: they would be lost.

It takes the moment in which the other one reads the state. What a client changes is stored before
it is answered, so waiting for the requests that run is waiting for what they write. One whose body
has not come whole writes nothing yet, and may take a minute to come: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from paddler_trio.net.server.asgi import Message, Send, send_text
from paddler_trio.net.server.exchange import App, Exchange

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LONG: Final = "/api/v2/models/"
"""Commands to agents about their caches: they change nothing here, and take hours."""
HELD: Final = "another process takes over from this balancer: send it again in a second"
"""Text of the 503."""


@attrs.define(eq=False)
class HeldChanges:
    """Hold back what operators and joining agents ask for while another balancer takes over."""

    _is_held: bool = attrs.field(default=False, init=False)
    _running: int = attrs.field(default=0, init=False)
    _arriving: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    """Of those that wait for more of their bodies."""
    _none_runs: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def before(self, app: App, may_change: Callable[[Exchange], bool]) -> App:
        """Return the application, without its changes while they are held.

        Args:
          may_change: whether a request that is not a GET changes anything.
        """

        async def guarded(exchange: Exchange) -> None:
            if not exchange.is_http or not _is_change(exchange) or not may_change(exchange):
                await app(exchange)
            elif self._is_held:
                await _refuse(exchange.send)
            else:
                await self._count(app, exchange)

        return guarded

    async def hold(self) -> None:
        """Refuse changes from now on; returns when none runs any more."""
        self._is_held = True
        for arriving in self._arriving:
            arriving.cancel(reason=HELD)
        while self._running:
            await self._none_runs.park()

    def resume(self) -> None:
        """Let changes in again."""
        self._is_held = False

    async def _count(self, app: App, exchange: Exchange) -> None:
        change = trio.CancelScope()
        is_whole = not _has_body(exchange)
        receive, send = exchange.receive, exchange.send
        has_begun = False

        async def receive_body() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            self._arriving.add(change)
            try:
                if self._is_held:
                    change.cancel(reason=HELD)
                    await trio.lowlevel.checkpoint_if_cancelled()
                message = await receive()
            finally:
                self._arriving.discard(change)
            is_whole = not message.get("more_body", False)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self._running += 1
        try:
            with change:
                exchange.receive, exchange.send = receive_body, send_noted
                await app(exchange)
        finally:
            self._running -= 1
            if self._running == 0:
                self._none_runs.unpark_all()
        if change.cancelled_caught and not has_begun:
            await _refuse(send)


async def _refuse(send: Send) -> None:
    headers = [(b"retry-after", b"1"), (b"connection", b"close")]
    await send_text(send, 503, HELD, headers=headers)


def _has_body(exchange: Exchange) -> bool:
    length = exchange.header(b"content-length")
    return exchange.header(b"transfer-encoding") is not None or length not in (None, b"0")


def _is_change(exchange: Exchange) -> bool:
    return exchange.method not in _HARMLESS and not exchange.path.startswith(_LONG)
