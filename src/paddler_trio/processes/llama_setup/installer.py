"""The pip that installs into this environment, which may have none of its own.

Environments of uv have no pip. One is then made in a scratch folder for as long as it is needed,
and told which Python is meant.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paddler_trio.processes.llama_setup.environment import Environment, SetupError


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
