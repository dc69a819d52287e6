"""The sockets that llama.cpp opens for its RPC protocol, found among those of this process.

llama.cpp has no timeouts on them: the engine that computes on a machine that vanishes, and the
server that works for it, would wait without end. The kernel can watch instead. llama.cpp does not
expose its sockets, so they are looked up.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from paddler_trio.system.kernel.socket_options import watch_silence


def tcp_sockets() -> Iterator[socket.socket]:
    """Yield this process's TCP sockets, each as a copy that is closed when the next one is asked
    for."""
    for entry in list(Path("/dev/fd").iterdir()):
        try:
            copy = os.dup(int(entry.name))
        except OSError:  # closed since the list was made
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and (
                found.type == socket.SOCK_STREAM
            ):
                yield found


def listening_socket() -> tuple[str, int] | None:
    """Return host and port this process listens on, the first found; None if it does not listen.

    Connections that are accepted from then on are watched by the kernel.
    """
    for found in tcp_sockets():
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            _watch(found)  # what is accepted inherits it
            host, port = found.getsockname()[:2]
            return str(host), int(port)
    return None


def watch_connections() -> int:
    """Have the kernel watch every connection of this process; return how many there are."""
    watched = 0
    for found in tcp_sockets():
        try:
            found.getpeername()
        except OSError:  # it listens, or has lost its other side already
            continue
        _watch(found)
        watched += 1
    return watched


def _watch(found: socket.socket) -> None:
    """Lose a peer that vanishes after half a minute at most."""
    watch_silence(found, idle_s=10, interval_s=5, probes=4, unacknowledged_ms=30_000)
