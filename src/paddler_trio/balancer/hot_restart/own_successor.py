"""SIGUSR2: a balancer starts its own successor, from the files that are installed now.

The successor is this command line once more, with ``--take-over``, in the same unit, sandbox and
user; it outlives this process. It is no child of this process: a launcher starts it and exits, so
that it is a child of the service manager, as every main process of a service must be. systemd waits
for the end of nobody else's child: it would kill the streams that a main process still drains.

Until the successor has taken over, the end of this process is its end: who asks a balancer to stop
does not want another one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.system.kernel.process_descriptors import signal_process

log = structlog.get_logger("handover")

TAKE_OVER: Final = "--take-over"
LAUNCHER: Final = """\
import os, socket, subprocess, sys
with socket.socket(fileno=int(sys.argv[1])) as parent:
    process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
    socket.send_fds(parent, [b"%d" % process.pid], [os.pidfd_open(process.pid)])
os._exit(0)
"""
"""Sends the process id of what it starts and a descriptor for it, which no other process gets."""
LAUNCH_S: Final = 20.0


def successor_command(executable: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of the successor; ``arguments`` are those of the interpreter."""
    given = list(arguments)
    return [executable, *given, *([] if TAKE_OVER in given else [TAKE_OVER])]


@attrs.define(eq=False)
class OwnSuccessor:
    """Starts one at each SIGUSR2.

    Args:
      variables: what its environment has beside this process's.
      given: set once one has taken over.
      problem: why none can take over; None if one can.
    """

    variables: Mapping[str, str]
    given: trio.Event
    problem: str | None = None
    command: Sequence[str] = attrs.field(
        factory=lambda: successor_command(sys.executable, sys.orig_argv[1:])
    )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; a successor that has taken over by then goes on."""
        with trio.open_signal_receiver(signal.SIGUSR2) as received:
            task_status.started()
            async for _ in received:
                await self._start()

    async def _start(self) -> None:
        if self.problem is not None:
            log.error("no successor can take over", reason=self.problem)
            return
        environment = {**os.environ, **self.variables}
        try:
            pid, descriptor = await trio.to_thread.run_sync(launched, self.command, environment)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.error("no successor was started", reason=str(error), command=self.command[0])
            return
        log.info("a successor was started", process=pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        except trio.Cancelled:
            if not self.given.is_set():
                with suppress(ProcessLookupError):  # it has ended in this very moment
                    signal_process(descriptor, pid, signal.SIGTERM)
            raise
        finally:
            os.close(descriptor)
        if self.given.is_set():
            log.error("the successor has ended, which had taken over: nobody serves new requests")
        else:
            log.error("the successor has ended: this balancer goes on")


def launched(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Start a process that is no child of this one; return its id and a descriptor (pidfd) for it.

    Errors:
      OSError, subprocess.TimeoutExpired: it was not started.
    """
    own, theirs = socket.socketpair()
    with own, theirs:
        own.settimeout(LAUNCH_S)
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(theirs.fileno()), *command]
        ended = subprocess.run(  # noqa: S603 - our own command line
            launcher,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            timeout=LAUNCH_S,
            check=False,
        )
        theirs.close()
        pid, descriptors, _, _ = socket.recv_fds(own, 32, 1)
    if not descriptors:
        raise OSError(f"its launcher ended with status {ended.returncode}")
    return int(pid), descriptors[0]
