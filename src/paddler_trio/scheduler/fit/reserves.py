"""How much memory a model leaves to everything else, unless the operator says otherwise."""

from __future__ import annotations

from typing import Final

GIB: Final = 1024**3
HOST_RESERVE_BYTES: Final = 2 * GIB
GPU_RESERVE_BYTES: Final = 1 * GIB


def host_reserve_bytes(total_bytes: int) -> int:
    """2 GiB, or a tenth of a machine with less than 20 GiB: for the operating system, for Python
    and the tables of a vocabulary in four processes, for requests, and for what nobody foresaw."""
    return min(HOST_RESERVE_BYTES, total_bytes // 10)


def gpu_reserve_bytes(total_bytes: int) -> int:
    """1 GiB, or a twentieth of a GPU with less than 20 GiB: for its driver's context, for buffers
    that libraries allocate while they compute, and for a display."""
    return min(GPU_RESERVE_BYTES, total_bytes // 20)
