"""A real ``paddler-trio rpc-server`` as a process, for tests that compute on one."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import forked_processes
import llama_cpp.llama_cpp as lib
import pytest
from forked_processes import ForkedProcess

from paddler_trio.processes.engine.llama.ggml import ggml_function

ANNOUNCEMENT = re.compile(rb"RPC server on (127\.0\.0\.1:[1-9]\d*) lends (\S.*)\n")
ENVIRONMENT = {"TERMINAL_WIDTH": "200"}

_has_rpc = bool(ggml_function("ggml_backend_reg_by_name", ctypes.c_char_p)(b"RPC"))
needs_rpc = pytest.mark.skipif(
    not _has_rpc, reason=f"the llama.cpp in {Path(lib.__file__).parent} was built without RPC"
)
lacks_rpc = pytest.mark.skipif(_has_rpc, reason="this build of llama.cpp has RPC")


@attrs.frozen
class RpcServer:
    """``address`` is ``host:port``, ``lent`` what it says that it lends."""

    process: subprocess.Popen[bytes] | ForkedProcess
    address: str
    lent: str

    def kill(self) -> None:
        """Gone without a word; returns when it is."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: signal.Signals) -> int:
        """Ask it to end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait()


def start(*arguments: str, is_command: bool = False) -> subprocess.Popen[bytes] | ForkedProcess:
    """``is_command``: with an interpreter of its own, as in real life, and slower by a second."""
    environment = {**os.environ, **ENVIRONMENT}
    if not is_command:
        return forked_processes.start(
            "paddler_trio",
            ["rpc-server", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    return subprocess.Popen(
        [sys.executable, "-m", "paddler_trio", "rpc-server", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


@contextmanager
def rpc_server(
    address: str = "127.0.0.1:0", *arguments: str, is_command: bool = False
) -> Iterator[RpcServer]:
    """Returns when it listens; it is gone when the block is left."""
    words = [f"--addr={address}", "--threads=1", *arguments]
    with start(*words, is_command=is_command) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said = ANNOUNCEMENT.fullmatch(line)
            if said is None:
                process.kill()
                assert process.stderr is not None
                pytest.fail(f"it said {line!r}, and on standard error {process.stderr.read()!r}")
            yield RpcServer(process, *(group.decode() for group in said.groups()))
        finally:
            process.kill()
