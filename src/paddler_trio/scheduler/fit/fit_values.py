"""Values that a fit is decided from: a load, what it takes on each device, and the room there.

Bytes are exact integers. A device is named as llama.cpp names it (``CUDA0``); :data:`HOST` is the
memory of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

HOST: Final = "host"
ALL_LAYERS: Final = -1
CELLS_STEP: Final = 256
"""llama.cpp rounds the cells of each sequence up to a multiple of this."""


def slot_context(context_size: int, *, slots: int, is_unified: bool) -> int | None:
    """Return the most tokens that one slot may have, as llama.cpp rounds them: its share, or in one
    pool for all slots everything; None for a context that the model decides."""
    if context_size <= 0:
        return None
    share = context_size if is_unified else context_size // max(1, slots)
    return max(1, -(-share // CELLS_STEP)) * CELLS_STEP


@attrs.frozen(kw_only=True)
class LoadShape:
    """The parameters of a load that decide how much memory it takes, and that may be changed.

    Args:
      context_size: tokens, shared by all slots; 0 for what the model was trained with, a slot.
      n_gpu_layers: the output layer counts as one; negative for all.
      k_cache_dtype, v_cache_dtype: names of ``KvCacheDtype``.
    """

    context_size: int
    slots: int
    n_gpu_layers: int
    k_cache_dtype: str
    v_cache_dtype: str


@attrs.frozen(kw_only=True)
class Need:
    """The memory that one load takes, from a dry run of it.

    Args:
      bytes_by_device: everything that is allocated, by device; none is negative.
      n_layers: layers that may be put on a GPU, the output layer among them.
      n_ctx_train: tokens of context that the model was trained with.
    """

    bytes_by_device: Mapping[str, int]
    n_layers: int
    n_ctx_train: int


@attrs.frozen(kw_only=True)
class Room:
    """The memory of one device, as a new model will find it.

    Args:
      total_bytes: of the device.
      free_bytes: now; None where it cannot be known, and then nothing is refused because of it.
      held_bytes: what the model in force holds there, and gives back before the new one is loaded.
      reserve_bytes: left for everything else.
      limit_bytes: the most that a model may take there, whatever is free; None for no limit.
    """

    device: str
    total_bytes: int
    free_bytes: int | None
    held_bytes: int = 0
    reserve_bytes: int = 0
    limit_bytes: int | None = None

    @property
    def free_after_bytes(self) -> int | None:
        """Free when the model in force is gone; None where that cannot be known."""
        return None if self.free_bytes is None else self.free_bytes + self.held_bytes

    @property
    def available_bytes(self) -> int | None:
        """Bytes that a new model may take; None for any amount."""
        after = self.free_after_bytes
        spare = None if after is None else max(0, after - self.reserve_bytes)
        if spare is None or self.limit_bytes is None:
            return self.limit_bytes if spare is None else spare
        return min(spare, self.limit_bytes)


@attrs.frozen(kw_only=True)
class Shortage:
    """A device that has too little."""

    device: str
    needed_bytes: int
    available_bytes: int

    @property
    def missing_bytes(self) -> int:
        return self.needed_bytes - self.available_bytes


def shortages(need: Need, rooms: Mapping[str, Room]) -> tuple[Shortage, ...]:
    """Return by how much ``need`` exceeds what is available, by device; empty if it fits.

    A device without a room, or whose free memory is not known, is never too small.
    """
    found = []
    for device, needed in sorted(need.bytes_by_device.items()):
        room = rooms.get(device)
        available = None if room is None else room.available_bytes
        if available is not None and needed > available:
            found.append(Shortage(device=device, needed_bytes=needed, available_bytes=available))
    return tuple(found)


def layers_on_gpu(shape: LoadShape, need: Need) -> int:
    """Return how many of the model's layers ``shape`` puts on a GPU."""
    asked = shape.n_gpu_layers
    return need.n_layers if asked < 0 else min(asked, need.n_layers)


def context_of(shape: LoadShape, need: Need) -> int:
    """Return the tokens of context, with the model's own in the place of 0."""
    return shape.context_size or need.n_ctx_train * shape.slots
