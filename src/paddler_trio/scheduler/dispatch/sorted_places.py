"""Items in order, where adding, removing and counting those before one cost the same for 10 as for
100,000: short sorted lists, one after the other."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=tuple[object, ...])

CHUNK: Final = 1024
"""A list that has grown to twice this is cut in two: moving that many pointers costs less than a
microsecond, and 100,000 items are some 100 lists."""


class SortedPlaces(Generic[T]):
    """See the module docstring. Each item is in it once."""

    __slots__ = ("_chunks", "_lasts", "_length")

    def __init__(self) -> None:
        self._chunks: list[list[T]] = []
        self._lasts: list[T] = []
        """The last item of each chunk; no chunk is empty."""
        self._length = 0

    @classmethod
    def of(cls, items: list[T]) -> SortedPlaces[T]:
        """Return places of many items at once, given in any order; each item occurs once."""
        places = cls()
        items.sort()
        places._chunks = [items[at : at + CHUNK] for at in range(0, len(items), CHUNK)]
        places._lasts = [chunk[-1] for chunk in places._chunks]
        places._length = len(items)
        return places

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def __repr__(self) -> str:
        return f"<SortedPlaces of {self._length}>"

    @property
    def first(self) -> T:
        """IndexError if there is none."""
        return self._chunks[0][0]

    @property
    def last(self) -> T:
        """IndexError if there is none."""
        return self._lasts[-1]

    def add(self, item: T) -> None:
        self._length += 1
        if not self._chunks:
            self._chunks.append([item])
            self._lasts.append(item)
            return
        place = min(bisect_left(self._lasts, item), len(self._chunks) - 1)
        chunk = self._chunks[place]
        insort(chunk, item)
        if len(chunk) >= 2 * CHUNK:
            self._chunks.insert(place + 1, chunk[CHUNK:])
            self._lasts.insert(place + 1, chunk[-1])
            del chunk[CHUNK:]
        self._lasts[place] = chunk[-1]

    def remove(self, item: T) -> None:
        """Remove an item; ValueError if it is not there."""
        place = bisect_left(self._lasts, item)
        chunk = self._chunks[place] if place < len(self._chunks) else []
        within = bisect_left(chunk, item)
        if within == len(chunk) or chunk[within] != item:
            raise ValueError(f"{item!r} is not in {self!r}")
        del chunk[within]
        self._length -= 1
        if not chunk:
            del self._chunks[place], self._lasts[place]
        elif within == len(chunk):
            self._lasts[place] = chunk[-1]

    def at(self, number: int) -> T:
        """Return the item before which there are ``number`` others; IndexError if there is none."""
        if not 0 <= number < self._length:
            raise IndexError(f"{number} is not in {self!r}")
        for chunk in self._chunks:
            if number < len(chunk):
                return chunk[number]
            number -= len(chunk)
        raise AssertionError("the length is that of all chunks")

    def before(self, item: T) -> int:
        """Return how many items are smaller; ``item`` need not be there."""
        place = bisect_left(self._lasts, item)
        if place == len(self._chunks):
            return self._length
        within = bisect_left(self._chunks[place], item)
        if 2 * place < len(self._chunks):
            return sum(map(len, self._chunks[:place])) + within
        return self._length - sum(map(len, self._chunks[place:])) + within
