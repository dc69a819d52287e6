"""Tell sockets how long silence may last, and ask them for hang-ups and whole messages."""

from __future__ import annotations

import array
import os
import select
import socket
import sys
from collections.abc import Sequence
from typing import Final

import trio

PEEKS_EVERY_S: Final = 1.0
"""The pause between looks behind unread bytes where the system tells of no hang-up."""
_DARWINS_IDLE: Final = 0x10
"""``TCP_KEEPALIVE``, which is its ``TCP_KEEPIDLE``."""
_DARWINS_DROP_TIME: Final = 0x80
"""``TCP_RXT_CONNDROPTIME``: seconds without an acknowledgement until a connection is given up."""


def watch_silence(
    sock: socket.socket, *, idle_s: int, interval_s: int, probes: int, unacknowledged_ms: int
) -> None:
    """Have the kernel end a connection whose other side has vanished; connections that a listening
    socket accepts inherit it.

    Args:
      idle_s: silence after which the other side is asked, then every ``interval_s``, so many times.
      unacknowledged_ms: time for which what was sent may go unacknowledged.
    """
    tcp = socket.IPPROTO_TCP
    if sys.platform == "linux":
        sock.setsockopt(tcp, socket.TCP_KEEPIDLE, idle_s)
    elif sys.platform == "darwin":
        sock.setsockopt(tcp, _DARWINS_IDLE, idle_s)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, probes)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    allow_unacknowledged(sock, unacknowledged_ms)


def allow_unacknowledged(sock: socket.socket, unacknowledged_ms: int) -> None:
    """Set the time for which what was sent may go unacknowledged; 0 for the system's default."""
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)
    elif sys.platform == "darwin":
        drop_s = -(-unacknowledged_ms // 1000)
        sock.setsockopt(socket.IPPROTO_TCP, _DARWINS_DROP_TIME, drop_s)


async def wait_hung_up(sock: socket.socket | trio.socket.SocketType) -> None:
    """Wait until the other side has sent its end, unread bytes before it or not.

    Outside of Linux that end is seen once those bytes were read, or when the connection is reset.

    Raises:
      OSError: no descriptor is left to notice it.
    """
    if sys.platform == "linux":
        with select.epoll(1) as hang_ups:
            hang_ups.register(sock, select.EPOLLRDHUP)
            await trio.lowlevel.wait_readable(hang_ups.fileno())
    else:
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:  # another task may wait for it
            poller = select.poll()
            poller.register(copy, 0)  # a hang-up of both sides is told all the same
            await trio.lowlevel.wait_readable(copy)
            while not poller.poll(0) and not _is_at_its_end(copy):
                await trio.sleep(PEEKS_EVERY_S)
                await trio.lowlevel.wait_readable(copy)


def _is_at_its_end(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False  # somebody has read it meanwhile
    except ConnectionError:
        return True


def message_pair(most_bytes: int) -> tuple[socket.socket, socket.socket]:
    """Return two connected Unix sockets that keep the boundaries of messages of so many bytes."""
    if sys.platform == "linux":
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    else:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * most_bytes)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * most_bytes)
    return pair


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message; children inherit none of them."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    for descriptor in found:
        os.set_inheritable(descriptor, False)
    return found.tolist()
