"""One daemon of ours as a process: started, looked into, and known by its id until it is reaped.

On Linux the kernel ends a daemon whose benchmark was killed; its engine then ends with its pipe.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

LOG_TAIL_CHARS = 1500

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChaosError(Exception):
    """The fleet did not do its part, so there is nothing to measure any more."""


@attrs.define(eq=False)
class Daemon:
    """One process of ours, writing its log to a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, arguments: Sequence[str], log: Path) -> Daemon:
        """Start it; it is not waited for. Call from the main thread: the kernel ties them."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "paddler_trio", *arguments, "--log-json"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # no threads here
            )
        return cls(name, process, log)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def engine_pid(self) -> int:
        """Of an agent that has one; ChaosError otherwise."""
        for pid in engines_of(self.process.pid):
            return pid
        raise ChaosError(f"{self.name} has no engine to do anything to")

    def records(self, *, since_bytes: int = 0) -> Iterator[Mapping[str, object]]:
        """The records of its log, oldest first, from a place that was a log size once."""
        with self.log.open("rb") as file:
            file.seek(since_bytes)
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:  # half a line of a killed process, or words of a library
                    continue
                if isinstance(record, dict):
                    yield record

    def log_bytes(self) -> int:
        return self.log.stat().st_size

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]


def engines_of(agent_pid: int) -> list[int]:
    """The engine children of an agent; empty where there is none (and without ``/proc``)."""
    found: list[int] = []
    for children in Path(f"/proc/{agent_pid}/task").glob("*/children"):
        try:
            found += map(int, children.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked
    return [pid for pid in found if is_engine(pid)]


def is_engine(pid: int) -> bool:
    """Whether a living process of this id is an engine of ours."""
    try:
        return b"paddler_trio.processes.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_engine(pid: int) -> None:
    """Kill an engine that is left; harmless when it is gone."""
    try:
        if is_engine(pid):
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended between the look and the signal


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
