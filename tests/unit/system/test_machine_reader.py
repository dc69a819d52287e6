"""What a machine is and how it is doing, from files that a test lays out as other machines do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paddler_trio.system.hardware.machine_reader import MachineReader, amd_gpus, cpu_temperature
from paddler_trio.system.hardware.nvidia_gpus import MAX_OUTPUT_BYTES, nvidia_gpus, read_gpus
from paddler_trio.wire.trio.operations.machine_facts import GpuFacts

GIB = 1024.0**3


def lay_out(folder: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return folder


def reader(folder: Path) -> MachineReader:
    return MachineReader(
        "1.2.3", folder / "proc", folder / "sys", folder / "cgroup", folder / "etc"
    )


def test_the_facts_of_a_machine_with_everything(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name : EPYC 9654\n",
            "proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n",
            "proc/stat": "cpu 100 0 100 800 0 0 0 0 50 0\ncpu0 1 1 1 1 1",
            "proc/uptime": "86400.5 99.0",
            "etc/os-release": 'NAME=Debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "sys/class/hwmon/hwmon0/name": "nvme",
            "sys/class/hwmon/hwmon0/temp1_input": 99000,
            "sys/class/hwmon/hwmon1/name": "k10temp",
            "sys/class/hwmon/hwmon1/temp1_input": 61000,
            "sys/class/hwmon/hwmon1/temp2_input": 64500,
            "sys/class/powercap/intel-rapl:0/energy_uj": 5_000_000,
            "sys/class/powercap/intel-rapl:0:0/energy_uj": 1,
        },
    )
    machine = reader(tmp_path)
    first = machine.read()
    assert first.system == "Debian GNU/Linux 12 (bookworm)"
    assert first.cpu == "EPYC 9654"
    assert first.memory_bytes == GIB
    assert first.memory_available_bytes == GIB / 2
    assert first.temperature_c == 64.5
    assert first.up_s == 86400.5
    assert first.version == "1.2.3"
    assert first.busy is None, "a rate needs two looks"
    assert first.power_w is None
    lay_out(tmp_path, {"proc/stat": "cpu 175 0 100 825 0 0 0 0 50 0"})
    assert machine.read().busy == 0.75


def test_watts_are_those_of_whole_packages_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    zones = "sys/class/powercap/intel-rapl:"
    files = {f"{zones}0/energy_uj": 1_000_000, f"{zones}1/energy_uj": 0, f"{zones}0:0/energy_uj": 0}
    lay_out(tmp_path, files)
    machine = reader(tmp_path)
    assert machine.read().power_w is None
    now_s += 2.0
    grown = {f"{zones}0/energy_uj": 201_000_000, f"{zones}1/energy_uj": 50_000_000}
    lay_out(tmp_path, {**grown, f"{zones}0:0/energy_uj": 100_000_000})
    assert machine.read().power_w == 125.0
    now_s += 2.0
    lay_out(tmp_path, {f"{zones}0/energy_uj": 5})  # the counter began anew
    assert machine.read().power_w == 0.0


def test_a_machine_that_says_nothing_has_no_facts_and_no_error(tmp_path: Path) -> None:
    facts = reader(tmp_path).read()
    assert facts.busy is None
    assert facts.temperature_c is None
    assert facts.memory_available_bytes is None
    assert facts.gpus == ()
    assert facts.memory_bytes is not None, "the system knows how many pages there are"


def test_files_that_hold_no_numbers_are_no_facts(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone0/temp": "hot",
            "sys/class/drm/card0/device/mem_info_vram_total": "",
        },
    )
    assert cpu_temperature(tmp_path / "sys") is None
    assert amd_gpus(tmp_path / "sys") == ()


def test_amds_gpus_are_read_from_their_drivers_files(tmp_path: Path) -> None:
    card = "sys/class/drm/card1/device"
    lay_out(
        tmp_path,
        {
            "sys/class/drm/card0/device/vendor": "0x1002",
            f"{card}/mem_info_vram_total": int(64 * GIB),
            f"{card}/mem_info_vram_used": int(16 * GIB),
            f"{card}/gpu_busy_percent": 87,
            f"{card}/product_name": "Instinct MI210",
            f"{card}/hwmon/hwmon3/temp1_input": 71000,
            f"{card}/hwmon/hwmon3/power1_average": 210_500_000,
        },
    )
    assert amd_gpus(tmp_path / "sys") == (
        GpuFacts(
            name="Instinct MI210",
            driver="amdgpu",
            memory_bytes=64 * GIB,
            memory_used_bytes=16 * GIB,
            busy=0.87,
            temperature_c=71.0,
            power_w=210.5,
        ),
    )


def test_the_other_way_is_taken_where_there_is_no_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    facts = reader(tmp_path).read()
    assert facts.system.startswith("macOS")
    assert facts.cpu == "", "this machine has no sysctl of a Mac's"


# --------------------------------------------------------------------------------- nvidia-smi

TWO_GPUS = """NVIDIA H200, 570.124.06, 143771, 1024, 37, 41, 121.50
NVIDIA L4, 570.124.06, 23034, 0, [N/A], 38, [Not Supported]
"""


def test_gpus_are_read_from_the_lines_of_nvidia_smi() -> None:
    mebibyte = 1024.0**2
    assert read_gpus(TWO_GPUS) == (
        GpuFacts(
            name="NVIDIA H200",
            driver="570.124.06",
            memory_bytes=143771 * mebibyte,
            memory_used_bytes=1024 * mebibyte,
            busy=0.37,
            temperature_c=41.0,
            power_w=121.5,
        ),
        GpuFacts(
            name="NVIDIA L4",
            driver="570.124.06",
            memory_bytes=23034 * mebibyte,
            memory_used_bytes=0.0,
            temperature_c=38.0,
        ),
    )
    assert read_gpus("Failed to initialize NVML: Driver/library version mismatch\n") == ()


def program(folder: Path, script: str) -> None:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "count"),
    [
        (f"cat <<'END'\n{TWO_GPUS}END", 2),
        ("exit 9", None),
        (f"head -c {2 * MAX_OUTPUT_BYTES} /dev/zero; exec sleep 100", None),
        ("exec sleep 100", None),
    ],
)
async def test_the_program_is_asked_and_never_waited_for_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int | None
) -> None:
    program(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    limit_s = "paddler_trio.system.hardware.nvidia_gpus.ANSWER_S"
    monkeypatch.setattr(limit_s, 1.0 if script.startswith("exec") else 60.0)
    gpus = await nvidia_gpus()
    assert (None if gpus is None else len(gpus)) == count


async def test_a_file_that_is_no_program_and_no_file_at_all_are_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await nvidia_gpus() is None
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF nothing")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert await nvidia_gpus() is None
