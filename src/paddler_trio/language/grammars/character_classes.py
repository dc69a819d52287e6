"""Which characters the sets of a grammar tell apart, as far as a vocabulary can write them."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

_SEED = 20_240_501


class CharacterClasses:
    """Characters that no set of a grammar distinguishes, numbered as classes.

    The first ``count`` classes are those of a vocabulary's ``code_points``, whose classes are
    ``of_vocabulary``. A grammar may distinguish a million characters more; each class of those has
    a number when a text first needs it, until :meth:`forget`.

    Args:
      set_starts, set_firsts, set_lasts: the sets of a grammar, see ``GrammarRules``.
      code_points: int64, all characters that stand whole in tokens.
    """

    def __init__(
        self,
        set_starts: array[int],
        set_firsts: array[int],
        set_lasts: array[int],
        code_points: np.ndarray,
    ) -> None:
        self._set_starts = set_starts
        self._set_firsts, self._set_lasts = set_firsts, set_lasts
        # Characters in the same sets have the same sum of the sets' random numbers.
        starts = np.array(self._set_starts, np.int64)
        num_ranges = starts[1:] - starts[:-1]
        dice = np.random.default_rng(_SEED)
        marks = np.repeat(dice.integers(1, 2**63, len(num_ranges), dtype=np.uint64), num_ranges)
        firsts = np.array(array("i", [0]) + self._set_firsts + self._set_lasts, np.int32)
        firsts[1 + len(self._set_firsts) :] += 1
        order = np.argsort(firsts, kind="stable")
        steps = np.concatenate([np.zeros(1, np.uint64), marks, ~marks + np.uint64(1)])
        self._firsts = firsts[order]
        self._sums = np.cumsum(steps[order])
        sums, places, classes = np.unique(
            self._sums_of(code_points), return_index=True, return_inverse=True
        )
        self.count = len(sums)
        self.of_vocabulary = classes.astype(np.int32)
        self._examples: list[int] = code_points[places].tolist()
        self._numbers: dict[int, int] = dict(zip(sums.tolist(), range(self.count), strict=True))
        self._known: dict[str, int] = {}

    def _sums_of(self, code_points: np.ndarray) -> np.ndarray:
        places = np.searchsorted(self._firsts, code_points, side="right") - 1
        sums: np.ndarray = self._sums[places]
        return sums

    def of(self, character: str) -> int:
        """The class of one character."""
        known = self._known.get(character)
        if known is None:
            total = int(self._sums_of(np.array([ord(character)]))[0])
            known = self._numbers.get(total)
            if known is None:
                known = self._numbers[total] = len(self._examples)
                self._examples.append(ord(character))
            self._known[character] = known
        return known

    def forget(self) -> None:
        """Classes that no token holds whole have no number any more."""
        self._known.clear()
        del self._examples[self.count :]
        while len(self._numbers) > self.count:
            self._numbers.popitem()

    def is_in(self, character_class: int, number: int) -> bool:
        """Whether the characters of this class are in the set of this number."""
        example = self._examples[character_class]
        return self.meets(number, example, example)

    def meets(self, number: int, low: int, high: int) -> bool:
        """Whether any code point of a range, inclusive, is in the set of this number."""
        start, end = self._set_starts[number], self._set_starts[number + 1]
        index = bisect_right(self._set_firsts, high, start, end) - 1
        return index >= start and self._set_lasts[index] >= low


def no_vocabulary() -> np.ndarray:
    """The code points of a grammar that is only inspected."""
    return np.zeros(0, np.int64)
