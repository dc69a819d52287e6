"""Find where llama.cpp is in this environment, and where what is known of it is written down.

Most environments have one place for packages, and llama.cpp goes there. One that belongs to the
system's package manager may not be changed by anybody else: its file ``llama-folder`` names a
folder that comes before its own packages, and a build made on the machine goes into that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paddler_trio.processes.llama_setup.recipes import DISTRIBUTION, VERSION

FOLDER_FILE: Final = "llama-folder"


class SetupError(Exception):
    """The machine cannot be set up; the text says what to do."""


def digest(parts: Iterable[str]) -> str:
    """Return a short name for a set of facts."""
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Environment:
    """The environment of the Python that runs this.

    Attributes:
      prefix: the environment's own folder.
      own_folder: where a build goes that must not lie among the environment's packages; else None.
    """

    prefix: Path
    own_folder: Path | None = None

    @staticmethod
    def here() -> Environment:
        """Return the environment of this process; a SetupError if it is the system's own Python."""
        if sys.prefix == sys.base_prefix:
            raise SetupError(
                f"{sys.executable} is no Python of a virtual environment, and others use its "
                "packages: install paddler-trio by `uv tool install`, or by pip in a virtual "
                "environment"
            )
        prefix = Path(sys.prefix)
        try:
            told = (prefix / FOLDER_FILE).read_text().strip()
        except FileNotFoundError:
            return Environment(prefix)
        folder = Path(told)
        if not folder.is_absolute():
            raise SetupError(f"{prefix / FOLDER_FILE} names {told!r}: not an absolute path")
        return Environment(prefix, folder / VERSION)

    @property
    def state_folder(self) -> Path:
        """The folder where notes about the build are kept."""
        return self.prefix if self.own_folder is None else self.own_folder.parent

    @property
    def marker(self) -> Path:
        """The file with what is remembered of the last proof."""
        return self.state_folder / "llama-proof.json"

    @property
    def log(self) -> Path:
        """Every word of the last build."""
        return self.state_folder / "llama-build.log"

    def prepare(self) -> None:
        """Make sure that a build can be installed, before minutes are spent on it."""
        folder = self.state_folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{error}: run this as the user that installed paddler-trio") from None
        packages = Path(sysconfig.get_path("purelib")) if self.own_folder is None else folder
        for each in {folder, packages}:
            if not os.access(each, os.W_OK):
                raise SetupError(
                    f"{each} cannot be written: run this as the user that installed paddler-trio"
                )

    def fingerprint_libraries(self) -> str | None:
        """Return names, sizes and times of the libraries that ``import llama_cpp`` would load.

        Returns:
          None unless the pinned version is there.
        """
        own = [] if self.own_folder is None else [str(self.own_folder)]
        for entry in [*own, *sys.path]:
            found = importlib.metadata.distributions(name=DISTRIBUTION, path=[entry])
            versions = [each.version for each in found]
            if not versions:
                continue
            if versions[0] != VERSION:
                return None
            folder = Path(entry) / "llama_cpp" / "lib"
            files = [(p.name, p.stat()) for p in folder.iterdir()] if folder.is_dir() else []
            facts = (f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)
            return digest(facts) if files else None
        return None
