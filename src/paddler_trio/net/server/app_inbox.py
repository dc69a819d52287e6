"""The messages that have arrived for one application call and were not received yet.

The connection's reader puts messages in; the application takes them out. The inbox is bounded in
messages and in bytes, so that a slow application makes the reader wait, the kernel's buffer fill
and the client wait in turn. It differs from a channel in three ways that matter at the end:

* the end (a disconnect) needs no room: it is delivered even when the inbox is full;
* after the end, and after the application has returned, further messages are dropped, so an
  application that has stopped reading cannot block the reader;
* every message put in before the end is received before it, and the end is received any number of
  times.

The input budget counts what it holds: a request's body until the request has ended, because it is
kept in one form or another as long, and a WebSocket message until the next one is received.

Connections that another process answers: the listener parses and authorises, then lets go.

On the paths of ``HttpServer(passes=...)`` the reader stops behind the head of a request: nothing of
a body is parsed or waited for until the application has answered, or has passed the connection on
with what was read and not parsed. Either way the connection ends here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from paddler_trio.net.server.asgi import HttpProblem, Message
from paddler_trio.net.server.input_budget import (
    HELD,
    BudgetSpentError,
    InputBudget,
    Reservation,
)

MAX_MESSAGES = 16
"""Enough that reader and application do not run in lockstep; bytes bound the large ones."""


class AppInbox:
    """A bounded queue of ASGI messages with an end.

    Args:
      max_bytes: payload held at most; one message larger than this passes alone.
      room: counts the bodies in it. Messages of a WebSocket were counted when they arrived, before
        they were whole.
    """

    def __init__(self, *, max_bytes: int, room: Reservation | None = None) -> None:
        self._max_bytes = max_bytes
        self._room = room or InputBudget().reservation()
        self._refusal: BudgetSpentError | None = None
        self._received_bytes = 0
        self._held_bytes = 0
        self._messages: deque[tuple[Message, int]] = deque()
        self._end: Message | None = None
        self._dropping = False
        self.on_end: Callable[[], None] | None = None
        """Called once, in the step in which the end comes."""
        self._writers = trio.lowlevel.ParkingLot()
        self._readers = trio.lowlevel.ParkingLot()

    async def put(self, message: Message) -> None:
        """Add ``message`` when there is room; a disconnect ends the inbox at once instead."""
        if message["type"].endswith(".disconnect"):
            self.end(message)
            return
        size_bytes = _payload_bytes(message)
        if message["type"] == "http.request" and not self._dropping:
            try:
                self._room.grow(size_bytes)
            except BudgetSpentError as refusal:
                self._refuse(refusal)
        if not size_bytes and self._ends_what_waits(message):
            return
        while not (self._dropping or self._has_room(size_bytes)):
            await self._writers.park()
        if not self._dropping:
            self._messages.append((message, size_bytes))
            self._held_bytes += size_bytes
            self._readers.unpark()

    def whole_body(self) -> bytes | None:
        """The body of a request that has come in one piece and was not received; None without."""
        if len(self._messages) != 1:
            return None
        message, size_bytes = self._messages[0]
        if message["type"] != "http.request" or message["more_body"]:
            return None
        self._messages.clear()
        self._held_bytes -= size_bytes
        self._writers.unpark()
        body: bytes = message["body"]
        return body

    async def receive(self) -> Message:
        """Return the next message, or the disconnect once everything before it was read.

        Errors:
          HttpProblem: 503, there is no room for the next piece of the body.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # others run after ``MAX_MESSAGES`` at most
        self._room.shrink(self._received_bytes)  # the message before was processed
        self._received_bytes = 0
        while not self._messages:
            if self._refusal is not None:
                retry_after = [(b"retry-after", b"%d" % self._refusal.retry_after_s)]
                raise HttpProblem(503, str(self._refusal), retry_after)
            if self._end is not None:
                await trio.lowlevel.checkpoint()  # somebody may ask again and again
                return dict(self._end)
            await self._readers.park()
        message, size_bytes = self._messages.popleft()
        self._held_bytes -= size_bytes
        self._received_bytes = message.get(HELD, 0)
        self._writers.unpark()
        return message

    def end(self, message: Message) -> None:
        """Let ``message``, a disconnect, be the last; only the first end counts."""
        if self._end is None:
            self._end = message
            self._dropping = True
            self._writers.unpark_all()
            self._readers.unpark_all()
            if self.on_end is not None:
                self.on_end()

    @property
    def has_ended(self) -> bool:
        """Nothing is put in any more."""
        return self._end is not None

    def discard(self) -> None:
        """The application has returned: drop the messages that it left."""
        self._dropping = True
        self._messages.clear()
        self._held_bytes = 0
        self._writers.unpark_all()

    def _refuse(self, refusal: BudgetSpentError) -> None:
        self._refusal = refusal
        self._dropping = True
        self._messages.clear()
        self._writers.unpark_all()
        self._readers.unpark_all()

    def _ends_what_waits(self, message: Message) -> bool:
        """Mark the waiting piece as the last of its body if ``message`` says so, and return whether
        it did. A request whose body came with its head is then one message.
        """
        if message["type"] != "http.request" or message.get("more_body") or not self._messages:
            return False
        last, _ = self._messages[-1]
        if last["type"] != "http.request":
            return False
        last["more_body"] = False
        return True

    def _has_room(self, size_bytes: int) -> bool:
        if not self._messages:
            return True
        fits = self._held_bytes + size_bytes <= self._max_bytes
        return fits and len(self._messages) < MAX_MESSAGES


def _payload_bytes(message: Message) -> int:
    payload = message.get("body") or message.get("bytes") or message.get("text") or b""
    return len(payload)


@attrs.frozen(eq=False)
class PassableConnection:
    """The connection of one request whose response has not begun.

    Args:
      fileno: of its socket, -1 once it is closed.
      unread: the bytes that arrived behind the head of the request.
      release: forget the socket without ending the connection; call it when another process holds
        a copy of the descriptor.
    """

    fileno: Callable[[], int]
    unread: Callable[[], bytes]
    release: Callable[[], None]
