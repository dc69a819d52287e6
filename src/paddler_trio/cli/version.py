"""``paddler-trio --version``: what runs here, and the build of llama.cpp below it."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated, Final, TypeAlias

import typer

from paddler_trio import __version__
from paddler_trio.system.hardware.llama_build import llama_cpp_build

BINDINGS: Final = "llama-cpp-python"


def versions() -> list[str]:
    """A line each: ours, the bindings', llama.cpp's, Python's."""
    try:
        bindings = importlib.metadata.version(BINDINGS)
    except importlib.metadata.PackageNotFoundError:
        bindings = "is not installed"
    return [
        f"paddler-trio {__version__}",
        f"{BINDINGS} {bindings}",
        f"llama.cpp {llama_cpp_build()}",
        f"Python {platform.python_version()}",
    ]


def _print_versions(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        print("\n".join(versions()))
        raise typer.Exit


VersionOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version",
        "-V",
        is_eager=True,
        callback=_print_versions,
        expose_value=False,
        help="Print the versions of paddler-trio, llama.cpp and Python.",
    ),
]
