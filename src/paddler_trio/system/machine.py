"""Find what this machine grants the process: cores, memory, CPU features.

Three answers differ from what is written on the box: a scheduler mask may leave fewer cores, a
control group may give a share of them, and memory may be capped far below what is installed.
Each reader takes the files' folders as arguments, so a test can lay out another machine.

Only the standard library is imported: the set-up of a fresh machine reads this file before
anything else is installed. Control groups of version 2 are read; version 1 limits are not seen.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/devices")
_SIZE_LINE = re.compile(r"^((?:Vm|Rss)\w+):\s+(\d+) kB$", re.MULTILINE)
"""A process may call itself anything, also something that looks like a size."""


def parse_cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Return the features every core has, from the text of ``/proc/cpuinfo``; empty if it lists
    none."""
    cores = [
        frozenset(line.partition(":")[2].split())
        for line in cpuinfo.splitlines()
        if line.partition(":")[0].strip() in {"flags", "Features"}
    ]
    return frozenset.intersection(*cores) if cores else frozenset()


def read_cpu_flags(proc: Path = PROC) -> frozenset[str]:
    """Return the features of this machine's cores; empty where there is no ``/proc`` (macOS)."""
    try:
        return parse_cpu_flags((proc / "cpuinfo").read_text(errors="replace"))
    except OSError:
        return frozenset()


def paged_in() -> int:
    """Return how many pages this process had to wait for so far, because they were on a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def granted_cores(*, proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Return how many cores this process may keep busy: the affinity mask, cut by the tightest
    quota above it."""
    mask = getattr(os, "sched_getaffinity", None)
    cores = float(len(mask(0))) if mask is not None else float(os.cpu_count() or 1)
    for text in _read_upwards("cpu.max", proc=proc, cgroups=cgroups):
        quota, _, period = text.partition(" ")
        if quota != "max" and period.strip():
            cores = min(cores, int(quota) / int(period))
    return cores


def granted_physical_cores(
    *, proc: Path = PROC, cgroups: Path = CGROUPS, devices: Path = DEVICES
) -> int:
    """Return how many physical cores this process may keep busy, at least one; performance cores
    only where there are two kinds.

    Two hardware threads of a core share what multiplies, and an efficiency core keeps the faster
    ones waiting. Where the system tells of neither, every core counts.
    """
    granted = max(1, int(granted_cores(proc=proc, cgroups=cgroups)))
    mask = getattr(os, "sched_getaffinity", None)
    if mask is None:
        return granted
    allowed: set[int] = mask(0)
    faster = allowed & parse_cpu_list(_text_of(devices / "cpu_core" / "cpus"))
    siblings = "topology/thread_siblings_list"
    physical = {
        _text_of(devices / "system" / "cpu" / f"cpu{cpu}" / siblings) or cpu
        for cpu in faster or allowed
    }
    return min(granted, len(physical))


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers in a list such as ``0-3,8``, as the kernel writes it."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def available_memory_bytes(*, proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return how much memory a new model could take before something is swapped or killed; None
    where unknown.

    What the page cache holds counts as available, in a control group too: a model that was read
    once would otherwise look like memory in use.
    """
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if not kibibytes:
        return None
    available = kibibytes[0] * 1024
    for folder in _cgroup_folders(proc=proc, cgroups=cgroups):
        try:
            cap = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            cached = (folder / "memory.stat").read_text().splitlines()
        except OSError:
            continue
        if cap != "max":
            reclaimable = sum(int(line.split()[1]) for line in cached if line.startswith("file "))
            available = min(available, max(0, int(cap) - used + reclaimable))
    return available


def process_memory(pid: int | None = None, *, proc: Path = PROC) -> tuple[int, int]:
    """Return the bytes of a process, this one by default, that are in memory: pages of its own, and
    pages of files that it maps. Both 0 where there is no ``/proc`` or no such process."""
    sizes = _process_sizes(pid, proc)
    return sizes.get("RssAnon", 0), sizes.get("RssFile", 0)


def held_memory_bytes(pid: int, *, proc: Path = PROC) -> int | None:
    """Return the memory that the end of this process gives back; None where that is unknown.

    Pages of mapped files are left out: they are page cache, which counts as available while they
    are in use. Those that are locked are not, so they are counted here.
    """
    sizes = _process_sizes(pid, proc)
    if "RssAnon" not in sizes:
        return None
    own = sizes["RssAnon"] + sizes.get("RssShmem", 0)
    return own + min(sizes.get("RssFile", 0), sizes.get("VmLck", 0))


def mapped_bytes(*, proc: Path = PROC) -> int | None:
    """Return the address space that this process has mapped; None where there is no ``/proc``."""
    try:
        return int((proc / "self" / "statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def resident_bytes(*, proc: Path = PROC) -> int:
    """Return memory that this process holds now, what it shares with its parent counted in; the
    most that it ever held where there is no ``/proc``."""
    try:
        return int((proc / "self" / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _process_sizes(pid: int | None, proc: Path) -> dict[str, int]:
    """Return the sizes in a process's status by name, in bytes; empty where there is none."""
    try:
        text = (proc / ("self" if pid is None else str(pid)) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: int(digits) * 1024 for name, digits in _SIZE_LINE.findall(text)}


def _text_of(path: Path) -> str:
    """Return what a file of the kernel says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cgroup_folders(*, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the process's control group (version 2) and every one above it, innermost first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            folder = cgroups / line.removeprefix("0::/")
            yield folder
            yield from (above for above in folder.parents if above.is_relative_to(cgroups))


def _read_upwards(name: str, *, proc: Path, cgroups: Path) -> Iterator[str]:
    for folder in _cgroup_folders(proc=proc, cgroups=cgroups):
        try:
            yield (folder / name).read_text()
        except OSError:
            continue  # the root has no limits, and a container may hide what is above it
