"""One run of the compiler over llama.cpp, with a sign of life on standard output.

The pip that installs into this environment, which may have none of its own.

Environments of uv have no pip. One is then made in a scratch folder for as long as it is needed,
and told which Python is meant.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from paddler_trio.processes.llama_setup.environment import Environment, SetupError
from paddler_trio.processes.llama_setup.recipes import (
    DISTRIBUTION,
    LEAN,
    LEAN_OPTIONS,
    VERSION,
    Accelerator,
    Recipe,
    count_jobs,
)
from paddler_trio.system.machine import available_memory_bytes, granted_cores


@dataclass(frozen=True)
class Pip:
    """The ways to start pip: ``command`` for what needs no environment, ``target`` for this one."""

    command: tuple[str, ...]
    target: tuple[str, ...] = ()

    def run(self, *arguments: str) -> None:
        """Run pip quietly; its own words are the error."""
        self._run([*self.command, *self.target, "--disable-pip-version-check", *arguments])

    def install_wheel(self, wheel: Path, environment: Environment) -> None:
        """Put ``wheel`` in place of whatever build is there, and what it imports beside it."""
        folder = environment.own_folder
        if folder is None:
            self.run("install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
            self.run("install", "--quiet", str(wheel))
            return
        # Whole or not at all: what is imported meanwhile is the build before.
        fresh, stale = folder.with_name(f".{folder.name}.new"), folder.with_name(".stale")
        for leftover in (fresh, stale):
            shutil.rmtree(leftover, ignore_errors=True)
        self.run("install", "--quiet", "--no-deps", "--target", str(fresh), str(wheel))
        if folder.exists():
            folder.rename(stale)
        fresh.rename(folder)
        shutil.rmtree(stale, ignore_errors=True)

    @staticmethod
    def _run(command: Sequence[str]) -> None:
        ended = subprocess.run(  # noqa: S603  our own arguments
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if ended.returncode != 0:
            raise SetupError(f"{shlex.join(command)} failed:\n{ended.stdout.strip()}")


@contextmanager
def open_pip() -> Iterator[Pip]:
    """Open this environment's pip, or one that is made for it and removed again."""
    if find_spec("pip") is not None:
        yield Pip((sys.executable, "-P", "-m", "pip"))
        return
    with tempfile.TemporaryDirectory(prefix="paddler-trio-pip-") as scratch:
        folder = Path(scratch) / "venv"
        python = folder / "bin" / "python"
        _make_environment(folder)
        yield Pip((str(python), "-P", "-m", "pip"), target=("--python", sys.executable))


def _make_environment(folder: Path) -> None:
    """Make a virtual environment that has pip, by the standard library or by uv."""
    attempts = [[sys.executable, "-P", "-m", "venv", str(folder)]]
    if uv := shutil.which("uv"):
        attempts.append([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(folder)])
    said = ""
    for attempt in attempts:
        shutil.rmtree(folder, ignore_errors=True)
        ended = subprocess.run(  # noqa: S603  our own arguments
            attempt,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"},
        )
        if ended.returncode == 0:
            return
        said += ended.stdout.strip() + "\n"
    raise SetupError(
        "there is no pip in this environment, and none can be made.\n"
        "  Debian, Ubuntu:  sudo apt-get install python3-venv\n"
        f"  or put uv on the PATH\n{said}"
    )


HEARTBEAT_S: Final = 5.0
NVIDIA_SMI_S: Final = 30.0
"""It may wake the driver first."""


# --- pure ---------------------------------------------------------------------------------------


def describe_progress(log: str) -> str:
    """Return where a build stands, from the end of its log, in one phrase."""
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
    """Return whether the compiler ran at all: if not, a humbler recipe would fail in the same
    way."""
    return re.search(r"^\s*(\[\d+/\d+\]|\[ *\d+%\])", log, re.MULTILINE) is not None


# --- doing --------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print one line for the person waiting, out at once even through a pipe."""
    print(text, flush=True)  # noqa: T201  a program of its own before anything is installed


def find_compiler() -> str:
    """Return the first line of the C++ compiler's version, or a SetupError saying how to get
    one."""
    for command in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            shown = subprocess.run(  # noqa: S603  the user's own compiler
                [*words, "--version"], capture_output=True, text=True, check=False
            )
            return shown.stdout.partition("\n")[0]
    raise SetupError(
        "no C++ compiler found, and llama.cpp has to be compiled once.\n"
        "  Debian, Ubuntu:  sudo apt-get install build-essential cmake\n"
        "  Fedora:          sudo dnf install gcc-c++ make cmake\n"
        "  macOS:           xcode-select --install\n"
        "then run this again."
    )


def check_accelerator(accelerator: Accelerator) -> None:
    """Raise SetupError if what compiles for it is not here, before anything is downloaded."""
    if accelerator == "cuda" and not (
        os.environ.get("CUDACXX")
        or shutil.which("nvcc")
        or Path("/usr/local/cuda/bin/nvcc").exists()
    ):
        raise SetupError(
            "CUDA's compiler (nvcc) was not found: install the CUDA toolkit, or name the compiler "
            "in CUDACXX"
        )
    if accelerator == "vulkan" and shutil.which("glslc") is None:
        raise SetupError(
            "Vulkan's shader compiler (glslc) was not found.\n"
            "  Debian, Ubuntu:  sudo apt-get install glslc libvulkan-dev spirv-headers\n"
            "  Fedora:          sudo dnf install glslc vulkan-loader-devel vulkan-headers "
            "spirv-headers-devel"
        )
    if accelerator == "metal" and platform.system() != "Darwin":
        raise SetupError(f"Metal is macOS's, and this is {platform.system()}")


def cuda_architectures() -> tuple[str, ...]:
    """Return the architectures of NVIDIA's GPUs on this machine, as CMake names them; empty where
    they are not known.

    A build for nothing else takes a fraction of the time: by default it is for seven generations.
    """
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        shown = subprocess.run(  # noqa: S603  our own arguments
            command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.findall(r"^(\d+)\.(\d)$", shown.stdout, re.MULTILINE)
    return tuple(sorted({major + minor for major, minor in found}))


def build_wheel(
    recipe: Recipe, folder: Path, *, pip: Pip, log: Path, architectures: Sequence[str] = ()
) -> Path | None:
    """Compile llama.cpp, with a heartbeat on standard output and everything else in ``log``.

    Args:
      architectures: of GPUs, to compile for no others.

    Returns:
      The wheel inside ``folder``, or None if the compiler refused this recipe.

    Raises:
      SetupError: nothing was compiled (no network, no disk): no other recipe would do better.
    """
    jobs = count_jobs(granted_cores(), available_memory_bytes())
    # What make tells its children about its own jobs is not meant for another build.
    environment = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS"}}
    environment["CMAKE_ARGS"] = shlex.join(_cmake_args(recipe, folder, architectures))
    environment["TMPDIR"] = str(folder)  # pip leaves its folders behind when it is stopped
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs))
    command = [*pip.command, "--disable-pip-version-check"]
    # The cache answers without regard to CMAKE_ARGS; without ninja, make would use one core.
    command += ["wheel", "--verbose", "--progress-bar", "off"]
    command += ["--no-cache-dir", "--no-deps", "--no-binary", DISTRIBUTION]
    command += ["--config-settings", "ninja.make-fallback=false"]
    command += ["--wheel-dir", str(folder), f"{DISTRIBUTION}=={VERSION}"]

    target = f" for GPUs of architecture {', '.join(architectures)}" if architectures else ""
    say(f"==> building llama.cpp ({recipe.name}){target} with {jobs} jobs: minutes, once a machine")
    status = _run_watched(command, environment, log)
    wheels = list(folder.glob("*.whl"))
    if status == 0 and wheels:
        return wheels[0]
    last_words = _read_end(log)
    last_lines = "\n".join(last_words.splitlines()[-30:])
    say(f"{last_lines}\n==> the build failed; the whole log is in {log}")
    if not build_started(last_words):
        raise SetupError(f"llama.cpp could not be fetched or configured; see {log}")
    return None


def _cmake_args(recipe: Recipe, folder: Path, architectures: Sequence[str]) -> Sequence[str]:
    cmake_args = list(recipe.cmake_args)
    if recipe.lean:
        lean = folder / "lean.cmake"
        lean.write_text(LEAN)
        cmake_args += [*LEAN_OPTIONS, f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={lean}"]
    if architectures:
        cmake_args.append(f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(architectures)}")
    return cmake_args


def _run_watched(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Run a build that writes to ``log``, say how far it is, and return its exit status."""
    began_s = time.monotonic()
    with log.open("w") as written:
        written.write(f"CMAKE_ARGS={environment['CMAKE_ARGS']}\n{shlex.join(command)}\n")
        written.flush()
        process = subprocess.Popen(  # noqa: S603  our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that stopping it stops the compilers under it
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(HEARTBEAT_S)
                say(f"    {describe_progress(_read_end(log))}, {time.monotonic() - began_s:.0f} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def _read_end(log: Path) -> str:
    """Return the last 256 kB of the build log."""
    with log.open("rb") as written:
        written.seek(max(0, log.stat().st_size - (1 << 18)))
        return written.read().decode(errors="replace")


def wheel_folder(key: str) -> Path:
    """Return the folder where a proven wheel is kept; XDG asks for relative values to be
    ignored."""
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = told if told.is_absolute() else Path("~/.cache").expanduser()
    return base / "paddler-trio" / "wheels" / key


def find_kept(key: str) -> Path | None:
    """Return the wheel that was built in this way before."""
    return next(wheel_folder(key).glob("*.whl"), None)


def keep_wheel(wheel: Path, key: str) -> None:
    """Keep a proven wheel; a cache that cannot be written is no failure."""
    folder = wheel_folder(key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{wheel.name}.{os.getpid()}"
        shutil.copyfile(wheel, partial)
        partial.rename(folder / wheel.name)
    except OSError as error:
        say(f"    (the wheel is not kept for other environments: {error})")
