"""SIGUSR2: a balancer starts its own successor, from the files that are installed now.

The successor is this command line once more, with ``--take-over``. It is a child, in the same unit,
sandbox and user; it outlives this process. Until it has taken over, its end is only reported, and
the end of this process is its end: who asks a balancer to stop does not want another one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import structlog
import trio

log = structlog.get_logger("handover")

TAKE_OVER: Final = "--take-over"


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
            process = await trio.to_thread.run_sync(self._popen, environment)
        except OSError as error:
            log.error("no successor was started", reason=str(error), command=self.command[0])
            return
        log.info("a successor was started", process=process.pid)
        try:
            status = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        except trio.Cancelled:
            if not self.given.is_set():
                process.terminate()
            raise
        log.error("the successor has ended: this balancer goes on", status=status)

    def _popen(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Not trio's, which ends a process when its task is cancelled."""
        return subprocess.Popen(self.command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603
