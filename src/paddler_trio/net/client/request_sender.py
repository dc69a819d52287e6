"""Sends a request whose body comes piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Final

import attrs
import trio

from paddler_trio.net.client.request_head import RequestHead, UnsendableRequestError

PIECE_BYTES: Final = 64 * 1024


class RequestNotTakenError(Exception):
    """The server read nothing of the request for too long."""


@attrs.define(eq=False)
class RequestSender:
    """Sends one request.

    Args:
      piece_s: for the server to take up to 64 KiB.
    """

    _stream: trio.abc.Stream
    _head: RequestHead
    _piece_s: float
    is_sent: bool = attrs.field(default=False, init=False)
    """The system has taken all of it."""
    is_at_last_piece: bool = attrs.field(default=False, init=False)
    """What is being sent is the end of it: the server may answer that at any moment."""
    body_was_touched: bool = attrs.field(default=False, init=False)
    """The body was asked for a piece, so it cannot be sent a second time."""

    async def send(self, body: AsyncIterable[bytes] | bytes) -> None:
        """Send head and body.

        Errors:
          UnsendableRequestError: the body has another length than the head says.
          RequestNotTakenError.
          trio.BrokenResourceError: from the stream.
          Whatever iterating ``body`` raises.
        """
        if isinstance(body, bytes):
            await self._write(self._head.data + body, is_last=True)
        else:
            await self._write(self._head.data)
            self.body_was_touched = True
            if self._head.content_length is None:
                await self._send_chunks(body)
            else:
                await self._send_bytes(body, self._head.content_length)
        self.is_sent = True

    async def _send_chunks(self, body: AsyncIterable[bytes]) -> None:
        async for piece in body:
            if piece:
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self._write(b"0\r\n\r\n", is_last=True)

    async def _send_bytes(self, body: AsyncIterable[bytes], length: int) -> None:
        num_sent = 0
        async for piece in body:
            num_sent += len(piece)
            if num_sent > length:
                raise UnsendableRequestError(
                    f"the body has more than the {length} bytes of its Content-Length"
                )
            await self._write(piece, is_last=num_sent == length)
        if num_sent < length:
            raise UnsendableRequestError(
                f"the body ended after {num_sent} of {length} bytes of its Content-Length"
            )

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        with memoryview(data) as view:
            for start in range(0, len(view), PIECE_BYTES):
                end = start + PIECE_BYTES
                self.is_at_last_piece = is_last and end >= len(view)
                with trio.move_on_after(self._piece_s) as waiting:
                    await self._stream.send_all(view[start:end])
                if waiting.cancelled_caught:
                    raise RequestNotTakenError
