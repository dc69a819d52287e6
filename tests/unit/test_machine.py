"""What the machine grants, read from laid-out copies of /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddler_trio.machine import (
    available_memory_bytes,
    granted_cores,
    held_memory_bytes,
    parse_cpu_flags,
    read_cpu_flags,
)

GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "cgroup").write_text("0::/machine/service\n")
    (folder / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return folder


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    (folder / "machine" / "service").mkdir(parents=True)
    return folder


def test_flags_are_those_every_core_has() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx2 amx_tile\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n"
    assert parse_cpu_flags(text) == {"fpu", "avx2"}
    assert parse_cpu_flags("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert parse_cpu_flags("") == frozenset()


def test_a_machine_without_proc_has_no_flags_and_unknown_memory(tmp_path: Path) -> None:
    assert read_cpu_flags(tmp_path) == frozenset()
    assert available_memory_bytes(proc=tmp_path, cgroups=tmp_path) is None


def test_cores_are_cut_by_the_tightest_quota_above_us(proc: Path, cgroups: Path) -> None:
    granted = granted_cores(proc=proc, cgroups=cgroups)
    assert granted == len(os.sched_getaffinity(0))
    (cgroups / "machine" / "cpu.max").write_text("50000 100000\n")
    (cgroups / "machine" / "service" / "cpu.max").write_text("max 100000\n")
    assert granted_cores(proc=proc, cgroups=cgroups) == 0.5


def test_memory_is_cut_by_what_the_control_group_has_left(proc: Path, cgroups: Path) -> None:
    assert available_memory_bytes(proc=proc, cgroups=cgroups) == 8 * GIB
    service = cgroups / "machine" / "service"
    (service / "memory.max").write_text(f"{4 * GIB}\n")
    (service / "memory.current").write_text(f"{3 * GIB}\n")
    (service / "memory.stat").write_text(f"anon {2 * GIB}\nfile {GIB}\n")
    assert available_memory_bytes(proc=proc, cgroups=cgroups) == 2 * GIB
    (service / "memory.max").write_text("max\n")
    assert available_memory_bytes(proc=proc, cgroups=cgroups) == 8 * GIB


def test_this_machine_grants_something() -> None:
    assert granted_cores() > 0
    memory_bytes = available_memory_bytes()
    assert memory_bytes is None or memory_bytes > 0


def test_the_end_of_a_process_gives_back_its_own_pages_and_those_it_locked(tmp_path: Path) -> None:
    status = tmp_path / "7" / "status"
    status.parent.mkdir()
    sizes = {"VmRSS": 1000, "VmLck": 0, "RssAnon": 300, "RssFile": 600, "RssShmem": 5}
    name = "Name:\tpython kB"  # a process may call itself anything

    def write(**changes: int) -> None:
        lines = [name, *(f"{k}:\t   {v} kB" for k, v in (sizes | changes).items())]
        status.write_text("\n".join(lines))

    write()
    assert held_memory_bytes(7, proc=tmp_path) == 305 * 1024
    write(VmLck=500)
    assert held_memory_bytes(7, proc=tmp_path) == 805 * 1024
    write(VmLck=5000)
    assert held_memory_bytes(7, proc=tmp_path) == 905 * 1024
    assert held_memory_bytes(8, proc=tmp_path) is None
