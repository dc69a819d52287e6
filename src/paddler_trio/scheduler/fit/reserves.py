"""Compute how much memory a model leaves to everything else, and the room that is left for it."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.scheduler.fit.fit_values import HOST, Room

GIB: Final = 1024**3
HOST_RESERVE_BYTES: Final = 2 * GIB
GPU_RESERVE_BYTES: Final = 1 * GIB


def host_reserve_bytes(total_bytes: int) -> int:
    """2 GiB, or a tenth of a machine with less than 20 GiB: for the operating system, for the
    processes that prepare requests, for requests themselves, and for what nobody foresaw."""
    return min(HOST_RESERVE_BYTES, total_bytes // 10)


def gpu_reserve_bytes(total_bytes: int) -> int:
    """1 GiB, or a twentieth of a GPU with less than 20 GiB: for its driver's context, for buffers
    that libraries allocate while they compute, and for a display."""
    return min(GPU_RESERVE_BYTES, total_bytes // 20)


@attrs.frozen(kw_only=True)
class MemoryLimits:
    """Limits of memory that an operator sets; None leaves one to the functions above.

    Args:
      host_limit_bytes: the most that a model may take of the host's memory; None for no limit.
    """

    host_reserve_bytes: int | None = None
    gpu_reserve_bytes: int | None = None
    host_limit_bytes: int | None = None

    def room(
        self, device: str, *, total_bytes: int, free_bytes: int | None, held_bytes: int | None
    ) -> Room:
        """Return the room of a device. Where it is not known what the model in force holds there,
        it is not known either what will be free."""
        if device == HOST:
            reserve, usual = self.host_reserve_bytes, host_reserve_bytes
        else:
            reserve, usual = self.gpu_reserve_bytes, gpu_reserve_bytes
        return Room(
            device=device,
            total_bytes=total_bytes,
            free_bytes=None if held_bytes is None else free_bytes,
            held_bytes=held_bytes or 0,
            reserve_bytes=usual(total_bytes) if reserve is None else reserve,
            limit_bytes=self.host_limit_bytes if device == HOST else None,
        )
