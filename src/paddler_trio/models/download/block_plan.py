"""Track which bytes of a file are here, which are on their way, and which to ask for next.

A file is a row of blocks of equal size, the last one shorter. A block is the unit that the journal
remembers; a request asks for up to ``blocks_per_part`` of them at once.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class ByteRange:
    """Bytes ``start`` to ``stop``, which is not included."""

    start: int
    stop: int

    @property
    def header(self) -> str:
        """The part as the Range header has it: the last byte is included."""
        return f"bytes={self.start}-{self.stop - 1}"


@attrs.define(eq=False, repr=False)
class BlockPlan:
    """See the module docstring.

    Args:
      size_bytes: of the file, >= 0.
      block_bytes: > 0.
      blocks_per_part: > 0.
      here: one byte for each block, 1 if it is here.
    """

    size_bytes: int
    block_bytes: int
    blocks_per_part: int
    here: bytearray
    _taken: bytearray = attrs.field(init=False)
    _frontier: int = attrs.field(default=0, init=False)
    _search_from: int = attrs.field(default=0, init=False)
    _wanted_block: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        assert len(self.here) == block_count(self.size_bytes, self.block_bytes)
        self._taken = bytearray(self.here)

    def __repr__(self) -> str:
        return f"<BlockPlan {sum(self.here)} of {len(self.here)} blocks are here>"

    def take(self) -> ByteRange | None:
        """Return the next bytes to ask for, now on their way; None if there are none left to
        take."""
        wanted, self._wanted_block = self._wanted_block, None
        is_wanted = wanted is not None and not self._taken[wanted]
        first = (
            wanted if wanted is not None and is_wanted else self._taken.find(0, self._search_from)
        )
        if first < 0:
            return None
        end = self._taken.find(1, first, first + self.blocks_per_part)
        if end < 0:
            end = min(first + self.blocks_per_part, len(self._taken))
        self._taken[first:end] = b"\1" * (end - first)
        if not is_wanted:
            self._search_from = end
        return ByteRange(first * self.block_bytes, min(end * self.block_bytes, self.size_bytes))

    def prefer(self, position: int) -> None:
        """Note that somebody waits for the block at byte ``position``: unless it is on its way, it
        is the next one to be taken. The last wish counts."""
        self._wanted_block = position // self.block_bytes

    def here_from(self, position: int) -> int:
        """Return how many bytes are here without a gap from byte ``position``, which is in the
        file."""
        block = position // self.block_bytes
        gap = self.here.find(0, block)
        end = self.size_bytes if gap < 0 else gap * self.block_bytes
        return max(0, end - position)

    def arrived(self, start: int) -> int:
        """Note that the block that begins at byte ``start`` is here; return its index."""
        index, rest = divmod(start, self.block_bytes)
        assert rest == 0
        self.here[index] = self._taken[index] = 1
        while self._frontier < len(self.here) and self.here[self._frontier]:
            self._frontier += 1
        return index

    @property
    def contiguous_bytes(self) -> int:
        """The number of bytes that are here without a gap from the start."""
        while self._frontier < len(self.here) and self.here[self._frontier]:
            self._frontier += 1
        return min(self._frontier * self.block_bytes, self.size_bytes)

    @property
    def here_bytes(self) -> int:
        return bytes_here(self.here, self.size_bytes, self.block_bytes)

    @property
    def is_complete(self) -> bool:
        return 0 not in self.here


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Return how many blocks a file has."""
    return -(-size_bytes // block_bytes)


def bytes_here(here: bytes | bytearray, size_bytes: int, block_bytes: int) -> int:
    """Return how many bytes the blocks marked in ``here`` have."""
    total = here.count(1) * block_bytes
    if here and here[-1] == 1:
        total -= len(here) * block_bytes - size_bytes
    return total
