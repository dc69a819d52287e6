"""The bytes of a request's head, and how its body is framed. Pure.

A request line and header fields that could be read as anything else are refused here: a field that
holds a line end would be a second request.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Sequence
from typing import Final

import attrs
import trio

MAX_HEAD_BYTES: Final = 64 * 1024
_TOKEN: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++")
_TARGET: Final = re.compile(rb"/[\x21-\x7e]*+")
_VALUE: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*+")
WHOLE_SERVER: Final = (b"OPTIONS", b"*")
"""The one method and target that are about no path: what the server can do."""
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")

Headers = Sequence[tuple[bytes, bytes]]


class UnsendableRequestError(Exception):
    """The text says what is wrong with the request, without any value of it."""


@attrs.frozen
class RequestHead:
    """The bytes to send, and what the body must be.

    Args:
      content_length: bytes of the body; None for chunks.
      asks_to_close: the request says that the connection ends with the answer.
    """

    data: bytes
    content_length: int | None
    asks_to_close: bool


def request_head(
    method: bytes,
    target: bytes,
    headers: Headers,
    *,
    authority: bytes,
    origin: bytes = b"",
    bearer: bytes | None = None,
    body_bytes: int | None = 0,
    upgrades: bool = False,
) -> RequestHead:
    """Render a request.

    Args:
      headers: kept in order, case and number. ``Host`` is added if there is none.
      origin: scheme and authority in front of the target, for a proxy that forwards.
      bearer: a key, sent instead of any ``Authorization`` of the headers.
      body_bytes: how many there will be, None if that is not known before.
      upgrades: it may ask for another protocol.

    Errors:
      UnsendableRequestError.
    """
    if _TOKEN.fullmatch(method) is None or method == b"CONNECT":
        raise UnsendableRequestError("the method is no HTTP method that can be passed on")
    if _TARGET.fullmatch(target) is None and (method, target) != WHOLE_SERVER:
        raise UnsendableRequestError(
            "the target of the request is no path: it must start with / and be of printable ASCII"
        )
    if bearer is not None:
        headers = [field for field in headers if field[0].lower() != b"authorization"]
    seen = _seen(headers, upgrades=upgrades)
    if seen.length is not None and body_bytes is not None and seen.length != body_bytes:
        raise UnsendableRequestError(
            f"Content-Length is {seen.length}, and the body has {body_bytes} bytes"
        )
    lines = [b"%b: %b\r\n" % field for field in headers]
    if not seen.has_host:
        lines.insert(0, b"Host: %b\r\n" % authority)
    if bearer is not None:
        lines.append(b"Authorization: Bearer %b\r\n" % bearer)
    length, is_framed = seen.length, seen.is_chunked or seen.length is not None
    if not is_framed and body_bytes is None:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif not is_framed:
        length = body_bytes
        if body_bytes or method in {b"POST", b"PUT", b"PATCH"}:
            lines.append(b"Content-Length: %d\r\n" % (body_bytes or 0))
    data = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, origin + target, b"".join(lines))
    if len(data) > MAX_HEAD_BYTES:
        raise UnsendableRequestError(
            f"the head has {len(data)} bytes, the limit is {MAX_HEAD_BYTES}"
        )
    return RequestHead(data, length, seen.asks_to_close)


@attrs.define
class _SeenFields:
    """The fields of a head that decide how the request is framed."""

    has_host: bool = False
    length: int | None = None
    is_chunked: bool = False
    asks_to_close: bool = False


def _seen(headers: Headers, *, upgrades: bool) -> _SeenFields:
    seen = _SeenFields()
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise UnsendableRequestError("a header field has characters that HTTP does not allow")
        match name.lower():
            case b"host":
                if seen.has_host:
                    raise UnsendableRequestError("two Host header fields")
                seen.has_host = True
            case b"content-length":
                if seen.length is not None or _DIGITS.fullmatch(value) is None:
                    raise UnsendableRequestError("Content-Length is no number, or there are two")
                seen.length = int(value)
            case b"transfer-encoding":
                if seen.is_chunked or value.lower() != b"chunked":
                    raise UnsendableRequestError("Transfer-Encoding is not 'chunked'")
                seen.is_chunked = True
            case b"connection":
                tokens = {each.strip() for each in value.lower().split(b",")}
                seen.asks_to_close = seen.asks_to_close or b"close" in tokens
            case b"upgrade" if not upgrades:
                raise UnsendableRequestError("an upgrade of the protocol cannot be passed on")
    if seen.is_chunked and seen.length is not None:
        raise UnsendableRequestError("both Content-Length and Transfer-Encoding")
    return seen


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
