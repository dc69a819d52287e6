"""Prefixes in host memory: the bytes behind :class:`PrefixStore`'s decisions.

No stream is copied while a sequence waits for it: idle streams are copied between passes, as far as
the budget allows, in the order in which they would be replaced; the rest once the engine is idle. A
stream that is replaced before it was copied is lost.
"""

from __future__ import annotations

import time

import attrs

from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.memory.host_memory import HostMemory
from paddler_trio.scheduler.batching.image_tokens import Positions
from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.batching.prefix_store import Found, PrefixStore
from paddler_trio.scheduler.batching.resident_tokens import Resident
from paddler_trio.scheduler.batching.save_budget import SaveBudget
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams

WORTH_RESTORING = 32
"""Tokens more than the cache has by itself; fewer are computed as quickly."""
_AHEAD = 4
"""So many more of the size stored last find memory that is ready."""


@attrs.define(eq=False)
class StoredPrefixes:
    """The prefixes of streams that are needed for something else, now or later."""

    llama: Llama
    memory: HostMemory
    store_plan: PrefixStore
    prefill_controller: PrefillController
    budget: SaveBudget = attrs.field(factory=SaveBudget, init=False)
    _bytes_per_token: float = attrs.field(default=0.0, init=False)
    """The bytes per token of what was looked at last; 0 before."""

    @property
    def num_bytes(self) -> int:
        return self.store_plan.num_bytes

    @property
    def num_tokens(self) -> int:
        return self.store_plan.num_tokens

    @property
    def is_off(self) -> bool:
        return self.store_plan.budget_bytes == 0

    def save_between_passes(self, streams: Streams) -> None:
        """Copy what is replaced next, as far as the budget goes."""
        while not self.is_off and (resident := streams.next_unsaved(all_idle=False)) is not None:
            about = int(self._bytes_per_token * len(resident.tokens))
            if not (self.budget.affords(about) and self._try_to_save(resident, streams)):
                return

    def idle_wait_s(self, streams: Streams) -> float | None:
        """Return how long the engine must have been idle before the next copy; None if there is
        none."""
        if self.is_off or (resident := streams.next_unsaved(all_idle=True)) is None:
            return None
        return self.budget.idle_wait_s(self._size(resident))

    def save_while_idle(self, streams: Streams) -> bool:
        """Copy one stream; False if there is none, or memory must be made ready first."""
        resident = streams.next_unsaved(all_idle=True)
        return resident is not None and self._try_to_save(resident, streams, is_idle=True)

    def save_checkpoint(self, tokens: list[int], salt: str, stream: int) -> None:
        """Copy what is in the cache in the middle of a prompt: now, or never."""
        resident = Resident(stream, tokens, salt)
        size = self._size(resident)
        if self._is_ready_for(size) and self.budget.affords(size) and self._wants(resident, size):
            self._save(resident, size)

    def find(self, sequence: Sequence, *, better_than: int) -> Found | None:
        """Return the stored prefix that is worth restoring where the cache has so many of its
        tokens."""
        if self.is_off:
            return None
        return self.store_plan.find(
            sequence.tokens, sequence.salt, better_than=better_than + WORTH_RESTORING
        )

    def restore(self, found: Found, stream: int, positions: Positions) -> int:
        """Put what was found into the stream, whatever that holds.

        Args:
          positions: of the tokens of the sequence that it was found for.

        Returns:
          How many tokens of that sequence are in the cache now.
        """
        self.llama.forget(stream)
        if not self.llama.restore(stream, self.memory.view(found.offset, found.num_bytes)):
            return 0
        if found.length < found.size and not self.llama.trim(stream, positions.at(found.length)):
            return 0
        return found.length

    # -------------------------------------------------------------- private

    def _try_to_save(self, resident: Resident, streams: Streams, *, is_idle: bool = False) -> bool:
        """Return True if a prefix is done with, saved or not; False if it must wait."""
        size = self._size(resident)
        if size <= self.store_plan.budget_bytes:
            if not self._is_ready_for(size) or not (is_idle or self.budget.affords(size)):
                return False
            if self._wants(resident, size):
                self._save(resident, size)
        streams.saved(resident)
        return True

    def _size(self, resident: Resident) -> int:
        size = self.llama.state_size(resident.stream)
        self._bytes_per_token = size / len(resident.tokens)
        return size

    def _is_ready_for(self, size: int) -> bool:
        plan = self.store_plan
        plan.ready_bytes = self.memory.ready_bytes
        if plan.is_ready_for(size):
            return True
        self.memory.want(plan.ready_bytes + size)
        return False

    def _wants(self, resident: Resident, size: int) -> bool:
        token_ms = self.prefill_controller.prompt_token_ms
        compute_ms = None if token_ms is None else token_ms * len(resident.tokens)
        return self.budget.is_worth(size, compute_ms=compute_ms) and self.store_plan.wants(
            resident.tokens, resident.salt, size
        )

    def _save(self, resident: Resident, size: int) -> None:
        plan, stream = self.store_plan, resident.stream
        first_position = max(0, self.llama.first_position(stream))
        if plan.rules.window:  # llama.cpp saves of such layers only what the next token looks at
            first_position = max(first_position, len(resident.tokens) - plan.rules.window)
        offset = plan.add(resident.tokens, resident.salt, size, first_position=first_position)
        self.memory.want(offset + (1 + _AHEAD) * size)
        started_s = time.perf_counter()
        self.llama.save(stream, self.memory.view(offset, size))
        self.budget.saved(size, 1e3 * (time.perf_counter() - started_s))
