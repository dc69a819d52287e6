"""The connection to whatever answers at the balancer's address, until it proves to be one."""

from __future__ import annotations

import os

import attrs
import trio

from paddler_trio.errors import LinkError

SEND_BYTES = 256 * 1024
"""The bytes sent at once: encrypting that much takes 0.07 ms."""
MAX_HANDSHAKE_BYTES = 65536
"""A WebSocket's handshake, or a page with the refusal; a library keeps all of it."""


@attrs.define(eq=False)
class DialledStream(trio.abc.Stream):
    """A stream that gives up a peer which talks much and agrees on nothing.

    ``is_agreed`` is set when the handshake is over: from then on messages have limits of their own.

    Without TLS bytes can also be written without waiting. What the kernel did not take then, or
    what a cancelled ``send_all`` left, goes out before anything else: no message is cut by another.
    """

    _stream: trio.abc.Stream
    is_agreed: bool = attrs.field(default=False, init=False)
    _num_bytes: int = attrs.field(default=0, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _unsent: memoryview = attrs.field(default=memoryview(b""), init=False)

    @property
    def has_unsent(self) -> bool:
        """Return whether something was left: await a ``send_all`` soon, of nothing if need be."""
        return bool(self._unsent)

    def write_now(self, data: bytes) -> bool:
        """Write without waiting, or keep what the kernel did not take.

        Returns:
          Whether ``data`` is on its way. If not, nothing of it was written: the stream is
          encrypted, broken, or something else is being written.
        """
        if not isinstance(self._stream, trio.SocketStream) or self._unsent or self._turn.locked():
            return False
        try:
            sent_bytes = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            sent_bytes = 0
        except OSError:  # the next `send_all` meets it, too
            return False
        if sent_bytes < len(data):
            self._unsent = memoryview(data)[sent_bytes:]
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if isinstance(self._stream, trio.SocketStream):
            await self._send_to(self._stream.socket, data)
        elif len(data) <= SEND_BYTES:
            await self._stream.send_all(data)
        else:
            with memoryview(data) as view:
                for start in range(0, len(view), SEND_BYTES):
                    await self._stream.send_all(view[start : start + SEND_BYTES])

    async def _send_to(
        self, socket: trio.socket.SocketType, data: bytes | bytearray | memoryview
    ) -> None:
        async with self._turn:
            self._unsent = memoryview(b"".join((self._unsent, data)))
            try:
                while self._unsent:
                    sent_bytes = await socket.send(self._unsent)  # all or nothing, if cancelled
                    self._unsent = self._unsent[sent_bytes:]
            except OSError as error:
                raise trio.BrokenResourceError(f"the socket broke: {error}") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return received bytes; LinkError when there was too much before the handshake was
        over."""
        data = await self._stream.receive_some(max_bytes)
        if not self.is_agreed:
            self._num_bytes += len(data)
            if self._num_bytes > MAX_HANDSHAKE_BYTES:
                raise LinkError(
                    f"more than {MAX_HANDSHAKE_BYTES} bytes and no WebSocket: this is no balancer"
                )
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()
