"""Who is prepared when: requests that an agent may have died of take turns, and say so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from paddler_trio.wire.trio.request_frames import RequestFrame


class Announced(Protocol):
    """Where a turn is announced: the link that the request came in on."""

    def acknowledge(self, wire_id: str) -> None: ...

    async def sent(self) -> None: ...


@attrs.define(eq=False)
class PreparationTurns:
    """Of this agent, whatever is prepared."""

    _one: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @asynccontextmanager
    async def turn(self, frame: RequestFrame, reply: Announced) -> AsyncIterator[None]:
        """Prepare the request inside of the block. If an agent may have died of it, the balancer
        hears before that its turn has come, so that if we die too it knows of what."""
        if frame.isolated != "agent":
            yield
            return
        async with self._one:
            reply.acknowledge(frame.id)
            await reply.sent()
            yield
