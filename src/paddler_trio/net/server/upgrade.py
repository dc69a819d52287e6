"""The bytes of another protocol that a client sends once its request was answered with 101.

Nothing here reads them. The connection's reader puts them in, whoever answered takes them out; a
side that does not take them makes the reader wait, and so the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

AHEAD_BYTES: Final = 65_536
"""Beyond these, the client is not read; one read more may be held."""


@attrs.define(eq=False)
class Upgrade:
    """See the module docstring."""

    is_switched: bool = attrs.field(default=False, init=False)
    """The request was answered with 101."""
    is_closed: bool = attrs.field(default=False, init=False)
    """By the client, on its side."""
    on_close: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Called in the step in which that is seen, perhaps more than once."""
    _pieces: deque[bytes] = attrs.field(factory=deque, init=False)
    _held_bytes: int = attrs.field(default=0, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _taken: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "switched" if self.is_switched else "asked for"
        return f"<Upgrade {state}, {self._held_bytes} bytes held>"

    def put(self, data: bytes) -> None:
        """Add what was read; after the end it is dropped."""
        if not self._has_ended:
            self._pieces.append(data)
            self._held_bytes += len(data)
            self._arrived.unpark_all()

    @property
    def is_full(self) -> bool:
        """`wait_room` has to come before more is read."""
        return self._held_bytes > AHEAD_BYTES and not self._has_ended

    async def wait_room(self) -> None:
        """Until what is held was taken, or nobody takes it any more."""
        while self.is_full:
            await self._taken.park()

    async def take(self) -> bytes:
        """Wait for all that is there; empty at the end, when everything before it was taken."""
        while not self._pieces:
            if self._has_ended:
                return b""
            await self._arrived.park()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        self._taken.unpark_all()
        return data

    def close(self) -> None:
        """The client has closed its side; what it sent before may not have been read yet."""
        self.is_closed = True
        if self.on_close is not None:
            self.on_close()

    def end(self) -> None:
        """Nothing comes any more, or nobody takes it. Safe to repeat."""
        self.close()
        self._has_ended = True
        self._arrived.unpark_all()
        self._taken.unpark_all()
