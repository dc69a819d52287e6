"""The fork server of one model's language: its process and its control socket.

Owner: one task, :meth:`PreparationServer.run`. When it ends, for any reason, the process and all of
its workers are gone: the kernel ends a worker with the server that forked it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import attrs
import structlog
import trio

from paddler_trio.agent.children.preparation_worker import PreparationWorker, WorkerDiedError
from paddler_trio.errors import PaddlerError, PreparationError, WireError
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.preparation_messages import (
    LENGTH,
    LanguageFacts,
    LanguageRefused,
    frame_length,
    frame_of,
    read_result,
)
from paddler_trio.system.process_end import end_process
from paddler_trio.system.thread_priority import GIVE_WAY

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
