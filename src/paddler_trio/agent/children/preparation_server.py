"""The fork server of one model's language: its process and its control socket.

Owner: one task, :meth:`PreparationServer.run`. When it ends, for any reason, the process and all of
its workers are gone: the kernel ends a worker with the server that forked it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from paddler_trio.errors import PaddlerError, PreparationError, WireError
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import (
    GREETING,
    LENGTH,
    Job,
    JobDone,
    LanguageFacts,
    LanguageRefused,
    frame_length,
    frame_of,
    read_result,
)
from paddler_trio.system.kernel.process_descriptors import has_ended, signal_process
from paddler_trio.system.process_end import end_process
from paddler_trio.system.thread_priority import GIVE_WAY

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


log = structlog.get_logger("preparation")

LOAD_S = 120.0
"""A vocabulary takes a second; a template that runs for ever is stopped by its own limits."""
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""A process that forks must not have threads."""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
"""A GPU's driver has threads, and takes half a gigabyte of the GPU for each process that asks."""
_COMMAND = (sys.executable, "-P", "-m", "paddler_trio.processes.preparation")


class LanguageRefusedError(PaddlerError):
    """The language cannot be read; ``refused`` says why."""

    def __init__(self, refused: LanguageRefused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


@attrs.define(eq=False)
class PreparationServer:
    """One life of a fork server; see the module docstring.

    Args:
      on_up: called once, when workers may be forked; synchronous.
      gives_way: another model or language answers meanwhile: read at a low priority.
    """

    source: LanguageSource
    on_up: Callable[[PreparationServer, LanguageFacts], None]
    gives_way: bool = False
    facts: LanguageFacts | None = attrs.field(default=None, init=False)
    _control: trio.SocketStream | None = attrs.field(default=None, init=False)
    _process: trio.Process | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        if self._process is None:
            return "<PreparationServer: not started>"
        return f"<PreparationServer pid {self._process.pid}: status {self._process.poll()}>"

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    async def run(self) -> None:
        """Run until cancelled.

        Errors:
          LanguageRefusedError: there is nothing to prepare with; permanent.
          PreparationError: it ended by itself.

        Cancellation: the process and its workers are killed.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _not_started(error) from error
        process = None
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [*_COMMAND, str(theirs.fileno()), *([GIVE_WAY] if self.gives_way else [])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **_SINGLE_THREADED, **_NO_GPU},
                    process_group=0,  # Ctrl-C is the agent's to handle
                )
            self._process = process
            ours.setblocking(False)
            self._control = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_log, process, name="preparation log")
                await self._converse(self._control)
                status = await process.wait()
                nursery.cancel_scope.cancel(reason="the fork server has ended")
            raise PreparationError(f"the preparation server ended with status {status}")
        except OSError as error:  # no further process, or no descriptors
            raise _not_started(error) from error
        finally:
            self._control = None
            ours.close()
            if process is not None:
                await end_process(process, name="preparation")

    async def fork(self) -> PreparationWorker:
        """Return a new worker; PreparationError.

        Cancellation: the worker ends.
        """
        if self._control is None or self.facts is None:
            raise PreparationError("the preparation server is gone")
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise PreparationError(f"no worker can be started: {error.strerror}") from error
        try:
            with theirs:
                rights = [
                    (
                        socket.SOL_SOCKET,
                        socket.SCM_RIGHTS,
                        theirs.fileno().to_bytes(4, sys.byteorder),
                    )
                ]
                await self._control.socket.sendmsg([b"f"], rights)
        except OSError as error:
            ours.close()
            raise PreparationError(f"the preparation server is gone: {error}") from error
        except trio.Cancelled:
            ours.close()
            raise
        try:
            return await PreparationWorker.accept(ours, self.facts.shared)
        except WorkerDiedError as error:  # before any job: it went with its server
            raise PreparationError(str(error)) from error

    async def _converse(self, control: trio.SocketStream) -> None:
        """Talk to the server until it closes its end."""
        try:
            with trio.fail_after(LOAD_S):
                await control.send_all(frame_of(self.source))
                facts = await _read_facts(control)
        except trio.TooSlowError as error:
            raise PreparationError(f"the language was not read within {LOAD_S:g} s") from error
        except (trio.BrokenResourceError, WireError) as error:
            raise PreparationError(f"the preparation server broke: {error}") from error
        if facts is None:
            return
        self.facts = facts
        self.on_up(self, facts)
        try:
            await control.receive_some(1)  # nothing ever comes but the end
        except trio.BrokenResourceError as error:
            log.debug("the preparation server broke", reason=str(error))


def _not_started(error: OSError) -> PreparationError:
    reason = error.strerror or str(error)
    return PreparationError(f"the preparation server cannot be started: {reason}")


async def _read_facts(control: trio.SocketStream) -> LanguageFacts | None:
    prefix = await _exactly(control, LENGTH.size)
    body = b"" if prefix is None else await _exactly(control, frame_length(prefix))
    if not body:
        return None
    match read_result(body, ()):
        case LanguageFacts() as facts:
            return facts
        case LanguageRefused() as refused:
            raise LanguageRefusedError(refused)
        case other:
            raise PreparationError(f"the preparation server sent a {type(other).__name__}")


async def _exactly(stream: trio.SocketStream, size_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < size_bytes:
        more = await stream.receive_some(size_bytes - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


async def _log(process: trio.Process) -> None:
    assert process.stderr is not None
    rest = b""
    async for data in process.stderr:
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-65536:]
        for line in lines:
            log.warning("preparation", text=line.decode(errors="replace")[:2000])
