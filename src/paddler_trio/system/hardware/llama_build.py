"""The build of llama.cpp that is installed.

llama.cpp is asked without its bindings, whose import takes longer than everything else here: the
smallest of its libraries, ggml's base, knows the version and the commit.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"
"""Where the bindings look for llama.cpp's libraries, if not beside themselves."""


def llama_cpp_build() -> str:
    """Return commit and version, or why they are not known."""
    folder = _library_folder()
    if folder is None:
        return "is not installed"
    try:
        library = ctypes.CDLL(str(folder / _ggml_library()))
    except OSError as error:
        return f"cannot be loaded: {error}"
    version, commit = (_said_by(library, name) for name in ("ggml_version", "ggml_commit"))
    if version is None:
        return "does not say its build"
    return f"with ggml {version}" if commit is None else f"{commit} with ggml {version}"


def _ggml_library() -> str:
    return "libggml-base.dylib" if sys.platform == "darwin" else "libggml-base.so"


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
