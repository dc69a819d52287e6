"""Processes of ours without the second of processor time that an interpreter takes to import them.

``python forked_processes.py FD MODULE...`` imports the modules, then forks for each request that
comes on the socket ``FD``. The child takes over the arguments, the environment, the folder and the
standard streams of its request, leads a session of its own and runs ``python -m PACKAGE`` to its
end: a process like any other, with its own sockets, signals and line in ``/proc/PID/cmdline``. Only
its memory is larger, by what it does not need. A ``sitecustomize`` that its ``PYTHONPATH`` brings
is run first, as an interpreter runs it.

The processes that it starts by ``python -m MODULE`` are forked from it in turn, where the module is
one of ours: engines, preparation servers, dry runs and model stores.

Tests use :func:`start`, the other half of this file. A server is started with the first process of
a package and ends with the process that started it, together with everything it has forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Self

import attrs

_CHILDREN = MappingProxyType(
    {
        "paddler_trio.processes.engine": "paddler_trio.processes.engine.__main__",
        "paddler_trio.processes.engine.memory.dry_run": (
            "paddler_trio.processes.engine.memory.dry_run"
        ),
        "paddler_trio.processes.model_store": "paddler_trio.processes.model_store.__main__",
        "paddler_trio.processes.preparation": "paddler_trio.processes.preparation.__main__",
    }
)
"""What daemons start, and the module that it runs."""
_MODULES = MappingProxyType(
    {
        "paddler_trio": (
            "paddler_trio.cli.daemons.daemons",
            "paddler_trio.cli.management_client",
            "paddler_trio.agent.assembly.agent_daemon",
            "paddler_trio.balancer.assembly.balancer_daemon",
            "paddler_trio.processes.engine.engine_main",
            "paddler_trio.processes.preparation.fork_server",
            *_CHILDREN.values(),
        ),
        "paddler_trio.processes.engine": (
            "paddler_trio.processes.engine.__main__",
            "paddler_trio.processes.engine.engine_main",
        ),
    }
)
"""What is imported before a package's processes are forked: what they import themselves."""
_LINE_BYTES = 4096
"""Room for the command line of a fork, which is written over that of the server."""
_MAX_REQUEST_BYTES = 1 << 20
_NUMBER = struct.Struct("=i")
"""The first answer, beside a pidfd, is the pid. The second, at the end, is Popen's returncode."""
_END_S = 60.0


# ------------------------------------------------------------------------------- for tests


@attrs.define(eq=False)
class ForkedProcess:
    """What tests use of a ``subprocess.Popen``. A pidfd is signalled, so never somebody else."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    _pidfd: int
    _answers: socket.socket
    returncode: int | None = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes and wait for the end."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.wait()

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
            self.returncode = _NUMBER.unpack(self._answers.recv(_NUMBER.size))[0]
            self._answers.close()
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended this moment
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    package: str,
    arguments: Sequence[str] = (),
    *,
    env: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> ForkedProcess:
    """Fork ``python -m PACKAGE ARGUMENTS`` with this whole environment; streams as of Popen."""
    wanted = {"arguments": [*arguments], "env": {**env}, "folder": str(Path.cwd())}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes: list[IO[bytes] | None] = []
    with theirs, contextlib.ExitStack() as given:
        files = []
        for wish, is_input in ((stdin, True), (stdout, False), (stderr, False)):
            if wish == subprocess.DEVNULL:
                null = given.enter_context(Path(os.devnull).open("rb" if is_input else "wb"))
                files.append(null.fileno())
                pipes.append(None)
                continue
            if not isinstance(wish, int):
                files.append(wish.fileno())
                pipes.append(None)
                continue
            assert wish == subprocess.PIPE
            reading, writing = os.pipe()
            his, mine = (reading, writing) if is_input else (writing, reading)
            given.callback(os.close, his)
            files.append(his)
            pipes.append(os.fdopen(mine, "wb" if is_input else "rb"))
        socket.send_fds(_server(package), [json.dumps(wanted).encode()], [*files, theirs.fileno()])
    answer, (pidfd,), _, _ = socket.recv_fds(ours, _NUMBER.size, 1)
    (pid,) = _NUMBER.unpack(answer)
    return ForkedProcess(pid, *pipes, pidfd, ours)


def run(
    *arguments: object, env: Mapping[str, str] | None = None, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """``paddler-trio ARGUMENTS``; ``env`` comes over this process's. As ``subprocess.run``."""
    words = [str(argument) for argument in arguments]
    environment = {**os.environ, **({} if env is None else env)}
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as errors:
        given.write(stdin.encode())
        given.seek(0)
        process = start(
            "paddler_trio", words, env=environment, stdin=given, stdout=out, stderr=errors
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        written = []
        for file in (out, errors):
            file.seek(0)
            written.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *written)


@functools.cache
def _server(package: str) -> socket.socket:
    """The socket of this process's server for ``package``, which is started now."""
    from paddler_trio.agent.children.thread_waiting import (
        PATIENT_WAITING,  # not while tests are collected
    )

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), package, "-" * _LINE_BYTES],
            stdin=subprocess.DEVNULL,
            # forks have no threads but one, and OpenMP has read its variables before there are any
            env={**PATIENT_WAITING, **os.environ, "OPENBLAS_NUM_THREADS": "1"},
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
                    socket.send_fds(answers, [_NUMBER.pack(pid)], [pidfd])
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
        answers.send(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(request: _Request, package: str) -> None:
    """Take over what the request says; nothing of the server stays open."""
    os.setsid()
    for descriptor, file in enumerate(request.files[:3]):
        os.dup2(file, descriptor)
    os.closerange(3, _descriptor_limit())
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.folder)
    sys.argv[1:] = request.arguments
    command = [sys.executable, "-m", package, *request.arguments]
    _show_command_line(command)
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]
    _customize(command)


class _ForkingPopen(subprocess.Popen[bytes]):
    """As its base, without the exec where the program is one that this process has imported."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        match args:
            case [sys.executable, "-P", "-m", module, *_] if module in _CHILDREN:
                options["preexec_fn"] = functools.partial(_run_child, args, pass_fds, env)
        super().__init__(args, pass_fds=pass_fds, env=env, **options)


def _run_child(args: Sequence[str], pass_fds: Sequence[int], env: Mapping[str, str] | None) -> None:
    """Run the module in this fork, whose standard streams, group and folder are set; no return.

    The parent takes it for an exec that succeeded: the pipe for its failure is closed.
    """
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as an interpreter does that starts
    first = 3
    for kept in sorted(pass_fds):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, _descriptor_limit())
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    # the parent's objects may hold what it has yet to write
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    gc.freeze()
    sys.argv[1:] = args[4:]
    _show_command_line(args)
    try:
        sys.modules.pop(_CHILDREN[args[3]], None)
        _customize(args)
        _run(args[3])
    except BaseException:  # noqa: BLE001  # nothing of the parent's goes on in this process
        traceback.print_exc()
    finally:
        os._exit(1)


def _customize(command: Sequence[str]) -> None:
    """Run the ``sitecustomize`` of a folder in ``PYTHONPATH``, if there is one."""
    sys.orig_argv[:] = command
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if Path(folder, "sitecustomize.py").exists():
            sys.path.insert(0, folder)
            sys.modules.pop("sitecustomize", None)
            importlib.import_module("sitecustomize")
            return


def _descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _show_command_line(args: Sequence[str]) -> None:
    """Write it where ``/proc/self/cmdline`` is read from; a longer one is cut."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    line = b"".join(os.fsencode(arg) + b"\0" for arg in args)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _main(descriptor: str, package: str, _line: str) -> None:
    for module in _MODULES[package]:
        importlib.import_module(module)
    if package == "paddler_trio":
        _import_commands()
    sys.modules.pop(f"{package}.__main__", None)  # it is run below, under another name
    gc.collect()
    gc.freeze()  # a collection in a child copies none of these pages
    control = socket.socket(fileno=int(descriptor))
    request = _serve(control)
    if request is not None:
        control.detach()
        _become(request, package)
        _run(package)


def _import_commands() -> None:
    """The modules of all commands, and what Typer imports when it reads the first command line."""
    from paddler_trio.cli.commands import command_line

    command_line()
    with contextlib.suppress(ImportError):  # not every version of it has that
        importlib.import_module("typer._adapters")


def _run(package: str) -> None:
    """To its end, and to the process's: an interpreter that is not taken apart ends sooner."""
    try:
        runpy.run_module(package, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    else:
        status = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _main(*sys.argv[1:])
