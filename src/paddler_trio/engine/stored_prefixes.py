"""Prefixes in host memory: the bytes behind :class:`PrefixStore`'s decisions."""

from __future__ import annotations

import attrs
import numpy as np

from paddler_trio.engine.llama import Llama
from paddler_trio.scheduler.batching.image_tokens import Positions
from paddler_trio.scheduler.batching.prefix_store import PrefixStore
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Replaced

WORTH_RESTORING = 32
"""Tokens more than the cache has by itself; fewer are computed as quickly."""


@attrs.define(eq=False)
class StoredPrefixes:
    """What was in streams that were needed for something else."""

    llama: Llama
    store_plan: PrefixStore
    _data: dict[int, np.ndarray] = attrs.field(factory=dict, init=False)

    @property
    def num_bytes(self) -> int:
        return self.store_plan.num_bytes

    @property
    def num_tokens(self) -> int:
        return self.store_plan.num_tokens

    def store(self, replaced: Replaced, stream: int) -> None:
        """Copy what the stream holds, unless it is not worth its room."""
        plan = self.store_plan
        if plan.budget_bytes == 0:
            return
        if not plan.wants(replaced.tokens, replaced.salt, self.llama.state_size(stream)):
            return
        data = self.llama.save(stream)
        first_position = max(0, self.llama.first_position(stream))
        if plan.rules.window:  # llama.cpp saves of such layers only what the next token looks at
            first_position = max(first_position, len(replaced.tokens) - plan.rules.window)
        number, gone = plan.add(
            replaced.tokens, replaced.salt, len(data), first_position=first_position
        )
        for old in gone:
            del self._data[old]
        self._data[number] = data

    def restore(
        self, sequence: Sequence, stream: int, *, better_than: int, positions: Positions
    ) -> int | None:
        """Put a stored prefix into the stream, if one is better than what the cache has.

        Args:
          positions: of the sequence's tokens.

        Returns:
          How many tokens of the sequence are in the cache now; None if nothing was touched.
        """
        if self.store_plan.budget_bytes == 0:
            return None
        found = self.store_plan.find(
            sequence.tokens, sequence.salt, better_than=better_than + WORTH_RESTORING
        )
        if found is None:
            return None
        self.llama.forget(stream)
        if not self.llama.restore(stream, self._data[found.number]):
            return 0
        if found.length < found.size and not self.llama.trim(stream, positions.at(found.length)):
            return 0
        return found.length
