"""The commands that run models say at once where there is no llama.cpp, and how to get one."""

from __future__ import annotations

from importlib.util import find_spec

from paddler_trio.errors import ConfigurationError


def require_llama() -> None:
    """A ConfigurationError if llama.cpp is not installed; nothing is imported."""
    if find_spec("llama_cpp") is None:
        raise ConfigurationError(
            "llama.cpp is not installed yet: run `paddler-trio setup`, which builds it for this "
            "machine"
        )
