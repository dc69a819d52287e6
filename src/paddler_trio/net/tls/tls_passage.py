"""A connection over TLS that another process answers: it gets one end of a pair of sockets.

The other process neither has the keys nor needs them: what it writes into its end is encrypted
here, and what the client sends comes decrypted out of it. Each direction holds one piece at a time;
a receiver that is slow makes its sender wait. The ends of both directions are carried too, so the
other process sees a client that leaves as it would without TLS.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from paddler_trio.net.server.asgi import ClientGoneError, HttpProblem

PIECE_BYTES: Final = 65_536
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


@attrs.define(eq=False)
class TlsPassage:
    """One connection's; without a pair until somebody asks for its descriptor."""

    is_released: bool = attrs.field(default=False, init=False)
    """Another process holds the far end."""
    _near: socket.socket | None = attrs.field(default=None, init=False)
    _far: socket.socket | None = attrs.field(default=None, init=False)
    _running: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __repr__(self) -> str:
        state = "released" if self.is_released else "closed" if self._far is None else "open"
        return f"<TlsPassage {state}>"

    def descriptor(self) -> int:
        """Return the descriptor of the far end, made at the first call; HttpProblem (503) if none
        is left.
        """
        if self._far is None:
            try:
                self._near, self._far = socket.socketpair()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
                reason = os.strerror(error.errno)
                raise HttpProblem(503, f"this request cannot be passed on: {reason}") from error
            self._near.setblocking(False)
        return self._far.fileno()

    def release(self) -> None:
        """Forget the far end: another process has a copy of it."""
        assert self._far is not None, "released without a descriptor"
        self._far.close()
        self.is_released = True

    def cut(self) -> None:
        """End it now; the other process sees that the client is gone."""
        self._running.cancel(reason="the server ends")

    def close(self) -> None:
        """Close what is open of the pair."""
        for end in (self._near, self._far):
            if end is not None:
                end.close()

    async def run(
        self,
        receive: Callable[[], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
        *,
        linger_s: float,
    ) -> None:
        """Carry bytes both ways until the other process has closed its end and the client its own.

        Args:
          receive: the next bytes of the client; empty at their end, and from then on.
          send: to the client, empty for the end; ClientGoneError if it left.
          linger_s: for the client to close its side behind the last byte.
        """
        assert self._near is not None, "run without a descriptor"
        near = trio.SocketStream(trio.socket.from_stdlib_socket(self._near))
        with self._running:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_carry_up, receive, near, name="bytes of the client")
                try:
                    await _carry_down(near, send)
                except ClientGoneError:
                    nursery.cancel_scope.cancel(reason="the client is gone")
                nursery.cancel_scope.deadline = trio.current_time() + linger_s


async def _carry_up(receive: Callable[[], Awaitable[bytes]], near: trio.SocketStream) -> None:
    is_read = True
    while data := await receive():
        if is_read:
            try:
                await near.send_all(data)
            except trio.BrokenResourceError:
                is_read = False  # the answer may be under way: the client must not be reset
    if is_read:
        try:
            await near.send_eof()
        except trio.BrokenResourceError:
            return  # it has ended already


async def _carry_down(near: trio.SocketStream, send: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        try:
            data = bytes(await near.receive_some(PIECE_BYTES))
        except trio.BrokenResourceError:
            data = b""  # it ended with bytes of the client unread
        await send(data)
        if not data:
            return
