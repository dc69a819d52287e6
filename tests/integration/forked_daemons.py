"""Daemons without the second of processor time that an interpreter takes to import one.

``python forked_daemons.py FD`` imports what a balancer and an agent run on, then forks for each
request that comes on the socket ``FD``. The child takes over the arguments, the environment, the
folder and the standard streams of its request, leads a session of its own and runs the
``paddler-trio`` command to its end: a process like any other, with its own sockets and signals.
Only its line in ``/proc/PID/cmdline`` is the server's.

Tests use :func:`start`, the other half of this file. The server is started with the first daemon
and ends with the process that started it, together with every daemon that is left.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import resource
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import attrs

_MAX_REQUEST_BYTES = 1 << 20
_STARTED = struct.Struct("=i")
"""The first answer, beside a pidfd: the pid. The second, at the end: ``returncode`` of Popen."""
_END_S = 60.0


# ------------------------------------------------------------------------------- for tests


@attrs.define(eq=False)
class ForkedDaemon:
    """What tests use of a ``subprocess.Popen``. A pidfd is signalled, so never somebody else."""

    pid: int
    stderr: IO[str]
    _pidfd: int
    _answers: socket.socket
    returncode: int | None = attrs.field(default=None, init=False)

    def poll(self) -> int | None:
        """As ``wait``, but None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or minus the signal; ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = _STARTED.unpack(self._answers.recv(_STARTED.size))[0]
            self._answers.close()
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended this moment
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(arguments: Sequence[str], env: Mapping[str, str]) -> ForkedDaemon:
    """Fork ``paddler-trio ARGUMENTS`` with this whole environment; its output is thrown away."""
    wanted = {"arguments": [*arguments], "env": {**env}, "folder": str(Path.cwd())}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    with theirs, Path(os.devnull).open("r+b") as null, os.fdopen(writing, "wb") as stderr:
        files = [null.fileno(), null.fileno(), stderr.fileno(), theirs.fileno()]
        socket.send_fds(_server(), [json.dumps(wanted).encode()], files)
    answer, (pidfd,), _, _ = socket.recv_fds(ours, _STARTED.size, 1)
    (pid,) = _STARTED.unpack(answer)
    return ForkedDaemon(pid, os.fdopen(reading, errors="replace"), pidfd, ours)


@functools.cache
def _server() -> socket.socket:
    """The socket of this process's server, which is started now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # forks have no threads but one
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches the test, which ends it in order
        )

    def end() -> None:
        ours.close()
        server.wait(_END_S)

    atexit.register(end)
    return ours


# ---------------------------------------------------------------------------- the server itself


class _Request(NamedTuple):
    """What a child becomes; ``files`` are its standard streams and where its end is answered."""

    arguments: list[str]
    env: dict[str, str]
    folder: str
    files: list[int]


def _serve(control: socket.socket) -> _Request | None:
    """Fork until the tests are gone: None then, and the request in each child."""
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd: pid, answers
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fd)
                    pid, answers = running.pop(key.fd)
                    os.close(key.fd)
                    _answer_end(pid, answers)
                    continue
                request = _receive(control)
                if request is None:
                    for pidfd in running:
                        with contextlib.suppress(ProcessLookupError):
                            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return None
                pid = os.fork()
                if pid == 0:
                    return request
                *streams, answering = request.files
                for descriptor in streams:
                    os.close(descriptor)
                answers = socket.socket(fileno=answering)
                pidfd = os.pidfd_open(pid)
                with contextlib.suppress(OSError):  # a test that is gone is noticed above
                    socket.send_fds(answers, [_STARTED.pack(pid)], [pidfd])
                running[pidfd] = pid, answers
                selector.register(pidfd, selectors.EVENT_READ)


def _receive(control: socket.socket) -> _Request | None:
    data, files, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 4)
    if not data:
        return None
    request = json.loads(data)
    return _Request(request["arguments"], request["env"], request["folder"], files)


def _answer_end(pid: int, answers: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with answers, contextlib.suppress(OSError):
        answers.send(_STARTED.pack(os.waitstatus_to_exitcode(status)))


def _become(request: _Request) -> None:
    """Take over what the request says; nothing of the server stays open."""
    os.setsid()
    for descriptor, file in enumerate(request.files[:3]):
        os.dup2(file, descriptor)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.folder)
    sys.argv = ["paddler-trio", *request.arguments]


def _main() -> None:
    # Imported before the fork: what the commands import when they are run, too.
    from paddler_trio.cli import main

    gc.collect()
    gc.freeze()  # a collection in a child copies none of these pages
    control = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(control)
    if request is not None:
        control.detach()
        _become(request)
        main()


if __name__ == "__main__":
    _main()
