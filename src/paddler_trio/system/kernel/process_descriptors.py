"""Descriptors for processes: they can be read once the process has ended, whoever is its parent.

Linux has them, and a signal sent through one never meets another process that got the same id.
Elsewhere one is the end of a pipe whose other end the process alone holds; the signal goes to its
id while that pipe is open.

Listening sockets that systemd holds: they are open while no balancer runs, and connections wait.

A ``.socket`` unit passes descriptors from 3 on; ``LISTEN_FDNAMES`` has their names, which are those
of its ``FileDescriptorName=``. The variables are taken out of the environment when they are read,
so that no child of ours takes the sockets for its own.

Source: sd_listen_fds(3).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import MutableMapping
from typing import Final

from paddler_trio.errors import ConfigurationError

_PR_SET_PDEATHSIG: Final = 1


def own_process_descriptor() -> int:
    """Return a descriptor for this process, to be sent to another one and closed.

    Outside of Linux a second one stays open until the process ends, and no child inherits it unless
    it is forked without another program.
    """
    if sys.platform == "linux":
        descriptor = os.pidfd_open(os.getpid())
    else:
        descriptor, _ = os.pipe()
    return descriptor


def has_ended(descriptor: int) -> bool:
    """Return whether the process has ended."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


def signal_process(descriptor: int, pid: int, number: int) -> None:
    """Send a signal, or with 0 none; ProcessLookupError if the process has ended.

    Args:
      pid: the id of the process that the descriptor is for.
    """
    if sys.platform == "linux":
        signal.pidfd_send_signal(descriptor, number)
    elif has_ended(descriptor):
        raise ProcessLookupError(pid)
    else:
        os.kill(pid, number)


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent, of process id ``parent``, ends. Outside of
    Linux its connections to the parent end instead, and it has to notice that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(1)


FIRST: Final = 3
MOST: Final = 64


def passed_sockets(
    names: frozenset[str], environment: MutableMapping[str, str] | None = None
) -> dict[str, list[socket.socket]]:
    """Return the sockets by their names; empty without systemd.

    Raises:
      ConfigurationError: one has none of these ``names``, or does not listen for streams.
    """
    left = os.environ if environment is None else environment
    process, number = left.pop("LISTEN_PID", ""), left.pop("LISTEN_FDS", "")
    given = left.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not (number.isascii() and number.isdigit()):
        return {}
    if int(number) > MOST:
        raise ConfigurationError(f"systemd passed {number} sockets, at most {MOST} are taken")
    found: dict[str, list[socket.socket]] = {}
    try:
        for place in range(int(number)):
            name = given[place] if place < len(given) else ""
            _check_name(name, names)
            sock = _taken(FIRST + place, name)
            found.setdefault(name, []).append(sock)
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if not listens or sock.family not in (socket.AF_INET, socket.AF_INET6):
                raise ConfigurationError(
                    f"the socket {name!r} of systemd is no ListenStream= of TCP"
                )
    except BaseException:
        for sockets in found.values():
            for each in sockets:
                each.close()
        raise
    return found


def _check_name(name: str, names: frozenset[str]) -> None:
    if name not in names:
        raise ConfigurationError(
            f"systemd passed a socket named {name!r}: give its unit FileDescriptorName= with one "
            f"of {', '.join(sorted(names))}"
        )


def _taken(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"descriptor {descriptor}, passed as {name!r}, is no socket: {error.strerror}"
        ) from error
