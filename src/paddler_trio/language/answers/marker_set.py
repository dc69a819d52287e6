"""Finding fixed texts in a text that arrives in pieces."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable


class MarkerSet:
    """Some texts to look for. Immutable; none of them is empty.

    Of two texts that start at the same place the shorter one counts, the moment it is complete:
    so it does not matter how the text was cut.
    """

    __slots__ = ("_firsts", "_longest", "_pattern", "_sorted", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(texts)
        alternatives = "|".join(re.escape(text) for text in sorted(self.texts, key=len))
        self._pattern = re.compile(alternatives) if alternatives else None
        self._sorted = sorted(text for text in self.texts if len(text) > 1)
        self._firsts = frozenset(text[0] for text in self._sorted)
        self._longest = max(map(len, self._sorted), default=1) - 1

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first of the texts at or after ``start``."""
        return None if self._pattern is None else self._pattern.search(text, start)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        """One of the texts exactly at ``start``."""
        return None if self._pattern is None else self._pattern.match(text, start)

    def undecided_from(self, text: str, start: int = 0) -> int:
        """Where the longest end of ``text`` starts that may still become one of the texts."""
        for begin in range(max(start, len(text) - self._longest), len(text)):
            if text[begin] in self._firsts and self._is_beginning(text[begin:]):
                return begin
        return len(text)

    def _is_beginning(self, text: str) -> bool:
        """Whether one of the texts begins with this and goes on."""
        place = bisect_right(self._sorted, text)  # what goes on sorts right behind it
        return place < len(self._sorted) and self._sorted[place].startswith(text)
