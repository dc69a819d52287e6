"""A connection as an ASGI application sees it: bounded both ways, with honest ends.

What the application sends waits in a bounded queue, the kernel's buffer; a write is shielded, may
take ``write_timeout_s``, and after a failed one the connection is gone. Sending to a peer that has
gone is not an error, and a disconnect is told any number of times: as the real server does it.

Every message the application sends is checked against the order that ASGI allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import trio

from paddler_trio.net.server.asgi import ClientGoneError, Message
from paddler_trio.net.server.exchange import App, Exchange

INBOX_MESSAGES = 16


CURRENT: ContextVar[Wire] = ContextVar("CURRENT")
"""The connection whose application call is running."""


class ProtocolBreach(BaseException):  # no handler may catch it
    """The application sent what ASGI forbids at this point."""


@attrs.frozen
class Heard:
    """A message from the balancer, and when it was sent."""

    message: Mapping[str, Any]
    sent_s: float


@attrs.define(eq=False)
class Wire:
    """One connection between a simulated peer and an application call.

    Args:
      scope: the ASGI scope.
      kernel_messages: how many messages wait for a peer that does not read.
      is_direct: pieces of a response may go past ASGI, as far as the kernel takes them at once.
    """

    scope: dict[str, Any]
    kernel_messages: int
    write_timeout_s: float
    is_direct: bool = False
    gone: bool = attrs.field(default=False, init=False)
    """Nothing more is delivered to the peer."""
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The application call has returned."""
    finished_at_s: float = attrs.field(default=math.inf, init=False)
    doom: str | None = attrs.field(default=None, init=False)
    """What the peer did for which it may be disconnected."""
    told_disconnect_at_s: float | None = attrs.field(default=None, init=False)
    last_delivered_s: float = attrs.field(factory=trio.current_time, init=False)
    """When the application last took a message."""
    _phase: str = attrs.field(default="new", init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _tell: trio.MemorySendChannel[Message] = attrs.field(init=False)
    _told: trio.MemoryReceiveChannel[Message] = attrs.field(init=False)
    _write: trio.MemorySendChannel[Heard] = attrs.field(init=False)
    _written: trio.MemoryReceiveChannel[Heard] = attrs.field(init=False)

    _unsent: bytes = attrs.field(default=b"", init=False)
    """Of the response, what the kernel did not take at once."""

    def __attrs_post_init__(self) -> None:
        self._tell, self._told = trio.open_memory_channel[Message](INBOX_MESSAGES)
        self._write, self._written = trio.open_memory_channel[Heard](self.kernel_messages)

    @property
    def finished(self) -> bool:
        return self.done.is_set()

    # --------------------------------------------------------- the application's side

    async def run(self, app: App) -> None:
        """The application call, from its start to its return."""
        CURRENT.set(self)
        exchange = Exchange(self.scope, self.receive, self.send)
        if self.is_direct:
            exchange.open_body = self._direct_body
        try:
            await app(exchange)
            if self.scope["type"] == "http" and not self.gone and self._phase != "ended":
                raise ProtocolBreach(
                    f"{self.scope['path']} returned with the response {self._phase}"
                )
        finally:
            self.finished_at_s = trio.current_time()
            self.done.set()
            self._told.close()
            self._write.close()

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        try:
            message = await self._told.receive()
        except trio.EndOfChannel:
            if self.told_disconnect_at_s is None:
                self.told_disconnect_at_s = trio.current_time()
            return {"type": f"{self._kind}.disconnect", "code": 1006}
        self.last_delivered_s = trio.current_time()
        return message

    def _direct_body(self) -> Wire | None:
        return self if self._phase == "started" and not self.gone else None

    async def write(self, piece: bytes) -> None:
        """A piece of the response past ASGI."""
        if self._phase != "started" or self.gone:
            raise ClientGoneError("client gone, or response already ended")
        if piece or self._unsent:
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    def write_now(self, piece: bytes) -> bool:
        """As much of a piece as the kernel takes at once, which is all or nothing."""
        if self._phase != "started" or self.gone:
            raise ClientGoneError("client gone, or response already ended")
        if self._unsent or self._turn.locked():
            self._unsent += piece
            return False
        message = {"type": "http.response.body", "body": piece, "more_body": True}
        try:
            self._write.send_nowait(Heard(message, trio.current_time()))
        except trio.WouldBlock:
            self._unsent = piece
            return False
        except trio.BrokenResourceError as error:
            self.hang_up()
            raise ClientGoneError("connection broke during a write") from error
        return True

    async def send(self, message: Message) -> None:
        self._check_order(message)
        async with self._turn:
            if self.gone:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return
            if self._unsent and "body" in message:
                unsent, self._unsent = self._unsent, b""
                message = message | {"body": unsent + message["body"]}
            deadline = trio.current_time() + self.write_timeout_s
            with trio.CancelScope(shield=True, deadline=deadline) as patience:
                try:
                    await self._write.send(Heard(message, trio.current_time()))
                except trio.BrokenResourceError:
                    self.hang_up()
            if patience.cancelled_caught:
                self.hang_up()

    # ---------------------------------------------------------------- the peer's side

    def connect(self) -> None:
        """Ask for a WebSocket: the first message, told by the server itself."""
        self._tell.send_nowait({"type": "websocket.connect"})

    async def tell(self, message: Message) -> None:
        """Send to the application; dropped once either side has ended."""
        try:
            await self._tell.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    async def say(self, text: str) -> None:
        await self.tell({"type": "websocket.receive", "text": text})

    async def hear(self) -> Heard | None:
        """The next message from the application; None at the end of the connection."""
        try:
            return await self._written.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return None

    def hang_up(self) -> None:
        """Close without a word: what was told before is still read, nothing more is heard."""
        self.gone = True
        self._tell.close()
        self._written.close()

    # ------------------------------------------------------------------------ private

    @property
    def _kind(self) -> str:
        return str(self.scope["type"])

    def _check_order(self, message: Message) -> None:
        kind = message["type"]
        match self._phase, kind:
            case "new", "http.response.start":
                self._phase = "started"
            case "started", "http.response.body":
                if not message.get("more_body", False):
                    self._phase = "ended"
            case "new", "websocket.accept":
                self._phase = "open"
            case "open", "websocket.send":
                pass
            case (("new" | "open"), "websocket.close"):
                self._phase = "ended"
            case _:
                raise ProtocolBreach(f"{kind} on a {self._kind} connection that is {self._phase}")
