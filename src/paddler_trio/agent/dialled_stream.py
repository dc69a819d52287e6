"""The connection to whatever answers at the balancer's address, until it proves to be one."""

from __future__ import annotations

import attrs
import trio

from paddler_trio.errors import LinkError

SEND_BYTES = 256 * 1024
"""At once: encrypting that much takes 0.07 ms."""
MAX_HANDSHAKE_BYTES = 65536
"""A WebSocket's handshake, or a page with the refusal; a library keeps all of it."""


@attrs.define(eq=False)
class DialledStream(trio.abc.Stream):
    """A stream that gives up a peer which talks much and agrees on nothing.

    ``is_agreed`` is set when the handshake is over: from then on messages have limits of their own.
    """

    _stream: trio.abc.Stream
    is_agreed: bool = attrs.field(default=False, init=False)
    _num_bytes: int = attrs.field(default=0, init=False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) <= SEND_BYTES:
            await self._stream.send_all(data)
            return
        with memoryview(data) as view:
            for start in range(0, len(view), SEND_BYTES):
                await self._stream.send_all(view[start : start + SEND_BYTES])

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """LinkError when there was too much before the handshake was over."""
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
