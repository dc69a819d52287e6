"""Remember a proof, and decide for how long it speaks for what is installed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paddler_trio.processes.llama_setup.recipes import FOUND, PORTABLE, Accelerator, Recipe


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
