"""Account exactly for which streams hold which cells of the KV cache.

Two layouts. *Split*: every stream has a region of its own, and one stream's tokens never cost
another's. *Unified*: one pool for all; a token whose prefix is shared by several streams is held by
all of them and stored once, so a cell is free only when the last stream releases it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import ClassVar, Protocol

import attrs


class Cells(Protocol):
    """``capacity`` is what one stream can hold if no other holds anything; ``is_pooled``: what
    others hold is not available to it."""

    capacity: int
    is_pooled: ClassVar[bool]

    @property
    def num_used(self) -> int: ...

    @property
    def num_free(self) -> int:
        """Cells that any stream may take now; as many as are asked for with split regions."""
        ...

    def freed_by(self, stream: int, length: int) -> int:
        """Return how many more cells would be free if the stream were cut to ``length``."""
        ...

    def grow(self, stream: int, count: int) -> None: ...

    def trim(self, stream: int, length: int) -> None: ...

    def copy(self, source: int, target: int, length: int) -> None:
        """``target``, which holds nothing, gets the first ``length`` tokens of ``source``."""
        ...

    def length(self, stream: int) -> int: ...


@attrs.define
class SplitCells:
    """A region of ``capacity`` cells for each of ``num_streams``."""

    is_pooled: ClassVar[bool] = False
    num_streams: int
    capacity: int
    _lengths: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._lengths = [0] * self.num_streams

    def __repr__(self) -> str:
        return f"<SplitCells: {self.num_streams} of {self.capacity}, used {self._lengths}>"

    @property
    def num_used(self) -> int:
        return sum(self._lengths)

    @property
    def num_free(self) -> int:
        return self.num_streams * self.capacity - self.num_used

    def freed_by(self, stream: int, length: int) -> int:
        return max(0, self._lengths[stream] - length)

    def grow(self, stream: int, count: int) -> None:
        self._lengths[stream] += count
        assert self._lengths[stream] <= self.capacity, f"stream {stream} outgrew its cells"

    def trim(self, stream: int, length: int) -> None:
        self._lengths[stream] = min(self._lengths[stream], length)

    def copy(self, source: int, target: int, length: int) -> None:
        assert self._lengths[target] == 0, f"stream {target} is not empty"
        assert length <= self._lengths[source], f"stream {source} has fewer than {length}"
        self._lengths[target] = length

    def length(self, stream: int) -> int:
        return self._lengths[stream]


@attrs.define
class UnifiedCells:
    """One pool of ``capacity`` cells for all of ``num_streams``."""

    is_pooled: ClassVar[bool] = True
    num_streams: int
    capacity: int
    _held: list[list[int]] = attrs.field(init=False)
    """The cells of each stream, in the order of its tokens."""
    _holders: list[int] = attrs.field(init=False)
    """The number of streams that hold each cell."""
    _free: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._held = [[] for _ in range(self.num_streams)]
        self._holders = [0] * self.capacity
        self._free = list(range(self.capacity))

    def __repr__(self) -> str:
        return f"<UnifiedCells: {self.num_used} of {self.capacity} used>"

    @property
    def num_used(self) -> int:
        return self.capacity - len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def freed_by(self, stream: int, length: int) -> int:
        # A stream that shares a cell shares all before it: those it holds alone are its last ones.
        held, holders = self._held[stream], self._holders
        first = bisect_left(held, 1, min(length, len(held)), key=lambda cell: holders[cell] == 1)
        return len(held) - first

    def grow(self, stream: int, count: int) -> None:
        assert count <= len(self._free), f"{count} cells wanted, {len(self._free)} are free"
        for _ in range(count):
            cell = self._free.pop()
            self._holders[cell] = 1
            self._held[stream].append(cell)

    def trim(self, stream: int, length: int) -> None:
        held = self._held[stream]
        for cell in held[length:]:
            self._holders[cell] -= 1
            if not self._holders[cell]:
                self._free.append(cell)
        del held[length:]

    def copy(self, source: int, target: int, length: int) -> None:
        assert not self._held[target], f"stream {target} is not empty"
        shared = self._held[source][:length]
        assert len(shared) == length, f"stream {source} has fewer than {length}"
        for cell in shared:
            self._holders[cell] += 1
        self._held[target] = shared

    def length(self, stream: int) -> int:
        return len(self._held[stream])
