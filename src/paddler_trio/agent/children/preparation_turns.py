"""Requests that may have crashed an agent are prepared one at a time, and announced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from paddler_trio.wire.trio.request_frame import RequestFrame


class TurnReply(Protocol):
    """The connection that a request came in on, where its turn is announced."""

    def acknowledge(self, wire_id: str) -> None: ...

    async def sent(self) -> None: ...


@attrs.define(eq=False)
class PreparationTurns:
    """One for all requests of an agent."""

    _one: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @asynccontextmanager
    async def turn(self, frame: RequestFrame, reply: TurnReply) -> AsyncIterator[None]:
        """Prepare the request inside of the block. If it may have crashed an agent, its turn is
        announced to the balancer first: if this agent crashes too, the balancer knows the cause."""
        if frame.isolated != "agent":
            yield
            return
        async with self._one:
            reply.acknowledge(frame.id)
            await reply.sent()
            yield
