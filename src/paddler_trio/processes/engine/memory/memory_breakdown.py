"""llama.cpp's own account of its buffers, by device.

Its function for that, ``llama_get_memory_breakdown``, is C++: it returns a ``std::map``, and is
the only one that counts buffers of a model without weights by device (the log then says 0). Its
nodes are read here as libstdc++ lays them out. What was read is compared with the sizes of compute
buffers that llama.cpp logs in the same moment, so that another layout is an error and no number.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.ggml import ggml_function
from paddler_trio.system.llama_library import lib, mtmd
from paddler_trio.system.machine import available_memory_bytes
from paddler_trio.wire.engine.memory_need import DeviceNeed

CUDA_RUNTIME_BYTES: Final = 112 << 20
"""The bytes of the host. Measured with CUDA 13.0 and one H200: 59 to 170 MiB more once the model
had answered than a process that only knows the device."""

_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"
_PROJECTION_USAGE = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_KINDS = ("cpu", "gpu", "igpu", "accel", "meta")
_CPU = 0
_COMPUTE_LINE = re.compile(r"sched_reserve: +(\S+) compute buffer size = +([0-9.]+) MiB")
_ROUNDING_MIB = 0.0051
"""The log has two decimals."""
_MAX_NODES = 1024
_LOWEST_ADDRESS = 65536
"""It shows where another library's map has a count or a flag, and this one an address."""


class _Map(ctypes.Structure):
    """libstdc++'s ``std::map``: the comparison, then a node without value whose parent is the root
    of the tree, then the number of nodes."""

    _fields_ = [  # type: ignore[mutable-override]
        ("comparison", ctypes.c_void_p),
        ("colour", ctypes.c_void_p),
        ("root", ctypes.c_void_p),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


class _Node(ctypes.Structure):
    """libstdc++'s ``_Rb_tree_node``; the value follows."""

    _fields_ = [  # type: ignore[mutable-override]
        ("colour", ctypes.c_void_p),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
    ]


@attrs.define(eq=False)
class DeviceTable:
    """The bytes that each device holds, added up; see :func:`devices`."""

    _devices: list[DeviceNeed]

    @property
    def cpu(self) -> str:
        return self._devices[0].name

    @property
    def first_gpu(self) -> str:
        """The CPU where there is none."""
        gpus = [device.name for device in self._devices if device.kind in ("gpu", "igpu")]
        return gpus[0] if gpus else self.cpu

    def smallest_free(self, n_gpu_layers: int) -> int:
        """Return how many bytes are free on the device with the least, of those that hold
        layers."""
        used = [row for row in self._devices if row.total and (n_gpu_layers or row.kind == "cpu")]
        return min((row.free for row in used), default=0)

    def add(self, device: str, **sizes: int) -> None:
        """Add bytes to fields of :class:`DeviceNeed`."""
        for place, row in enumerate(self._devices):
            if row.name == device:
                added = {name: getattr(row, name) + size for name, size in sizes.items()}
                self._devices[place] = attrs.evolve(row, **added)
                return
        raise EngineError(
            f"llama.cpp puts buffers on {device}, which is none of its devices", permanent=True
        )

    def share_out(self, *, lora: int) -> None:
        """Share out adapters, which lie where the weights are that they change: in proportion to
        these."""
        weights = sum(row.weights for row in self._devices)
        for row in list(self._devices):
            if weights and lora:
                self.add(row.name, lora=lora * row.weights // weights)

    def rows(self) -> tuple[DeviceNeed, ...]:
        return tuple(self._devices)


@attrs.frozen
class BufferSizes:
    """The bytes that one type of buffer holds."""

    device: str
    buffer: str
    weights: int
    kv: int
    compute: int


def buffers_of(context: object) -> list[BufferSizes]:
    """Return all buffers of a context and its model; EngineError (permanent) if this build cannot
    say."""
    function = _function(lib._lib, _BREAKDOWN)
    function.argtypes, function.restype = [ctypes.c_void_p], _Map
    buffer_name = ggml_function("ggml_backend_buft_name", ctypes.c_void_p, result=ctypes.c_char_p)
    found = []
    for key, (weights, kv, compute) in _entries(function(context), values=3):
        found.append(BufferSizes(_device_of(key), buffer_name(key).decode(), weights, kv, compute))
    return found


def projection_usage(path: str, params: mtmd.mtmd_context_params) -> dict[str, int]:
    """Return the bytes of a projection by device; empty if llama.cpp cannot read it. Reads the
    header only, but reserves the memory, without touching it."""
    function = _function(mtmd._libmtmd, _PROJECTION_USAGE)
    function.argtypes = [ctypes.c_char_p, mtmd.mtmd_context_params]
    function.restype = _Map
    name = ggml_function("ggml_backend_dev_name", ctypes.c_void_p, result=ctypes.c_char_p)
    usage: dict[str, int] = {}
    for key, (size,) in _entries(function(path.encode(), params), values=1):
        device = name(key).decode()
        usage[device] = usage.get(device, 0) + size
    return usage


def logged_compute(lines: Iterable[str]) -> dict[str, float]:
    """Return MiB of compute buffers that llama.cpp logged last, by the name of the buffer."""
    found = {}
    for line in lines:
        match = _COMPUTE_LINE.search(line)
        if match is not None:
            found[match[1]] = float(match[2])
    return found


def check_against_log(buffers: Iterable[BufferSizes], lines: Iterable[str]) -> None:
    """Raise EngineError (permanent) unless llama.cpp logged these sizes of compute buffers."""
    read = {b.buffer: b.compute / 2**20 for b in buffers if b.compute > 1}
    logged = logged_compute(lines)
    if read.keys() != logged.keys() or any(
        abs(read[name] - logged[name]) > _ROUNDING_MIB for name in read
    ):
        raise EngineError(
            f"llama.cpp logged compute buffers of {logged} MiB, its breakdown reads as {read}: "
            "this build lays it out differently",
            permanent=True,
        )


def devices() -> list[DeviceNeed]:
    """Return all devices of this machine, the CPU first, with what is free and nothing needed."""
    count = ggml_function("ggml_backend_dev_count", result=ctypes.c_size_t)
    get = ggml_function("ggml_backend_dev_get", ctypes.c_size_t)
    kind_of = ggml_function("ggml_backend_dev_type", ctypes.c_void_p, result=ctypes.c_int)
    name = ggml_function("ggml_backend_dev_name", ctypes.c_void_p, result=ctypes.c_char_p)
    description = ggml_function(
        "ggml_backend_dev_description", ctypes.c_void_p, result=ctypes.c_char_p
    )
    memory = ggml_function(
        "ggml_backend_dev_memory",
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
        result=None,
    )
    found = []
    for device in map(get, range(count())):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        kind = _KINDS[kind_of(device)]
        available = available_memory_bytes() if kind == "cpu" else None  # ggml says: all of it
        found.append(
            DeviceNeed(
                name=name(device).decode(),
                description=description(device).decode(),
                kind=kind,
                free=free.value if available is None else available,
                total=total.value,
            )
        )
    return sorted(found, key=lambda device: device.kind != "cpu")


def runtime_bytes(found: Iterable[DeviceNeed]) -> int:
    """Return what the libraries of these devices take of the host, once they have computed."""
    return CUDA_RUNTIME_BYTES if any(each.name.startswith("CUDA") for each in found) else 0


def _device_of(buffer_type: int) -> str:
    """Return the name of the device whose memory a type of buffer takes: the CPU for pinned
    ones."""
    name = ggml_function("ggml_backend_dev_name", ctypes.c_void_p, result=ctypes.c_char_p)
    if not ggml_function("ggml_backend_buft_is_host", ctypes.c_void_p, result=ctypes.c_bool)(
        buffer_type
    ):
        device = ggml_function("ggml_backend_buft_get_device", ctypes.c_void_p)(buffer_type)
        if device:
            return str(name(device).decode())
    cpu = ggml_function("ggml_backend_dev_by_type", ctypes.c_int)(_CPU)
    return str(name(cpu).decode())


def _function(library: ctypes.CDLL, symbol: str) -> ctypes._NamedFuncPointer:
    try:
        return library[symbol]  # one of our own: its types are ours to set
    except AttributeError:
        raise EngineError(
            f"this build of llama.cpp has no {symbol}: what a model takes cannot be counted",
            permanent=True,
        ) from None


def _entries(tree: _Map, *, values: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield keys, pointers all, and their values of so many ``size_t``."""
    is_red = not (tree.colour or 0) & 0xFFFFFFFF  # as the node without value always is
    is_address = (tree.root or 0) > _LOWEST_ADDRESS and not (tree.root or 0) % 8
    if tree.count > _MAX_NODES or (tree.count and not (is_red and is_address)):
        raise EngineError(
            f"llama.cpp's breakdown reads as {tree.count} buffers at {tree.root}: this build lays "
            "it out differently",
            permanent=True,
        )
    row = ctypes.c_size_t * (1 + values)
    waiting = [tree.root]
    found = 0
    while waiting:
        address = waiting.pop()
        if not address:
            continue
        found += 1
        if found > tree.count:
            break
        node = _Node.from_address(address)
        key, *sizes = row.from_address(address + ctypes.sizeof(_Node))
        yield key, tuple(sizes)
        waiting += [node.left, node.right]
    if found != tree.count:
        raise EngineError(
            f"llama.cpp's breakdown has {tree.count} buffers, {found} were found: this build lays "
            "it out differently",
            permanent=True,
        )
