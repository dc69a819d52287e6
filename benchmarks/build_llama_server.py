"""Build the peer of the benchmarks: llama-server from the very source our Python package carries.

    python benchmarks/build_llama_server.py ../llama-peer

Downloads the pinned source of llama-cpp-python, compiles its ``llama-server`` and ``llama-bench``
with the flags that our set-up chooses for this CPU, and prints where the server is. Needs cmake,
ninja and a C++ compiler; takes minutes. The folder stays outside the repository, and a second call
goes on where the first one was stopped.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from paddler_trio.processes.llama_setup.recipes import (  # noqa: E402
    DISTRIBUTION,
    VERSION,
    choose_recipes,
    count_jobs,
)
from paddler_trio.system.machine import (  # noqa: E402
    available_memory_bytes,
    granted_cores,
    read_cpu_flags,
)

TARGETS = ("llama-server", "llama-bench")
SERVER_ONLY = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
"""The web page it would carry, its tests and TLS change nothing that is measured."""


def fetch(folder: Path) -> Path:
    """llama.cpp's source inside the unpacked package."""
    source = folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.is_dir():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--no-binary", DISTRIBUTION, "--dest", str(folder), f"{DISTRIBUTION}=={VERSION}"]
        subprocess.run(pip, check=True)
        (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return source


def build(source: Path, folder: Path) -> Path:
    """Configure and compile; the server's path."""
    best = choose_recipes(read_cpu_flags(), machine=platform.machine())[0]
    # a cache that once had GGML_NATIVE=ON keeps other choices silently: the folder says the recipe
    made = folder / f"build-{best.name}"
    flags = (*best.cmake_args, *SERVER_ONLY)
    subprocess.run(["cmake", "-S", str(source), "-B", str(made), "-G", "Ninja", *flags], check=True)
    jobs = str(count_jobs(granted_cores(), available_memory_bytes()))
    subprocess.run(
        ["cmake", "--build", str(made), "--parallel", jobs, "--target", *TARGETS], check=True
    )
    return made / "bin" / "llama-server"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where source and build go; made if missing")
    folder = parser.parse_args().folder.resolve()
    if folder.is_relative_to(ROOT):
        parser.error(f"{folder} is inside the repository: name a folder outside it")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        print(build(fetch(folder), folder))
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: apt-get install cmake ninja-build", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"failed with status {error.returncode}: {error.cmd[0]}", file=sys.stderr)
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
