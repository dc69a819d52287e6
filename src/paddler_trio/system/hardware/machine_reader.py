"""Read what a machine is and how it is doing. All of it blocks: call it in a thread.

Linux tells in files; elsewhere less is known, and what is not is left out. Each reader takes the
files' folders as arguments, so a test can lay out another machine.

The build of llama.cpp that is installed.

llama.cpp is asked without its bindings, whose import takes longer than everything else here: the
smallest of its libraries, ggml's base, knows the version and the commit.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.system.machine import CGROUPS, PROC, available_memory_bytes, granted_cores
from paddler_trio.wire.trio.operations.machine_facts import MAX_GPUS, GpuFacts, MachineFacts

FOLDER_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
"""Where the bindings look for llama.cpp's libraries, if not beside themselves."""


def llama_cpp_build() -> str:
    """Return commit and version, or why they are not known."""
    folder = _library_folder()
    if folder is None:
        return "is not installed"
    try:
        library = ctypes.CDLL(str(folder / _ggml_library()))
    except OSError as error:
        return f"cannot be loaded: {error}"
    version, commit = (_said_by(library, name) for name in ("ggml_version", "ggml_commit"))
    if version is None:
        return "does not say its build"
    return f"with ggml {version}" if commit is None else f"{commit} with ggml {version}"


def _ggml_library() -> str:
    return "libggml-base.dylib" if sys.platform == "darwin" else "libggml-base.so"


def _library_folder() -> Path | None:
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    spec = importlib.util.find_spec("llama_cpp")  # nothing of it is imported
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "lib"


def _said_by(library: ctypes.CDLL, name: str) -> str | None:
    try:
        function = getattr(library, name)
    except AttributeError:
        return None  # older than the function
    function.restype = ctypes.c_char_p
    said: bytes | None = function()
    return None if said is None else said.decode(errors="replace")


SYS: Final = Path("/sys")
CPU_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""The names of the kernel's sensors that are in processors."""
_LEAST_S: Final = 0.2
"""Between two looks from which a rate is computed."""
_SYSCTL_S: Final = 2.0


@attrs.define
class MachineReader:
    """Reads the facts again and again; rates are those since the time before.

    Args:
      version: of paddler-trio.
    """

    version: str
    proc: Path = PROC
    sys: Path = SYS
    cgroups: Path = CGROUPS
    etc: Path = Path("/etc")
    _began_s: float = attrs.field(factory=time.monotonic, init=False)
    _fixed: MachineFacts | None = attrs.field(default=None, init=False)
    """What does not change."""
    _times: tuple[float, float] | None = attrs.field(default=None, init=False)
    """Of all cores, in ticks: that they were used, and in all."""
    _energy: dict[str, tuple[float, float]] = attrs.field(factory=dict, init=False)
    """By counter: joules, and when they were read."""

    def read(self) -> MachineFacts:
        """Return the facts as they are now, but for GPUs of others than AMD."""
        if self._fixed is None:
            self._fixed = self._read_fixed()
        now_s = time.monotonic()
        return attrs.evolve(
            self._fixed,
            busy=self._busy(),
            memory_available_bytes=available_memory_bytes(proc=self.proc, cgroups=self.cgroups),
            temperature_c=cpu_temperature(self.sys),
            power_w=self._power(now_s),
            up_s=first_number(self.proc / "uptime"),
            agent_up_s=now_s - self._began_s,
            gpus=amd_gpus(self.sys),
        )

    def _read_fixed(self) -> MachineFacts:
        return MachineFacts(
            system=_system(self.etc),
            kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
            cpu=_cpu(self.proc),
            cores=os.cpu_count(),
            granted_cores=granted_cores(proc=self.proc, cgroups=self.cgroups),
            memory_bytes=_memory(self.proc),
            version=self.version,
            llama_cpp=llama_cpp_build(),
        )

    def _busy(self) -> float | None:
        """Return the part of the time that was used since the look before."""
        for line in _lines(self.proc / "stat"):
            name, *words = line.split()
            if name == "cpu" and len(words) >= 5:
                ticks = [float(word) for word in words[:8]]  # guests' time is in user's, too
                total, idle = sum(ticks), ticks[3] + ticks[4]
                before, self._times = self._times, (total - idle, total)
                if before is None or total <= before[1]:
                    return None
                return min(1.0, max(0.0, (total - idle - before[0]) / (total - before[1])))
        return None

    def _power(self, now_s: float) -> float | None:
        """Return the watts of all packages since the look before; most systems show that to their
        administrator only."""
        watts: list[float] = []
        for zone in sorted((self.sys / "class" / "powercap").glob("intel-rapl:*")):
            if zone.name.count(":") > 1:
                continue  # a part of a package
            microjoules = first_number(zone / "energy_uj")
            if microjoules is None:
                continue
            joules = microjoules / 1e6
            before = self._energy.get(zone.name)
            self._energy[zone.name] = (joules, now_s)
            if before is not None and joules >= before[0] and now_s - before[1] >= _LEAST_S:
                watts.append((joules - before[0]) / (now_s - before[1]))
        return sum(watts) if watts else None


def first_number(path: Path) -> float | None:
    """Return the number that a file of the kernel begins with; None where there is none."""
    try:
        return float(next(iter(_lines(path)), "").split()[0])
    except (IndexError, ValueError):
        return None


def cpu_temperature(sys_folder: Path = SYS) -> float | None:
    """Return the hottest of the processors' sensors, in degrees Celsius."""
    found = []
    for sensor in sorted((sys_folder / "class" / "hwmon").glob("hwmon*")):
        if next(iter(_lines(sensor / "name")), "") in CPU_SENSORS:
            found += [first_number(each) for each in sensor.glob("temp*_input")]
    if not found:
        for zone in sorted((sys_folder / "class" / "thermal").glob("thermal_zone*")):
            if next(iter(_lines(zone / "type")), "") in ("x86_pkg_temp", "cpu-thermal"):
                found.append(first_number(zone / "temp"))
    known = [each for each in found if each is not None]
    return max(known) / 1000 if known else None


def amd_gpus(sys_folder: Path = SYS) -> tuple[GpuFacts, ...]:
    """Return AMD's GPUs, of which their driver tells in files."""
    gpus = []
    for card in sorted((sys_folder / "class" / "drm").glob("card[0-9]*")):
        device = card / "device"
        total = first_number(device / "mem_info_vram_total")
        if total is None:
            continue
        busy = first_number(device / "gpu_busy_percent")
        sensors = sorted(device.glob("hwmon/hwmon*"))
        hottest = _first_known(sensor / "temp1_input" for sensor in sensors)
        watts = _first_known(
            sensor / name for sensor in sensors for name in ("power1_average", "power1_input")
        )
        gpus.append(
            GpuFacts(
                name=next(iter(_lines(device / "product_name")), "") or f"AMD {card.name}",
                driver="amdgpu",
                memory_bytes=total,
                memory_used_bytes=first_number(device / "mem_info_vram_used"),
                busy=None if busy is None else busy / 100,
                temperature_c=None if hottest is None else hottest / 1000,
                power_w=None if watts is None else watts / 1e6,
            )
        )
    return tuple(gpus[:MAX_GPUS])


def _first_known(paths: Iterable[Path]) -> float | None:
    return next((each for each in map(first_number, paths) if each is not None), None)


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; none where it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _is_mac() -> bool:
    return sys.platform == "darwin"


def _system(etc: Path) -> str:
    if _is_mac():
        return f"macOS {platform.mac_ver()[0]}"
    for line in _lines(etc / "os-release"):
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip('"')
    return platform.system()


def _cpu(proc: Path) -> str:
    if _is_mac():
        return _sysctl("machdep.cpu.brand_string")
    for line in _lines(proc / "cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor()


def _memory(proc: Path) -> float | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemTotal:"):
            return float(line.split()[1]) * 1024
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return None


def _sysctl(name: str) -> str:
    """Return what a Mac's kernel says under this name; empty if it says nothing in time."""
    try:
        said = subprocess.run(  # noqa: S603  # the system's own, by its path
            ["/usr/sbin/sysctl", "-n", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SYSCTL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.decode(errors="replace").strip()
