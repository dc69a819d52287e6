"""Decide which prefixes are kept in host memory after their cells were needed for something else.

The engine holds the memory; this decides what is kept in it, where, and what is evicted, and finds
the stored prefix that serves a prompt best. Storing costs a copy: while no stored prefix is used
again, less and less is stored.

Memory that was never touched is slow: the system gives it page by page, which takes many times as
long as the copy. So the store grows only into memory that is ready.
"""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.batching.image_tokens import whole_images
from paddler_trio.scheduler.batching.prefixes import MemoryRules, common_prefix

UNUSED_BEFORE_RARER = 16
"""So many stored in a row without one being asked for again halve what is stored."""
RAREST = 16
"""At least one of so many is stored."""


@attrs.define(eq=False)
class _Stored:
    tokens: list[int]
    salt: str
    first_position: int
    offset: int
    num_bytes: int
    last_used: int


@attrs.frozen
class Found:
    """A stored prefix has ``length`` usable tokens; ``size`` are stored, in ``num_bytes`` from
    ``offset`` on."""

    length: int
    size: int
    offset: int
    num_bytes: int


@attrs.define
class PrefixStore:
    """Args: ``budget_bytes`` of all stored prefixes together, 0 to store none."""

    budget_bytes: int
    rules: MemoryRules = attrs.field(factory=MemoryRules)
    ready_bytes: int = attrs.field(init=False)
    """The bytes of the memory that were touched before, from its beginning on."""
    _memory: FreeList = attrs.field(init=False)
    _stored: list[_Stored] = attrs.field(factory=list, init=False)
    _clock: int = attrs.field(default=0, init=False)
    _unused: int = attrs.field(default=0, init=False)
    """Prefixes stored since one served."""
    _skipped: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.ready_bytes = self.budget_bytes
        self._memory = FreeList(self.budget_bytes)

    @property
    def num_bytes(self) -> int:
        return sum(stored.num_bytes for stored in self._stored)

    @property
    def num_tokens(self) -> int:
        return sum(len(stored.tokens) for stored in self._stored)

    def find(self, tokens: list[int], salt: str | None, *, better_than: int) -> Found | None:
        """Return the stored prefix with most of ``tokens``, if it beats ``better_than`` tokens."""
        best, found = better_than, None
        if salt is None:
            return None
        for stored in self._stored:
            if stored.salt != salt or len(stored.tokens) <= best:
                continue
            limit = min(len(stored.tokens), len(tokens) - 1)
            shared = common_prefix(tokens, stored.tokens, limit)
            if self.rules.whole_images:
                shared = whole_images(tokens, shared)
            shared = self.rules.usable(
                shared,
                length=len(stored.tokens),
                first_position=stored.first_position,
            )
            if shared > best:
                best, found = shared, stored
        if found is None:
            return None
        self._clock += 1
        self._unused = 0
        found.last_used = self._clock
        return Found(best, len(found.tokens), found.offset, found.num_bytes)

    def wants(self, tokens: list[int], salt: str | None, num_bytes: int) -> bool:
        """Return whether this prefix is to be stored: it fits, none stored serves as well, and
        stored ones are of use, or it is one of the few that try whether they are."""
        if salt is None or num_bytes > self.budget_bytes:
            return False
        if self.keeps(tokens, salt):
            return False
        self._skipped += 1
        rarity = min(RAREST, 2 ** (self._unused // UNUSED_BEFORE_RARER))
        if self._skipped < rarity:
            return False
        self._skipped = 0
        return True

    def keeps(self, tokens: list[int], salt: str) -> bool:
        """Return whether what is stored serves wherever these tokens would."""
        end = len(tokens) if self.rules.is_cut_anywhere else None
        return any(stored.salt == salt and stored.tokens[:end] == tokens for stored in self._stored)

    def is_ready_for(self, num_bytes: int) -> bool:
        """Return whether so many bytes have room in memory that is ready, or no more will ever
        be."""
        return self.ready_bytes == self.budget_bytes or self._memory.fits(
            num_bytes, below=self.ready_bytes
        )

    def add(self, tokens: list[int], salt: str, num_bytes: int, *, first_position: int = 0) -> int:
        """Store what is wanted, once there is memory ready for it. What it contains goes, then what
        was not used for longest.

        Returns:
          Where its bytes belong.
        """
        assert self.is_ready_for(num_bytes), "memory must be made ready for it first"
        offset = self._memory.take(num_bytes, below=self.ready_bytes)
        if self.rules.is_cut_anywhere:
            for stored in [s for s in self._stored if s.salt == salt]:
                if tokens[: len(stored.tokens)] == stored.tokens:
                    self._drop(stored)
        while offset is None:
            offset = self._memory.take(num_bytes, below=self.ready_bytes)
            if offset is None:
                self._drop(min(self._stored, key=lambda stored: stored.last_used))
        self._clock += 1
        self._unused += 1
        self._stored.append(_Stored(tokens, salt, first_position, offset, num_bytes, self._clock))
        return offset

    def _drop(self, stored: _Stored) -> None:
        self._stored.remove(stored)
        self._memory.give_back(stored.offset, stored.num_bytes)


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
        """Return whether :meth:`take` has a range of so many bytes."""
        return any(start + size <= min(end, below) for start, end in self._free)

    def take(self, size: int, *, below: int) -> int | None:
        """Return the start of a range of ``size`` >= 1 bytes that ends at or below ``below``: the
        first that is large enough, so that memory which was in use before is used again first."""
        for place, (start, end) in enumerate(self._free):
            if start + size <= min(end, below):
                self._free[place : place + 1] = [(start + size, end)] if start + size < end else []
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Note that a range that was taken is free again."""
        end = start + size
        place = next((i for i, (other, _) in enumerate(self._free) if other > start), None)
        place = len(self._free) if place is None else place
        first = last = place
        if place > 0 and self._free[place - 1][1] == start:
            first, start = place - 1, self._free[place - 1][0]
        if place < len(self._free) and self._free[place][0] == end:
            last, end = place + 1, self._free[place][1]
        self._free[first:last] = [(start, end)]
