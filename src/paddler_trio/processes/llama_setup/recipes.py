"""Choose which builds of llama.cpp to try on a machine, best first."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

DISTRIBUTION: Final = "llama-cpp-python"
VERSION: Final = "0.3.36"
"""The same pin as in ``pyproject.toml``; a test compares them."""

Accelerator: TypeAlias = Literal["cpu", "cuda", "vulkan", "metal"]
SWITCHES: Final[dict[Accelerator, str]] = {
    "cuda": "-DGGML_CUDA=ON",
    "vulkan": "-DGGML_VULKAN=ON",
    "metal": "-DGGML_METAL=ON",
}

# libllama-common (chat, downloads, argument parsing: nearly half of the compile time) is behind no
# Python call, and the package switches it on without asking; a variable set after project() wins.
LEAN: Final = "set(LLAMA_BUILD_COMMON OFF)\n"
LEAN_OPTIONS: Final = ("-DLLAMA_ALL_WARNINGS=OFF", "-DGGML_ALL_WARNINGS=OFF")

MACOS: Final = "Darwin"
NO_METAL: Final = "-DGGML_METAL=OFF"
"""On a Mac llama.cpp has Metal unless it is told otherwise."""

# For `agent --rpc` and `rpc-server`: a small library that does nothing until it is asked to.
RPC: Final = "-DGGML_RPC=ON"

COMPILER_JOB_BYTES: Final = 1 << 30
"""Room for one compiler on the larger files of llama.cpp."""

# CMake option -> what /proc/cpuinfo must list for it. AMX is never asked for: it faults on
# virtual machines that advertise it. Nor is AVX512_BF16: gcc 12 does not compile it.
BASIC: Final = {
    "GGML_SSE42": {"sse4_2"},
    "GGML_AVX": {"avx"},
    "GGML_AVX2": {"avx2"},
    "GGML_FMA": {"fma"},
    "GGML_F16C": {"f16c"},
    "GGML_BMI2": {"bmi2"},
}
WIDE: Final = {
    "GGML_AVX512": {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"},
    "GGML_AVX512_VBMI": {"avx512f", "avx512vbmi"},
    "GGML_AVX512_VNNI": {"avx512f", "avx512_vnni"},
}


@dataclass(frozen=True)
class Recipe:
    """One way to build: a word for people, and CMake arguments (``lean``: without unused parts)."""

    name: str
    cmake_args: tuple[str, ...]
    lean: bool = True


FOUND: Final = Recipe("found installed", ())
"""The recipe of what was put there when the environment was made."""

PORTABLE: Final = "portable"
"""The beginning of the names of recipes for other machines."""

PORTABLE_FLAGS: Final = frozenset().union(*BASIC.values())
"""x86-64-v3: every x86 server since 2015. What a package for other machines is built for."""


def choose_recipes(
    flags: Iterable[str],
    *,
    machine: str,
    requested: str | None = None,
    accelerator: Accelerator = "cpu",
    system: str = "Linux",
) -> list[Recipe]:
    """Return what to try, best first.

    Args:
      flags: features from ``/proc/cpuinfo``; empty where there is none.
      machine: ``platform.machine()``.
      system: ``platform.system()``.
      requested: CMAKE_ARGS if the user set them, else None.
      accelerator: what computes beside the CPU; every recipe has it, or none does.

    Returns:
      At least one recipe, no two with the same arguments.
    """
    if requested is not None:
        return [Recipe("your CMAKE_ARGS", tuple(shlex.split(requested)), lean=False)]
    extra = (RPC, *(SWITCHES[accelerator],)) if accelerator in SWITCHES else (RPC,)
    if system == MACOS and accelerator != "metal":
        extra = (*extra, NO_METAL)
    suffix = f" with {accelerator}" if accelerator in SWITCHES else ""
    present = frozenset(flags)
    if machine.lower() not in {"x86_64", "amd64"} or not present:
        # ggml's own probe is right on ARM; without flags to read there is nothing better.
        return [
            Recipe(f"native{suffix}", extra),
            Recipe(f"baseline{suffix}", ("-DGGML_NATIVE=OFF", *extra)),
        ]

    def recipe(name: str, options: dict[str, set[str]]) -> Recipe:
        switches = {
            option: "ON" if option in options and needs <= present else "OFF"
            for option, needs in (BASIC | WIDE).items()
        }
        if switches["GGML_AVX512"] == "OFF":
            switches |= dict.fromkeys(WIDE, "OFF")
        arguments = tuple(f"-D{option}={switch}" for option, switch in switches.items())
        return Recipe(f"{name}{suffix}", ("-DGGML_NATIVE=OFF", *arguments, *extra))

    ladder = [recipe("avx512", BASIC | WIDE), recipe("avx2", BASIC), recipe("baseline", {})]
    distinct = {step.cmake_args: step for step in ladder}  # of equals the humbler name stays
    return list(distinct.values())


def usual_accelerator(system: str, machine: str) -> Accelerator:
    """Return what models are computed on if nobody chooses: a Mac's own processors have a GPU."""
    return "metal" if (system, machine.lower()) == (MACOS, "arm64") else "cpu"


def portable_recipes(
    machine: str, accelerator: Accelerator = "cpu", *, system: str = "Linux"
) -> list[Recipe]:
    """Return what to build for other machines than this one, best first."""
    return [
        replace(each, name=f"{PORTABLE} {each.name}")
        for each in choose_recipes(
            PORTABLE_FLAGS, machine=machine, accelerator=accelerator, system=system
        )
        if each.cmake_args[0] == "-DGGML_NATIVE=OFF"
    ]


def wheel_key(
    recipe: Recipe,
    *,
    flags: Iterable[str],
    compiler: str,
    system: str,
    architectures: Sequence[str] = (),
) -> str:
    """Return the folder a wheel is kept under: equal only if a build would come out the same.

    The version of Python is not among the facts: the bindings reach the library by ctypes, and one
    wheel serves them all.
    """
    facts = [
        VERSION,
        [*recipe.cmake_args, *((LEAN, *LEAN_OPTIONS) if recipe.lean else ())],
        sorted(flags),
        compiler,
        system,
        *architectures,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def count_jobs(cores: float, memory_bytes: int | None) -> int:
    """Return how many compilers to run side by side: one a core, as long as each has the memory it
    needs."""
    by_memory = math.inf if memory_bytes is None else memory_bytes // COMPILER_JOB_BYTES
    return max(1, int(min(math.ceil(cores), by_memory)))
