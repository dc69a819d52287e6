"""Reads and writes of a stream that is a socket, without Trio's stream in between.

``trio.SocketStream`` tries to read before it waits, though what comes token by token is awaited
more often than not, and lets other tasks run after each write that the system took at once. Either
costs as much as all else that is done with a small piece. Other streams, TLS for one, are used as
they are.
"""

from __future__ import annotations

import os
from contextlib import suppress

import trio


async def read_some(stream: trio.abc.Stream, max_bytes: int) -> bytes:
    """The next bytes, empty at the end: waits first, then reads.

    Errors: OSError, trio.BrokenResourceError, trio.ClosedResourceError, and those of TLS.
    """
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(max_bytes))
    while True:
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), max_bytes)
        except BlockingIOError:
            continue  # somebody's checksum was wrong, or the like


async def write_all(stream: trio.abc.Stream, data: bytes) -> None:
    """Write all of it: at once what the system takes at once, which is no checkpoint then.

    Errors: OSError, trio.BrokenResourceError, trio.ClosedResourceError, and those of TLS.
    """
    left = memoryview(data)
    if isinstance(stream, trio.SocketStream):
        with suppress(BlockingIOError):
            left = left[os.write(stream.socket.fileno(), left) :]
    if left:
        await stream.send_all(left)
