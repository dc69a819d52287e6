"""llama.cpp's C API: ``lib`` and, for what sees images, ``mtmd``.

Both are the bindings of llama-cpp-python without its Python classes. An ``import
llama_cpp.llama_cpp`` runs the package's ``__init__`` first, and that imports NumPy, Jinja, SQLite
and a cache on disk for those classes: half of the processor time in which an engine starts. So an
empty package stands in its place while the bindings are imported. A later ``import llama_cpp``
gets the whole package, over the same bindings.

As the package does, this leaves llama.cpp's log to the code that loads a model; until then it
prints to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Final

_PACKAGE: Final = "llama_cpp"


@contextmanager
def _empty_package() -> Iterator[None]:
    """Give the package without its ``__init__``, unless somebody has imported it already."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None:
        yield  # a library that is not installed fails where it is imported
        return
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


with _empty_package():
    import llama_cpp.llama_cpp as lib
    import llama_cpp.mtmd_cpp as mtmd

__all__ = ["lib", "mtmd"]
