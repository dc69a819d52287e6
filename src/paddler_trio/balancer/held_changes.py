"""While another process takes over, changes of the state are refused: they would be lost.

It takes the moment in which the other one reads the state. What a client changes is stored before
it is answered, so waiting for the requests that run is waiting for what they write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from paddler_trio.http.asgi import App, Receive, Scope, Send, send_text

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LONG: Final = "/api/v2/models/"
"""Commands to agents about their caches: they change nothing here, and take hours."""
HELD: Final = "another process takes over from this balancer: send it again in a second"
"""Text of the 503."""


@attrs.define(eq=False)
class HeldChanges:
    """In front of what operators and joining agents ask for."""

    _is_held: bool = attrs.field(default=False, init=False)
    _running: int = attrs.field(default=0, init=False)
    _none_runs: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def before(self, app: App, may_change: Callable[[Scope], bool]) -> App:
        """The application, without its changes while they are held.

        Args:
          may_change: whether a request that is not a GET changes anything.
        """

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not _is_change(scope) or not may_change(scope):
                await app(scope, receive, send)
            elif self._is_held:
                headers = [(b"retry-after", b"1"), (b"connection", b"close")]
                await send_text(send, 503, HELD, headers=headers)
            else:
                await self._count(app, scope, receive, send)

        return guarded

    async def hold(self) -> None:
        """Refuse changes from now on; returns when none runs any more."""
        self._is_held = True
        while self._running:
            await self._none_runs.park()

    def resume(self) -> None:
        """Let changes in again."""
        self._is_held = False

    async def _count(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        self._running += 1
        try:
            await app(scope, receive, send)
        finally:
            self._running -= 1
            if self._running == 0:
                self._none_runs.unpark_all()


def _is_change(scope: Scope) -> bool:
    return scope["method"] not in _HARMLESS and not scope["path"].startswith(_LONG)
