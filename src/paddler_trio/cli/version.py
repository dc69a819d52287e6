"""``paddler-trio --version``: what runs here, and the build of llama.cpp below it.

llama.cpp is asked without its bindings, whose import takes longer than everything else here: the
smallest of its libraries, ggml's base, knows the version and the commit.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from paddler_trio import __version__

BINDINGS: Final = "llama-cpp-python"
GGML_LIBRARY: Final = "libggml-base.so"
FOLDER_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
"""Where the bindings look for llama.cpp's libraries, if not beside themselves."""


def versions() -> list[str]:
    """A line each: ours, the bindings', llama.cpp's, Python's."""
    try:
        bindings = importlib.metadata.version(BINDINGS)
    except importlib.metadata.PackageNotFoundError:
        bindings = "is not installed"
    return [
        f"paddler-trio {__version__}",
        f"{BINDINGS} {bindings}",
        f"llama.cpp {_llama_cpp_build()}",
        f"Python {platform.python_version()}",
    ]


def _llama_cpp_build() -> str:
    folder = _library_folder()
    if folder is None:
        return "is not installed"
    try:
        library = ctypes.CDLL(str(folder / GGML_LIBRARY))
    except OSError as error:
        return f"cannot be loaded: {error}"
    version, commit = (_said_by(library, name) for name in ("ggml_version", "ggml_commit"))
    if version is None:
        return "does not say its build"
    return f"with ggml {version}" if commit is None else f"{commit} with ggml {version}"


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
