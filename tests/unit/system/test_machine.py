"""What the machine grants, read from laid-out copies of /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddler_trio.system.machine import (
    available_memory_bytes,
    granted_cores,
    granted_physical_cores,
    held_memory_bytes,
    parse_cpu_flags,
    parse_cpu_list,
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


def test_hardware_threads_of_one_core_count_once(
    proc: Path, cgroups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four cores of two threads each, of which the mask leaves out one thread and one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6})
    for cpu in range(8):
        topology = tmp_path / "system" / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == 3
    (cgroups / "machine" / "cpu.max").write_text("250000 100000\n")
    assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == 2


def test_efficiency_cores_do_not_count_beside_performance_cores(
    proc: Path, cgroups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two performance cores of two threads each, four efficiency cores of one."""
    for cpu in range(8):
        topology = tmp_path / "system" / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" if cpu < 4 else f"{cpu}"
        (topology / "thread_siblings_list").write_text(f"{pair}\n")
    (tmp_path / "cpu_core").mkdir()
    (tmp_path / "cpu_core" / "cpus").write_text("0-3\n")
    for mask, counted in ((set(range(8)), 2), ({3, 4, 5}, 1), ({5, 6, 7}, 3)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, mask=mask: mask)
        assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == counted


def test_every_core_counts_where_the_system_tells_of_no_threads(
    proc: Path, cgroups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.sched_getaffinity(0)
    assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == len(allowed)
    (cgroups / "machine" / "cpu.max").write_text("50000 100000\n")
    assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert granted_physical_cores(proc=proc, cgroups=cgroups, devices=tmp_path) == 1


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("5,7-7", {5, 7})]
)
def test_lists_of_cores_are_read_as_the_kernel_writes_them(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


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
