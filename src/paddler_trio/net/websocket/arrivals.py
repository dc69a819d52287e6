"""The time of a WebSocket's last arrival, which tells the peer's silence from our own stall."""

from __future__ import annotations

from typing import Protocol

import attrs

from paddler_trio.net.websocket.bounded_websocket import BoundedWebSocket


class _Reader(Protocol):
    def has_unread(self) -> bool: ...


@attrs.frozen(eq=False)
class Arrivals:
    """The messages that have come from the other end of one WebSocket."""

    _socket: BoundedWebSocket
    _reader: _Reader

    @property
    def last_s(self) -> float:
        """Return when the last piece of a message was read, on Trio's clock; pongs do not count."""
        return self._socket.last_arrival_s

    def has_unread(self) -> bool:
        """Return whether more has arrived since and waits to be read."""
        return self._reader.has_unread()
