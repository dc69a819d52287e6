"""The frames of a WebSocket client that need no state machine, read at once.

A link that carries tokens is one short text frame after the other: final, masked, without
extensions, and nearly always whole in what one read of the socket returned. Those are texts here.
Everything else (control frames, fragments, binary, long or malformed frames, the pieces of a frame
that one read did not return whole) is left as bytes for the full parser, in order, so that every
rule of the protocol is applied in one place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from paddler_trio.wire.websocket_text import MASK_BYTES, masked

FINAL_TEXT: Final = 0x81
_TEXT_BEGINS: Final = bytes([FINAL_TEXT])
MASKED: Final = 0x80
LONGEST_HEADER_BYTES: Final = 14
_SIZE_16: Final = 126
_SIZE_64: Final = 127


@attrs.define(eq=False)
class PlainFrames:
    """Splits the bytes of one connection; feed it all of them, from the first frame on."""

    _left: int = attrs.field(default=0, init=False)
    """Bytes that the frame which is left to the full parser still has."""
    _is_in_message: bool = attrs.field(default=False, init=False)
    """A message in fragments has begun."""
    _header: bytes = attrs.field(default=b"", init=False)
    """The beginning of a header that was not whole; shorter than a header can be."""

    def feed(self, data: bytes) -> Iterator[str | bytes]:
        """Texts of whole messages, and bytes for the full parser, as they came."""
        if self._header:
            data, self._header = self._header + data, b""
        at, end = 0, len(data)
        if self._left:
            at = min(self._left, end)
            self._left -= at
            yield data[:at]
        while at < end:
            payload = _payload_of(data, at)
            if payload is None:
                self._header = data[at:]
                return
            start, size = payload
            first, stop = data[at], start + size
            if first == FINAL_TEXT and stop <= end and not self._is_in_message:
                text = _text(data, at, start, stop)
                if text is not None:
                    yield text
                    at = stop
                    continue
            if first & 0x0F in (0x0, 0x1, 0x2):
                self._is_in_message = first & 0x80 == 0
            self._left = max(0, stop - end)
            yield data[at:stop]
            at = stop

    def only_text(self, data: bytes) -> str | None:
        """The text, if ``data`` is a whole text frame and nothing else; None, and nothing changed,
        otherwise: feed it."""
        if self._left or self._header or self._is_in_message or data[:1] != _TEXT_BEGINS:
            return None
        payload = _payload_of(data, 0)
        if payload is None or payload[0] + payload[1] != len(data):
            return None
        return _text(data, 0, payload[0], len(data))


def _payload_of(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the payload of the frame at ``at`` begins and how long it is, or None if that is
    not known yet.
    """
    if len(data) - at < 2:
        return None
    second = data[at + 1]
    size, start = second & 0x7F, at + 2
    if size >= _SIZE_16:
        length_bytes = 2 if size == _SIZE_16 else 8
        if len(data) - start < length_bytes:
            return None
        size = int.from_bytes(data[start : start + length_bytes], "big")
        start += length_bytes
    if second & MASKED:
        start += MASK_BYTES
        if len(data) < start:
            return None
    return start, size


def _text(data: bytes, at: int, start: int, stop: int) -> str | None:
    """The text of a frame; None if the full parser has to look at it."""
    second = data[at + 1]
    length = second & 0x7F
    if (
        not second & MASKED
        or length == _SIZE_64
        or (length == _SIZE_16 and stop - start < _SIZE_16)
    ):
        return None
    payload = data[start:stop]
    mask = data[start - MASK_BYTES : start]
    if mask != b"\0\0\0\0":
        payload = masked(payload, mask)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


LOOKED_AT_BYTES: Final = 4096
_PING_AND_PONG: Final = frozenset({0x89, 0x8A})
_MASKED: Final = 0x80
_MAX_PAYLOAD_BYTES: Final = 125


def is_pings(data: bytes) -> bool:
    """Return whether one read of a WebSocket is whole frames of pings and pongs, and nothing else.

    Where a read begins inside another frame its bytes could only look so by a rare chance.
    """
    if not 0 < len(data) <= LOOKED_AT_BYTES:
        return False
    at = 0
    while at + 1 < len(data):
        mask_bytes, payload_bytes = (4 if data[at + 1] & _MASKED else 0), data[at + 1] & ~_MASKED
        if data[at] not in _PING_AND_PONG or payload_bytes > _MAX_PAYLOAD_BYTES:
            return False
        at += 2 + mask_bytes + payload_bytes
    return at == len(data)
