"""What has arrived for one application call and was not read yet.

The connection's reader puts messages in; the application takes them out. The inbox is bounded in
messages and in bytes, so that a slow application makes the reader wait, the kernel's buffer fill
and the client wait in turn. It differs from a channel in three ways that matter at the end:

* the end (a disconnect) needs no room: it is told even when the inbox is full;
* after the end, and after the application has returned, whatever is still put in is dropped, so
  the reader can never be stuck on an application that stopped listening;
* everything put in before the end is read before the end, and the end is read any number of times.
"""

from __future__ import annotations

from collections import deque

import trio

from paddler_trio.http.asgi import Message

MAX_MESSAGES = 16
"""Enough that a reader and an application never meet in lockstep; bytes bound the large ones."""


class AppInbox:
    """A bounded queue of ASGI messages with an end.

    Args:
      max_bytes: payload held at most; one message larger than this passes alone.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._messages: deque[tuple[Message, int]] = deque()
        self._end: Message | None = None
        self._dropping = False
        self._writers = trio.lowlevel.ParkingLot()
        self._readers = trio.lowlevel.ParkingLot()

    async def put(self, message: Message) -> None:
        """Add ``message`` when there is room; a disconnect ends the inbox at once instead."""
        if message["type"].endswith(".disconnect"):
            self.end(message)
            return
        size_bytes = _payload_bytes(message)
        while not (self._dropping or self._has_room(size_bytes)):
            await self._writers.park()
        if not self._dropping:
            self._messages.append((message, size_bytes))
            self._held_bytes += size_bytes
            self._readers.unpark()

    async def receive(self) -> Message:
        """Return the next message, or the disconnect once everything before it was read."""
        await trio.lowlevel.checkpoint()
        while not self._messages:
            if self._end is not None:
                return dict(self._end)
            await self._readers.park()
        message, size_bytes = self._messages.popleft()
        self._held_bytes -= size_bytes
        self._writers.unpark()
        return message

    def end(self, message: Message) -> None:
        """Let ``message``, a disconnect, be the last; only the first end counts."""
        if self._end is None:
            self._end = message
            self._dropping = True
            self._writers.unpark_all()
            self._readers.unpark_all()

    def discard(self) -> None:
        """The application has returned: let go of what it left."""
        self._dropping = True
        self._messages.clear()
        self._held_bytes = 0
        self._writers.unpark_all()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._messages:
            return True
        fits = self._held_bytes + size_bytes <= self._max_bytes
        return fits and len(self._messages) < MAX_MESSAGES


def _payload_bytes(message: Message) -> int:
    payload = message.get("body") or message.get("bytes") or message.get("text") or b""
    return len(payload)
