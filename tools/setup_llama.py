"""Put a llama.cpp that provably runs on this machine into the virtual environment.

``pip install llama-cpp-python`` compiles for whatever the CPU advertises. Virtual machines
advertise features that fault when used (AMX tiles are the known case), old compilers reject
others, and pip's wheel cache hands back a broken build without looking at CMAKE_ARGS. So:

1. A build already proven in this environment is kept; that answer takes a fraction of a second.
   One of our own choice is kept only as long as we would still build it in this way.
2. Otherwise recipes are tried in order, from everything this CPU can use down to the baseline
   every 64-bit CPU runs. Each has the RPC back end, so that a model can be spread over machines.
   Whoever sets CMAKE_ARGS (CUDA, Vulkan, ...) gets exactly that and nothing else is tried.
3. A recipe counts when a child process has decoded a prompt with it. Its wheel is then kept in
   ``${XDG_CACHE_HOME:-~/.cache}/paddler-trio/wheels`` for the next checkout on this machine.

Invariants: no wheel is used that this program did not build or see proven; nothing is remembered
before its proof; a remembered proof is void as soon as the CPU or the installed libraries differ.

Only the standard library is used: nothing else is installed when this runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # the package is not installed yet when this first runs

from paddler_trio.engine.proof import BUNDLED_MODEL, Proof, prove_in_child  # noqa: E402
from paddler_trio.machine import (  # noqa: E402
    available_memory_bytes,
    granted_cores,
    read_cpu_flags,
)

DISTRIBUTION = "llama-cpp-python"
VERSION = "0.3.36"  # the same pin as in pyproject.toml; a test compares them
MARKER = Path(sys.prefix) / "llama-proof.json"
LOG = Path(sys.prefix) / "llama-build.log"
HEARTBEAT_S = 5.0
COMPILER_JOB_BYTES = 1 << 30  # room for one compiler on the larger files of llama.cpp

# libllama-common (chat, downloads, argument parsing: nearly half of the compile time) is behind no
# Python call, and the package switches it on without asking; a variable set after project() wins.
LEAN = "set(LLAMA_BUILD_COMMON OFF)\n"
LEAN_OPTIONS = ("-DLLAMA_ALL_WARNINGS=OFF", "-DGGML_ALL_WARNINGS=OFF")

# For `agent --rpc` and `rpc-server`: a small library that does nothing until it is asked to.
RPC = "-DGGML_RPC=ON"

# CMake option -> what /proc/cpuinfo must list for it. AMX is never asked for: it faults on
# virtual machines that advertise it. Nor is AVX512_BF16: gcc 12 does not compile it.
BASIC = {
    "GGML_SSE42": {"sse4_2"},
    "GGML_AVX": {"avx"},
    "GGML_AVX2": {"avx2"},
    "GGML_FMA": {"fma"},
    "GGML_F16C": {"f16c"},
    "GGML_BMI2": {"bmi2"},
}
WIDE = {
    "GGML_AVX512": {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"},
    "GGML_AVX512_VBMI": {"avx512f", "avx512vbmi"},
    "GGML_AVX512_VNNI": {"avx512f", "avx512_vnni"},
}


class SetupError(Exception):
    """The machine cannot be set up; the text says what to do."""


@dataclass(frozen=True)
class Recipe:
    """One way to build: a word for people, and CMake arguments (``lean``: without unused parts)."""

    name: str
    cmake_args: tuple[str, ...]
    lean: bool = True


FOUND = Recipe("found installed", ())  # by whoever made the environment: not ours to replace


@dataclass(frozen=True)
class Marker:
    """What is remembered of a proof, in the environment it was made for."""

    recipe: str
    requested: str | None  # CMAKE_ARGS as the user set them, None for our own choice
    cpu: str
    libraries: str
    system_info: str
    cmake_args: tuple[str, ...] = ()  # of the recipe; empty where this was not yet remembered


# --- pure ---------------------------------------------------------------------------------------


def choose_recipes(flags: Iterable[str], *, machine: str, requested: str | None) -> list[Recipe]:
    """What to try, best first.

    Args:
      flags: features from ``/proc/cpuinfo``; empty where there is none.
      machine: ``platform.machine()``.
      requested: CMAKE_ARGS if the user set them, else None.

    Returns:
      At least one recipe, no two with the same arguments.
    """
    if requested is not None:
        return [Recipe("your CMAKE_ARGS", tuple(shlex.split(requested)), lean=False)]
    present = frozenset(flags)
    if machine.lower() not in {"x86_64", "amd64"} or not present:
        # ggml's own probe is right on ARM; without flags to read there is nothing better.
        return [Recipe("native", (RPC,)), Recipe("baseline", ("-DGGML_NATIVE=OFF", RPC))]

    def recipe(name: str, options: dict[str, set[str]]) -> Recipe:
        switches = {
            option: "ON" if option in options and needs <= present else "OFF"
            for option, needs in (BASIC | WIDE).items()
        }
        if switches["GGML_AVX512"] == "OFF":
            switches |= dict.fromkeys(WIDE, "OFF")
        arguments = tuple(f"-D{option}={switch}" for option, switch in switches.items())
        return Recipe(name, ("-DGGML_NATIVE=OFF", *arguments, RPC))

    ladder = [recipe("avx512", BASIC | WIDE), recipe("avx2", BASIC), recipe("baseline", {})]
    distinct = {step.cmake_args: step for step in ladder}  # of equals the humbler name stays
    return list(distinct.values())


def wheel_key(recipe: Recipe, *, flags: Iterable[str], compiler: str, abi: str, system: str) -> str:
    """The folder a wheel is kept under: equal only if a build would come out the same."""
    facts = [
        VERSION,
        [*recipe.cmake_args, *((LEAN, *LEAN_OPTIONS) if recipe.lean else ())],
        sorted(flags),
        compiler,
        abi,
        system,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def count_jobs(cores: float, memory_bytes: int | None) -> int:
    """Compilers to run side by side: one a core, as long as each has the memory it needs."""
    by_memory = math.inf if memory_bytes is None else memory_bytes // COMPILER_JOB_BYTES
    return max(1, int(min(math.ceil(cores), by_memory)))


def describe_progress(log: str) -> str:
    """Where a build stands, from the end of its log, in one phrase."""
    steps = re.findall(r"^\s*(\[\d+/\d+\]|\[ *\d+%\])", log, re.MULTILINE)
    if "Successfully built" in log:
        return "packing the wheel"
    if steps:
        return f"{steps[-1]} compiling"
    if "Building wheel" in log:
        return "configuring"
    if "build dependencies" in log:
        return "fetching the build tools"
    return "downloading the source (77 MB)"


def build_started(log: str) -> bool:
    """Whether the compiler ran at all: if not, a humbler recipe would fail in the same way."""
    return re.search(r"^\s*(\[\d+/\d+\]|\[ *\d+%\])", log, re.MULTILINE) is not None


def is_proven(
    marker: Marker | None,
    *,
    requested: str | None,
    cpu: str,
    libraries: str | None,
    recipes: Sequence[Recipe],
) -> bool:
    """Whether a remembered proof still speaks for what is installed, and for what is asked."""
    return (
        marker is not None
        and libraries is not None
        and (marker.cpu, marker.libraries) == (cpu, libraries)
        and requested in (None, marker.requested)  # a build of one's own stays until asked anew
        and not is_outdated(marker, libraries=libraries, recipes=recipes)
    )


def is_outdated(marker: Marker | None, *, libraries: str | None, recipes: Sequence[Recipe]) -> bool:
    """Whether what is installed was our own choice, and is none that we would make today."""
    return (
        marker is not None
        and marker.libraries == libraries
        and marker.requested is None
        and marker.recipe != FOUND.name
        and marker.cmake_args not in [recipe.cmake_args for recipe in recipes]
    )


# --- what is there ------------------------------------------------------------------------------


def digest(parts: Iterable[str]) -> str:
    """A short name for a set of facts."""
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:24]


def read_marker() -> Marker | None:
    """The remembered proof of this environment; None if there is none that can be read."""
    try:
        facts = json.loads(MARKER.read_text())
        return Marker(**facts | {"cmake_args": tuple(facts.get("cmake_args", ()))})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def fingerprint_libraries() -> str | None:
    """Names, sizes, times of the installed libraries; None unless the pinned version is there."""
    try:
        if importlib.metadata.version(DISTRIBUTION) != VERSION:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
    files = [(path.name, path.stat()) for path in folder.iterdir()] if folder.is_dir() else []
    return digest(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files) or None


def find_compiler() -> str:
    """The first line of the C++ compiler's version, or a SetupError saying how to get one."""
    for command in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            shown = subprocess.run(
                [*words, "--version"], capture_output=True, text=True, check=False
            )
            return shown.stdout.partition("\n")[0]
    raise SetupError(
        "no C++ compiler found, and llama.cpp has to be compiled once.\n"
        "  Debian, Ubuntu:  sudo apt-get install build-essential cmake\n"
        "  Fedora:          sudo dnf install gcc-c++ make cmake\n"
        "  macOS:           xcode-select --install\n"
        "then run `make setup` again."
    )


def wheel_folder(key: str) -> Path:
    """Where a proven wheel is kept; XDG asks for relative values to be ignored."""
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = told if told.is_absolute() else Path("~/.cache").expanduser()
    return base / "paddler-trio" / "wheels" / key


# --- doing --------------------------------------------------------------------------------------


def say(text: str) -> None:
    """One line for the person waiting, out at once even through a pipe."""
    print(text, flush=True)


def pip(*arguments: str) -> None:
    """Run this environment's pip quietly; its own words are the error."""
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise SetupError(f"pip {shlex.join(arguments)} failed:\n{ended.stdout.strip()}")


def install_wheel(wheel: Path) -> None:
    """Put ``wheel`` in place of whatever build is there, and what it imports beside it."""
    pip("install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
    pip("install", "--quiet", str(wheel))


def build_wheel(recipe: Recipe, folder: Path) -> Path | None:
    """Compile llama.cpp, with a heartbeat on standard output and everything else in ``LOG``.

    Returns:
      The wheel inside ``folder``, or None if the compiler refused this recipe.

    Raises:
      SetupError: nothing was compiled (no network, no disk): no other recipe would do better.
    """
    cmake_args = list(recipe.cmake_args)
    if recipe.lean:
        lean = folder / "lean.cmake"
        lean.write_text(LEAN)
        cmake_args += [*LEAN_OPTIONS, f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={lean}"]
    jobs = count_jobs(granted_cores(), available_memory_bytes())
    # What make tells its children about its own jobs is not meant for another build.
    environment = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS"}}
    environment["CMAKE_ARGS"] = shlex.join(cmake_args)
    environment["TMPDIR"] = str(folder)  # pip leaves its folders behind when it is stopped
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs))
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--progress-bar", "off"]
    # The cache answers without regard to CMAKE_ARGS; without ninja, make would use one core.
    command += ["--no-cache-dir", "--no-deps", "--no-binary", DISTRIBUTION]
    command += ["--config-settings", "ninja.make-fallback=false"]
    command += ["--wheel-dir", str(folder), f"{DISTRIBUTION}=={VERSION}"]

    say(f"==> building llama.cpp ({recipe.name}) with {jobs} jobs: minutes, once a machine")
    began_s = time.monotonic()
    with LOG.open("w") as log:
        log.write(f"CMAKE_ARGS={environment['CMAKE_ARGS']}\n{shlex.join(command)}\n")
        log.flush()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that stopping it stops the compilers under it
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(HEARTBEAT_S)
                    break
                say(f"    {describe_progress(read_log())}, {time.monotonic() - began_s:.0f} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode == 0 and wheels:
        return wheels[0]
    last_lines = "\n".join(read_log().splitlines()[-30:])
    say(f"{last_lines}\n==> the build failed; the whole log is in {LOG}")
    if not build_started(read_log()):
        raise SetupError(f"llama.cpp could not be fetched or configured; see {LOG}")
    return None


def read_log() -> str:
    """The last 256 kB of the build log."""
    with LOG.open("rb") as log:
        log.seek(max(0, LOG.stat().st_size - (1 << 18)))
        return log.read().decode(errors="replace")


def remember(recipe: Recipe, proof: Proof, *, requested: str | None, cpu: str) -> None:
    """Write down that what is installed now has been proven."""
    libraries = fingerprint_libraries()
    if libraries is None:
        raise SetupError(f"{DISTRIBUTION} {VERSION} was installed and is not there any more")
    marker = Marker(recipe.name, requested, cpu, libraries, proof.system_info, recipe.cmake_args)
    MARKER.write_text(json.dumps(asdict(marker), indent=1) + "\n")
    say(f"==> llama.cpp ({recipe.name}) decoded {proof.tokens} tokens here: {proof.system_info}")


def keep_wheel(wheel: Path, folder: Path) -> None:
    """Keep a proven wheel for the next checkout; a cache that cannot be written is no failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        partial.rename(folder / wheel.name)
    except OSError as error:
        say(f"    (the wheel is not kept for other checkouts: {error})")


def try_wheel(wheel: Path) -> Proof:
    """Install ``wheel`` and run the proof with it."""
    install_wheel(wheel)
    proof = prove_in_child(BUNDLED_MODEL)
    if not proof.ok:
        say(f"==> this build does not run here: {proof.error}")
    return proof


def provide(recipes: Sequence[Recipe], *, requested: str | None, flags: frozenset[str]) -> None:
    """Try recipes until one is proven; raise SetupError when none is left."""
    cpu = digest(flags)
    compiler = find_compiler()
    system = f"{sysconfig.get_platform()} {platform.libc_ver()}"
    abi = str(sys.implementation.cache_tag)
    for recipe in recipes:
        key = wheel_key(recipe, flags=flags, compiler=compiler, abi=abi, system=system)
        kept = next(wheel_folder(key).glob("*.whl"), None)
        if kept is not None:
            say(f"==> trying the wheel built here before: {kept}")
            proof = try_wheel(kept)
            if proof.ok:
                remember(recipe, proof, requested=requested, cpu=cpu)
                return
            kept.unlink()
        # Compilers that are being stopped may still write while the folder goes.
        with tempfile.TemporaryDirectory(
            prefix="paddler-trio-llama-", ignore_cleanup_errors=True
        ) as scratch:
            wheel = build_wheel(recipe, Path(scratch))
            if wheel is None:
                continue
            proof = try_wheel(wheel)
            if proof.ok:
                keep_wheel(wheel, wheel_folder(key))
                remember(recipe, proof, requested=requested, cpu=cpu)
                return
    raise SetupError(
        "no build of llama.cpp decodes on this machine.\n"
        f"  tried: {', '.join(recipe.name for recipe in recipes)}; last log: {LOG}\n"
        + (
            "  CMAKE_ARGS is set, so nothing else was tried: change it, or unset it and run\n"
            "  `make setup` again for a CPU build chosen for this machine."
            if requested is not None
            else "  Set CMAKE_ARGS to what you want and run `make setup` again, for example\n"
            "  CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF' make setup"
        )
    )


def run(arguments: Sequence[str]) -> None:
    """Do as the module says; with ``--plan``, print what would be tried and change nothing."""
    requested = os.environ.get("CMAKE_ARGS", "").strip() or None
    flags = read_cpu_flags()
    recipes = choose_recipes(flags, machine=platform.machine(), requested=requested)
    if "--plan" in arguments:
        for recipe in recipes:
            say(f"{recipe.name}: {shlex.join(recipe.cmake_args)}")
        return
    if sys.prefix == sys.base_prefix:
        raise SetupError("run me with the Python of a virtual environment: `make setup` does")
    marker, libraries = read_marker(), fingerprint_libraries()
    cpu = digest(flags)
    if is_proven(marker, requested=requested, cpu=cpu, libraries=libraries, recipes=recipes):
        return
    if requested is None and is_outdated(marker, libraries=libraries, recipes=recipes):
        say("==> the installed build is of an older recipe: building it anew")
    elif libraries is not None and requested is None:
        proof = prove_in_child(BUNDLED_MODEL)
        if proof.ok and "AMX" not in proof.system_info:
            if marker is not None and marker.libraries == libraries:  # only the CPU is another
                known = Recipe(marker.recipe, marker.cmake_args)
                remember(known, proof, requested=marker.requested, cpu=cpu)
            else:
                remember(FOUND, proof, requested=None, cpu=cpu)
            return
        say(f"==> the installed build is not kept: {proof.error or 'it uses AMX'}")
    provide(recipes, requested=requested, flags=flags)


def main() -> int:
    """Exit status 0: proven. 1: not possible, and the reason on standard error."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # under nohup it stays ignored
            signal.signal(ending, signal.default_int_handler)
    try:
        run(sys.argv[1:])
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; `make setup` starts this step again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
