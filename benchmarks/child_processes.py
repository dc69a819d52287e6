"""Child processes of a benchmark: started, waited for, asked over HTTP, and ended by their ids.

On Linux the kernel ends them even if the benchmark is killed.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from answers import AnswerError

START_S = 120.0
"""A model of a few hundred megabytes is read and warmed up in seconds."""
END_S = 10.0
POLL_S = 0.02

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time used so far, by process; empty where there is no ``/proc``.

    Raises:
      AnswerError: one of them is gone.
    """
    if not Path("/proc/self/stat").exists():
        return {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    used = {}
    for name, pid in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError as error:
            raise AnswerError(f"the {name} process is gone") from error
        used[name] = (int(fields[11]) + int(fields[12])) * tick_s
    return used


@contextmanager
def process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that writes to ``log``; asked to end on leaving, then made to."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # no session of its own: Linux schedules each as a group
            preexec_fn=_die_with_parent,  # no threads here
        )
        try:
            yield child
        except AnswerError as error:
            if child.poll() is None:
                raise
            last_words = log.read_text(errors="replace")[-2000:]
            raise AnswerError(
                f"{error}\n{log.stem} had ended with {child.returncode}: {last_words}"
            ) from error
        finally:
            _end(child, output)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    """SIGTERM twice is "now" for our daemons; then SIGKILL."""
    for ending in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(ending)
        try:
            child.wait(END_S / 2)
        except subprocess.TimeoutExpired:
            output.write(f"(still there after signal {ending})\n".encode())


def wait_for(look: Callable[[str], T | None], child: subprocess.Popen[bytes], log: Path) -> T:
    """What ``look`` finds in the log of a child that starts; AnswerError if it ends instead."""
    deadline_s = time.monotonic() + START_S
    text = ""
    while time.monotonic() < deadline_s:
        text = log.read_text(errors="replace")
        if found := look(text):
            return found
        if child.poll() is not None:
            raise AnswerError(f"{log.stem} ended with {child.returncode}:\n{text[-2000:]}")
        time.sleep(POLL_S)
    raise AnswerError(
        f"{log.stem} was not ready after {START_S:g} s; its log ends:\n{text[-2000:]}"
    )


def is_ready(address: tuple[str, int], path: str) -> bool:
    try:
        ask(address, "GET", path)
    except (AnswerError, OSError):
        return False
    return True


def ask(address: tuple[str, int], method: str, path: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status >= 300:
        raise AnswerError(f"{method} {path}: status {response.status}, {text[:500]!r}")
    return text


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
