"""Tell pings from what is said, without reading along: see :func:`is_pings`."""

from __future__ import annotations

from typing import Final

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
