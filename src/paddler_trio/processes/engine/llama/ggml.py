"""Functions of ggml that llama-cpp-python carries and does not declare."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from paddler_trio.errors import EngineError
from paddler_trio.system.llama_library import lib

HOW_TO_GET_RPC = "`paddler-trio setup --cpu` (or --cuda, --vulkan) builds one that has it"


def ggml_function(
    name: str, *arguments: type[Any], result: type[Any] | None = ctypes.c_void_p
) -> Any:
    """Return ``name`` of the installed library; EngineError (permanent) if it has none."""
    function = getattr(lib._lib, name, None)
    if function is None:
        raise EngineError(f"this build of llama.cpp has no {name}", permanent=True)
    function.argtypes, function.restype = list(arguments), result
    return function


def rpc_function(name: str, arguments: Sequence[type[Any]], result: type[Any] | None) -> Any:
    """Return a function of ggml's RPC back end; EngineError (permanent) if this build has no RPC.

    The back end is asked for it, not the library: it may be one that is loaded at run time.
    """
    registry = ggml_function("ggml_backend_reg_by_name", ctypes.c_char_p)(b"RPC")
    if not registry:
        raise EngineError(
            f"rpc: this build of llama.cpp has no RPC back end; {HOW_TO_GET_RPC}", permanent=True
        )
    address_of = ggml_function(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_char_p
    )
    address = address_of(registry, name.encode())
    if not address:
        raise EngineError(f"rpc: the RPC back end of this build has no {name}", permanent=True)
    return ctypes.CFUNCTYPE(result, *arguments)(address)
