"""Text messages as WebSocket frames (RFC 6455, 5.2): final, without extensions, one frame each.

The libraries build such a frame from an event, with a state machine; a link sends one for each
token, so these are the bytes at once.
"""

from __future__ import annotations

import struct
from typing import Final

TEXT: Final = 0x1
CONTINUATION: Final = 0x0
MASK_BYTES: Final = 4
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_SIZE_16: Final = 126
_SIZE_64: Final = 127


def frame_header(size_bytes: int, *, opcode: int = TEXT, is_last: bool = True) -> bytes:
    """Return the header of a frame that is not masked, as servers send them."""
    return _header(size_bytes, opcode | (_FINAL if is_last else 0), 0)


def masked_frame(text: bytes, mask: bytes) -> bytes:
    """Return a whole text message from a client.

    Args:
      text: UTF-8.
      mask: 4 bytes that nobody can predict, for this frame only.
    """
    return _header(len(text), _FINAL | TEXT, _MASKED) + mask + masked(text, mask)


def masked(data: bytes, mask: bytes) -> bytes:
    """Return ``data`` under a mask of 4 bytes, or without it if it was."""
    size = len(data)
    repeated = (mask * (size // MASK_BYTES + 1))[:size]
    number = int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")
    return number.to_bytes(size, "little")


def _header(size_bytes: int, first: int, masking: int) -> bytes:
    if size_bytes < _SIZE_16:
        return struct.pack("!BB", first, masking | size_bytes)
    if size_bytes < 1 << 16:
        return struct.pack("!BBH", first, masking | _SIZE_16, size_bytes)
    return struct.pack("!BBQ", first, masking | _SIZE_64, size_bytes)
