"""Characters that no set of a grammar tells apart, numbered as classes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from paddler_trio.language.grammars.gbnf_reader import LAST_CHARACTER, Characters

_SEED = 20_240_501


class CharacterClasses:
    """The coarsest classes for these sets; every character is in one of ``count`` classes."""

    def __init__(self, sets: Sequence[Characters]) -> None:
        spans = [characters.spans for characters in sets]
        # Ranges in the same sets have the same sum of the sets' random numbers.
        marks = np.random.default_rng(_SEED).integers(1, 2**63, len(sets), dtype=np.uint64)
        changes: dict[int, int] = {0: 0, LAST_CHARACTER + 1: 0}
        for mark, ranges in zip(marks.tolist(), spans, strict=True):
            for first, last in ranges:
                changes[first] = changes.get(first, 0) + mark
                changes[last + 1] = changes.get(last + 1, 0) - mark
        firsts = sorted(changes)
        steps = np.array([changes[first] % 2**64 for first in firsts], np.uint64)
        _, examples, classes = np.unique(np.cumsum(steps), return_index=True, return_inverse=True)
        self.count = len(examples)
        self._firsts = np.array(firsts, np.int64)
        self._classes = classes.astype(np.int32)
        self._examples = [firsts[index] for index in examples.tolist()]
        self._known: dict[str, int] = {}
        self._set_firsts = [[first for first, _ in ranges] for ranges in spans]
        self._set_lasts = [[last for _, last in ranges] for ranges in spans]

    def of_all(self, code_points: np.ndarray) -> np.ndarray:
        """The class of each code point: int32 of the same shape."""
        return self._classes[np.searchsorted(self._firsts, code_points, side="right") - 1]

    def of(self, character: str) -> int:
        """The class of one character."""
        known = self._known.get(character)
        if known is None:
            known = int(self.of_all(np.array([ord(character)]))[0])
            self._known[character] = known
        return known

    def is_in(self, character_class: int, number: int) -> bool:
        """Whether the characters of this class are in the set of this number."""
        example = self._examples[character_class]
        return self.meets(number, example, example)

    def meets(self, number: int, low: int, high: int) -> bool:
        """Whether any code point of a range, inclusive, is in the set of this number."""
        index = bisect_right(self._set_firsts[number], high) - 1
        return index >= 0 and self._set_lasts[number][index] >= low
