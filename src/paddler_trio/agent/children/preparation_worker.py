"""One preparation worker as the agent sees it: a connection, and a process that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence

import attrs
import trio

from paddler_trio.errors import PaddlerError
from paddler_trio.processes.preparation.preparation_messages import (
    GREETING,
    LENGTH,
    Job,
    JobDone,
    frame_length,
    frame_of,
    read_result,
)
from paddler_trio.system.kernel.process_descriptors import has_ended, signal_process

_FIRST_READ_BYTES = 64 * 1024
"""Room for nearly every result; larger blocks are mapped and unmapped, which takes ten times as
long as the read."""
_READ_BYTES = 1024 * 1024


class WorkerDiedError(PaddlerError):
    """The worker ended without an answer: a limit of the kernel's, or native code that crashed."""


@attrs.define(eq=False)
class PreparationWorker:
    """A child that does one job after the other; after an error or a cancellation it must be
    killed.

    Args:
      shared: see :mod:`paddler_trio.processes.preparation.preparation_messages`.
    """

    connection: trio.SocketStream
    shared: Sequence[object]
    pid: int
    descriptor: int
    """A descriptor for the process; -1 once it was killed."""
    is_reusable: bool = attrs.field(default=True, init=False)
    _received: bytearray = attrs.field(factory=bytearray, init=False)

    def __repr__(self) -> str:
        state = "reusable" if self.is_reusable else "on its last job"
        return f"<PreparationWorker {self.pid}: {'killed' if self.descriptor < 0 else state}>"

    @classmethod
    async def accept(cls, ours: socket.socket, shared: Sequence[object]) -> PreparationWorker:
        """Greet the worker that was forked for the other end of ``ours``.

        Errors:
          WorkerDiedError: it ended first.

        Cancellation: the connection is closed, which ends the worker.
        """
        ours.setblocking(False)
        connection = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            greeting, descriptors, _, _ = await _receive_descriptor(ours)
            if len(greeting) != GREETING.size or not descriptors:
                raise WorkerDiedError("a preparation process ended before its first job")
        except BaseException:
            connection.socket.close()
            raise
        [pid] = GREETING.unpack(greeting)
        return cls(connection, shared, pid, descriptors[0])

    async def give(self, job: Job) -> None:
        """Send a job; WorkerDiedError if it ended."""
        try:
            await self.connection.send_all(frame_of(job))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise WorkerDiedError("the preparation process ended") from error

    async def take(self) -> JobDone:
        """Return the result of the job; may be cancelled and called again.

        Errors:
          WorkerDiedError: the worker ended.
          WireError: it sent something else.
        """
        length = None
        while True:
            if length is None and len(self._received) >= LENGTH.size:
                length = frame_length(bytes(self._received[: LENGTH.size]))
            if length is not None and len(self._received) >= LENGTH.size + length:
                break
            try:
                data = await self.connection.receive_some(
                    _READ_BYTES if self._received else _FIRST_READ_BYTES
                )
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise WorkerDiedError("the preparation process ended") from error
            if not data:
                raise WorkerDiedError("the preparation process ended")
            self._received += data
        done = read_result(bytes(self._received[LENGTH.size : LENGTH.size + length]), self.shared)
        self._received.clear()
        if not isinstance(done, JobDone):
            raise WorkerDiedError(f"the preparation process sent a {type(done).__name__}")
        self.is_reusable = self.is_reusable and not done.is_last
        return done

    def lower_priority(self, niceness: int) -> None:
        """Let other processes compute first. This cannot be undone, so it is the last job."""
        self.is_reusable = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal_process(self.descriptor, self.pid, 0)
            os.setpriority(os.PRIO_PROCESS, self.pid, niceness)

    @property
    def has_ended(self) -> bool:
        """Return whether somebody else ended it: the system, for want of memory, or an operator."""
        return has_ended(self.descriptor)

    def kill(self) -> None:
        """End it now, whatever it computes. Idempotent."""
        if self.descriptor < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal_process(self.descriptor, self.pid, signal.SIGKILL)
        os.close(self.descriptor)
        self.descriptor = -1
        self.connection.socket.close()


async def _receive_descriptor(
    ours: socket.socket,
) -> tuple[bytes, list[int], int, object]:
    while True:
        try:
            return socket.recv_fds(ours, GREETING.size, 1)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(ours)
