"""Devices of other machines, lent by llama.cpp's RPC servers.

Once a server is known to llama.cpp, its devices are chosen like GPUs of this machine, and before
them. llama.cpp ends the process when it loses one (``GGML_ABORT``): the agent treats that like any
other crash of an engine, reports it with llama.cpp's last log lines, and restarts the engine under
its budget; the next engine greets the servers again and names the one that is gone.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.ggml import ggml_function, rpc_function
from paddler_trio.processes.engine.rpc.rpc_greeting import greet, split_server
from paddler_trio.system.llama_library import lib

_GPU = 1
"""One of ggml's types of devices."""
DEVICES_LIMIT_S = 10.0
"""The time for a server that has answered a greeting to name its devices: one more greeting, and a
few numbers of each."""


@attrs.define(eq=False)
class Turns:
    """``with TURNS:`` lets one thread at a time into llama.cpp, once devices are lent to it.

    On a lent device llama.cpp says "the last graph again" where it can, and remembers which that
    was for the device, not for the context. Two contexts that compute at once, one that embeds
    and one that generates, would get each other's graph: wrong tokens at best, or a crash of the
    server. Without lent devices no thread waits.
    """

    is_needed: bool = False
    """Set while a model is loaded, before there is a second thread."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __enter__(self) -> None:
        if self.is_needed:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self.is_needed:
            self._lock.release()


TURNS = Turns()
"""The turns of this process, as are llama.cpp's devices."""


def first_gpu_is_lent() -> bool:
    """Return whether what takes llama.cpp's first GPU and knows no turns would get a lent one."""
    by_type = ggml_function("ggml_backend_dev_by_type", ctypes.c_int)
    registry_of = ggml_function("ggml_backend_dev_backend_reg", ctypes.c_void_p)
    name_of = ggml_function("ggml_backend_reg_name", ctypes.c_void_p, result=ctypes.c_char_p)
    device = by_type(_GPU)
    return bool(device) and name_of(registry_of(device)) == b"RPC"


def add_rpc_servers(servers: Sequence[str], *, n_gpu_layers: int) -> None:
    """Make the devices of ``servers`` (``host:port``) known to llama.cpp, in this process for good.

    A server that is known already is left alone: it is talking to this very process, and would
    not answer a second greeting. Without layers to offload no server is added, since llama.cpp
    would depend on it all the same.

    Errors:
      EngineError: this build has no RPC, a server does not answer as one, or no more once it was
      greeted (this process has to end then), or there are more devices than llama.cpp takes.
    """
    add_server = rpc_function("ggml_backend_rpc_add_server", [ctypes.c_char_p], ctypes.c_void_p)
    find = ggml_function("ggml_backend_reg_by_name", ctypes.c_char_p)
    register = ggml_function("ggml_backend_register", ctypes.c_void_p, result=None)
    for host, port in map(split_server, servers):
        server = f"{host}:{port}"
        if find(f"RPC[{server}]".encode()):
            continue
        greet(host, port)
        if n_gpu_layers == 0:
            continue
        added = _within(DEVICES_LIMIT_S, server, partial(add_server, server.encode()))
        if not added:
            raise EngineError(f"rpc: the RPC server at {server} lends no device")
        register(added)
        TURNS.is_needed = True
    if n_gpu_layers == 0:
        sys.stderr.write(
            f"rpc: {', '.join(servers)} not used: n_gpu_layers is 0, so every layer stays here\n"
        )
        sys.stderr.flush()
    num_devices = ggml_function("ggml_backend_dev_count", result=ctypes.c_size_t)()
    limit = lib.llama_max_devices()
    if num_devices > limit:
        raise EngineError(
            f"rpc: with those of the RPC servers there are {num_devices} devices, llama.cpp "
            f"takes {limit}",
            permanent=True,
        )


def _within(limit_s: float, server: str, ask: Callable[[], int | None]) -> int | None:
    """Return what llama.cpp makes of ``server``'s answers, for which it would wait without a limit.

    Its thread is left behind where they do not come: it holds llama.cpp's lock on all servers."""
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(ask()), name="rpc", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not answers:
        raise EngineError(
            f"rpc: {server} answers a greeting and then does not name its devices within "
            f"{limit_s:g} s: restart it, or take it out of rpc"
        )
    return answers[0]
