"""Find where llama.cpp is in this environment, and where what is known of it is written down.

Most environments have one place for packages, and llama.cpp goes there. One that belongs to the
system's package manager may not be changed by anybody else: its file ``llama-folder`` names a
folder that comes before its own packages, and a build made on the machine goes into that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from paddler_trio.processes.llama_setup.recipes import (
    DISTRIBUTION,
    FOUND,
    PORTABLE,
    VERSION,
    Accelerator,
    Recipe,
)

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


CPU_FLAGS_NEEDED: Final = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}
"""llama.cpp's words for what it was built with -> the feature the CPU must list."""

WORTH_HAVING: Final = ("AVX2", "FMA", "F16C", "AVX512", "AVX512_VNNI")
"""The features that speed up a model by more than a few percent."""


def built_features(system_info: str) -> frozenset[str]:
    """Return the names that llama.cpp lists as built in."""
    return frozenset(re.findall(r"(\w+) = 1", system_info))


def features_lacking(system_info: str, flags: frozenset[str]) -> list[str]:
    """Return what the build would use and the CPU does not list: the build may die of it."""
    built = built_features(system_info) & CPU_FLAGS_NEEDED.keys()
    return sorted(name for name in built if CPU_FLAGS_NEEDED[name] not in flags)


def features_unused(system_info: str, flags: frozenset[str]) -> list[str]:
    """Return what the CPU lists, is worth having, and the build does without."""
    built = built_features(system_info)
    return [name for name in WORTH_HAVING if CPU_FLAGS_NEEDED[name] in flags and name not in built]


@dataclass(frozen=True)
class Marker:
    """One proof, in the environment it was made for.

    Attributes:
      recipe: the name of the recipe.
      requested: CMAKE_ARGS as the user set them, None for our own choice.
      cpu: the digest of the CPU's features, and of the architectures of GPUs it is built for.
      libraries: the fingerprint of the libraries.
      system_info: llama.cpp's own list of what it was built with.
      cmake_args: of the recipe; empty where this was not yet remembered.
      accelerator: what the recipe was chosen for; that of a build found installed is not known.
    """

    recipe: str
    requested: str | None
    cpu: str
    libraries: str
    system_info: str
    cmake_args: tuple[str, ...] = ()
    accelerator: Accelerator = "cpu"

    @property
    def is_our_choice(self) -> bool:
        """Return whether a recipe of ours was built, and not what somebody asked for in
        CMAKE_ARGS."""
        return self.requested is None and not self.is_anybodys

    @property
    def is_anybodys(self) -> bool:
        """Return whether it was made elsewhere, or for elsewhere: kept only if it is good enough
        here."""
        return self.recipe == FOUND.name or self.recipe.startswith(PORTABLE)


def read_marker(path: Path) -> Marker | None:
    """Return the remembered proof; None if there is none that can be read."""
    try:
        facts = json.loads(path.read_text())
        return Marker(**facts | {"cmake_args": tuple(facts.get("cmake_args", ()))})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write_marker(path: Path, marker: Marker) -> None:
    """Remember a proof in place of the one before."""
    path.write_text(json.dumps(asdict(marker), indent=1) + "\n")


def is_proven(
    marker: Marker | None,
    *,
    requested: str | None,
    accelerator: Accelerator | None,
    cpu: str,
    libraries: str | None,
    recipes: Sequence[Recipe],
) -> bool:
    """Return whether a remembered proof still speaks for what is installed, and for what is asked.

    Args:
      requested: CMAKE_ARGS as asked for now; None asks for nothing.
      accelerator: what is asked for now; None takes what is there.
      recipes: what we would try today for the accelerator that the marker names.
    """
    return (
        marker is not None
        and libraries is not None
        and (marker.cpu, marker.libraries) == (cpu, libraries)
        and requested in (None, marker.requested)  # a build of one's own stays until asked anew
        and (accelerator is None or (marker.is_our_choice and marker.accelerator == accelerator))
        and not is_outdated(marker, libraries=libraries, recipes=recipes)
    )


def is_outdated(marker: Marker | None, *, libraries: str | None, recipes: Sequence[Recipe]) -> bool:
    """Return whether what is installed was our own choice, and is none that we would make today."""
    return (
        marker is not None
        and marker.libraries == libraries
        and marker.is_our_choice
        and marker.cmake_args not in [recipe.cmake_args for recipe in recipes]
    )
