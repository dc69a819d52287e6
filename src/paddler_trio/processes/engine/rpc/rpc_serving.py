"""llama.cpp's RPC server over the devices of this machine, for engines on other ones.

It is ggml's own loop in C: it takes one connection at a time, never returns unless it cannot
listen or accept, and cannot be stopped: its process has to be ended.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from paddler_trio.errors import ConfigurationError, EngineError
from paddler_trio.processes.engine.llama.ggml import ggml_function, rpc_function

_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2
"""Some of ggml's types of devices."""
_CACHED_TENSOR = re.compile(r"[0-9a-f]{16}")
"""The name that llama.cpp gives to what it caches."""


@attrs.frozen
class LentDevice:
    """One device: ggml's name and description of it, and its handle in this process."""

    name: str
    description: str
    handle: int


def devices_to_lend() -> list[LentDevice]:
    """Return every GPU of this machine, or its CPU where there is none.

    Errors:
      EngineError: this build of llama.cpp has no RPC, or no device at all.
    """
    _start_server()  # where it is lacking, nothing else matters
    device = ggml_function("ggml_backend_dev_get", ctypes.c_size_t)
    type_of = ggml_function("ggml_backend_dev_type", ctypes.c_void_p, result=ctypes.c_int)
    handles = [
        device(index)
        for index in range(ggml_function("ggml_backend_dev_count", result=ctypes.c_size_t)())
    ]
    for wanted in ({_GPU, _INTEGRATED_GPU}, {_CPU}):
        lent = [
            LentDevice(
                _say("ggml_backend_dev_name", handle),
                _say("ggml_backend_dev_description", handle),
                handle,
            )
            for handle in handles
            if type_of(handle) in wanted
        ]
        if lent:
            return lent
    raise EngineError("rpc-server: llama.cpp finds no device here", permanent=True)


def serve_devices(
    devices: list[LentDevice], *, host: str, port: int, threads: int, cache_dir: Path | None
) -> None:
    """Listen and work until the process ends; returns only if llama.cpp cannot listen or accept,
    for which it writes its reason to standard error. Blocking, without the GIL.

    Args:
      host: an IPv4 address in digits.
      port: 0 lets the system choose.
      threads: of the CPU, where that is lent.
      cache_dir: where large tensors are kept for the next time they are sent; see
        :func:`prepare_cache`.
    """
    handles = (ctypes.c_void_p * len(devices))(*(device.handle for device in devices))
    cache = None if cache_dir is None else str(cache_dir).encode()
    _start_server()(f"{host}:{port}".encode(), cache, threads, len(devices), handles)


def prepare_cache(folder: Path) -> None:
    """Make ``folder`` and forget its newest tensor; ConfigurationError if that cannot be done.

    llama.cpp believes whatever it finds under the name of a tensor's hash. It writes one at a
    time, so if the end of a server cut one short, it is the newest.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tensors = [path for path in folder.iterdir() if _CACHED_TENSOR.fullmatch(path.name)]
        if tensors:
            max(tensors, key=lambda path: path.stat().st_mtime_ns).unlink()
    except OSError as error:
        raise ConfigurationError(f"--cache-dir {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):  # llama.cpp would say nothing and keep nothing
        raise ConfigurationError(f"--cache-dir {folder}: cannot be written")


def _start_server() -> Callable[..., None]:
    arguments: list[type[Any]] = [
        ctypes.c_char_p,  # endpoint
        ctypes.c_char_p,  # folder of the cache
        ctypes.c_size_t,  # threads
        ctypes.c_size_t,  # number of devices
        ctypes.POINTER(ctypes.c_void_p),
    ]
    function: Callable[..., None] = rpc_function("ggml_backend_rpc_start_server", arguments, None)
    return function


def _say(name: str, handle: int) -> str:
    words = ggml_function(name, ctypes.c_void_p, result=ctypes.c_char_p)(handle)
    return str(words.decode(errors="replace")).strip()
