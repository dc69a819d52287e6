"""Descriptors for processes: they can be read once the process has ended, whoever is its parent.

Linux has them, and a signal sent through one never meets another process that got the same id.
Elsewhere one is the end of a pipe whose other end the process alone holds; the signal goes to its
id while that pipe is open.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from typing import Final

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
