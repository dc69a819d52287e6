"""What the processes of a fleet cost: processor time and resident memory, from ``/proc``.

The processor time of a daemon is its own, its living descendants' and that of all descendants it
has reaped, so that a child which lived for a moment counts too. Peaks are the kernel's own
(``VmHWM``), which no sampling can miss, for every process that still lives when they are read.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SAMPLE_S = 0.05
_GONE = (FileNotFoundError, ProcessLookupError)


@attrs.frozen
class Sample:
    """All processes of the fleet at one moment: ``rss_bytes`` by pid, ``cpu_s`` of all."""

    cpu_s: float
    rss_bytes: dict[int, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.rss_bytes.values())


def descendants(pids: Sequence[int]) -> list[int]:
    """These processes, their children, and so on; those that are gone are left out."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except _GONE:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found: list[int] = []
    waiting = [pid for pid in pids if is_alive(pid)]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def is_alive(pid: int) -> bool:
    """Whether it exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except _GONE:
        return False


def is_engine(pid: int) -> bool:
    try:
        return b"paddler_trio.processes.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except _GONE:
        return False


def kind_of(pid: int) -> str:
    """``balancer``, ``agent``, ``engine`` or ``preparation``, with its pid."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except _GONE:
        return f"gone {pid}"
    module = words[2].decode() if len(words) > 2 else "?"
    kind = words[3].decode() if module == "paddler_trio" else module.rpartition(".")[2]
    return f"{kind} {pid}"


def sample(daemons: Sequence[int]) -> Sample:
    """The processes of these daemons now."""
    cpu_ticks = 0
    rss_bytes: dict[int, int] = {}
    for pid in descendants(daemons):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except _GONE:
            continue
        cpu_ticks += sum(map(int, fields[11:15]))
        rss_bytes[pid] = pages * PAGE_BYTES
    return Sample(cpu_ticks * TICK_S, rss_bytes)


def proportional_bytes(daemons: Sequence[int]) -> dict[str, int]:
    """Resident memory by kind and pid, where a page that n processes share counts an n-th for each:
    forked workers have nearly all of their pages in common."""
    found = {}
    for pid in descendants(daemons):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (*_GONE, PermissionError):
            continue
        found[kind_of(pid)] = sum(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")
        )
    return found


def forget_peaks(daemons: Sequence[int]) -> None:
    """From now on :func:`peaks` are those reached later."""
    for pid in descendants(daemons):
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except (*_GONE, PermissionError):
            continue


def peaks(daemons: Sequence[int]) -> dict[int, int]:
    """The most resident bytes since :func:`forget_peaks`, by pid."""
    found = {}
    for pid in descendants(daemons):
        for line in _status(pid):
            if line.startswith("VmHWM:"):
                found[pid] = int(line.split()[1]) * 1024
    return found


def _status(pid: int) -> Iterator[str]:
    try:
        yield from Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return


@attrs.define(eq=False)
class Watchdog:
    """Looks at the memory of a fleet all the time, and kills its largest process over a limit.

    It is a thread, so that it looks also while the attacker computes. ``killed`` says whom it
    killed and why; ``peak_bytes`` is the most that all processes had together, as far as seen.
    """

    daemons: Callable[[], Sequence[int]]
    limit_bytes: int
    killed: list[str] = attrs.field(factory=list)
    peak_bytes: int = 0
    _stop: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            now = sample(self.daemons())
            self.peak_bytes = max(self.peak_bytes, now.total_bytes)
            if now.total_bytes > self.limit_bytes:
                largest = max(now.rss_bytes, key=lambda pid: now.rss_bytes[pid])
                size_mib = now.rss_bytes[largest] >> 20
                try:
                    os.kill(largest, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed.append(f"process {largest} had {size_mib} MiB and was killed")
