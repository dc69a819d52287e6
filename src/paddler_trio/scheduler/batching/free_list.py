"""Which ranges of one block of memory are free: first fit, neighbours merged."""

from __future__ import annotations

import attrs


@attrs.define
class FreeList:
    """Hands out ranges of ``capacity`` bytes; two that are taken never overlap."""

    capacity: int
    _free: list[tuple[int, int]] = attrs.field(init=False)
    """Start and end of each free range, ascending; no two touch."""

    def __attrs_post_init__(self) -> None:
        self._free = [(0, self.capacity)] if self.capacity else []

    @property
    def num_free(self) -> int:
        return sum(end - start for start, end in self._free)

    def fits(self, size: int, *, below: int) -> bool:
        """:meth:`take` has a range of so many bytes."""
        return any(start + size <= min(end, below) for start, end in self._free)

    def take(self, size: int, *, below: int) -> int | None:
        """The start of a range of ``size`` >= 1 bytes that ends at or below ``below``: the first
        that is large enough, so that memory which was in use before is used again first."""
        for place, (start, end) in enumerate(self._free):
            if start + size <= min(end, below):
                self._free[place : place + 1] = [(start + size, end)] if start + size < end else []
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """A range that was taken is free again."""
        end = start + size
        place = next((i for i, (other, _) in enumerate(self._free) if other > start), None)
        place = len(self._free) if place is None else place
        first = last = place
        if place > 0 and self._free[place - 1][1] == start:
            first, start = place - 1, self._free[place - 1][0]
        if place < len(self._free) and self._free[place][0] == end:
            last, end = place + 1, self._free[place][1]
        self._free[first:last] = [(start, end)]
