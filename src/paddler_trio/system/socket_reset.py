"""Connections that are closed by a reset instead of in order.

A close in order comes behind all that was written: to a side that reads nothing it never comes, and
one that has read it may take for whole what it has.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

import trio

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""``SO_LINGER``: a close waits for nothing, and resets."""


def reset_on_close(sock: socket.socket | trio.socket.SocketType) -> None:
    """Make the close of this socket reset its connection; what was not taken by then is lost.
    Nothing changes for one that is closed."""
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
