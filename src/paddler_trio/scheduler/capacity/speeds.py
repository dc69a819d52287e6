"""Fit the speed of an engine to what was seen of requests.

Whatever an engine did in a time, that time is: passes x time of a pass + answers' tokens x time of
one + prompt tokens x time of one. Each answer, and each wait for a first token, is a sample; of an
engine's own threads nothing need be known. Errors count in proportion to the times, later samples
more than earlier ones. Agents that share a machine slow each other: by how much is tried.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

import attrs

from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed

KEPT: Final = 0.998
"""Of the weight of all samples before, at each: the last 500 or so count."""
SLOWINGS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Parts by which each other busy agent may slow an engine: they share a machine."""
ENOUGH: Final = 5
"""Samples of each kind, below which an engine is believed to be as those of others are."""
DOUBT: Final = 2.0
"""So many samples say that half of a pass is its own and half the answers'."""
_LEAST_S: Final = 1e-7


@attrs.define
class _Sums:
    """The sums of least squares: of products of what was done, and of what was done, each divided
    by its time."""

    products: list[list[float]] = attrs.field(factory=lambda: [[0.0] * 3 for _ in range(3)])
    sums: list[float] = attrs.field(factory=lambda: [0.0] * 3)

    def add(self, shares: Sequence[float]) -> None:
        for at, share in enumerate(shares):
            self.sums[at] = KEPT * self.sums[at] + share
            row = self.products[at]
            row[:] = [KEPT * sum_ + share * each for sum_, each in zip(row, shares, strict=True)]

    def include(self, other: _Sums) -> None:
        for row, others in zip(self.products, other.products, strict=True):
            row[:] = [mine + its for mine, its in zip(row, others, strict=True)]
        self.sums = [mine + its for mine, its in zip(self.sums, other.sums, strict=True)]

    def best(self, number: float) -> tuple[float, list[float]]:
        """Return how much of the squares is explained, and the times with which it is."""
        products = [list(row) for row in self.products]
        doubt = DOUBT * products[0][0] / max(1.0, number)
        for one, other, sign in ((0, 0, 1), (1, 1, 1), (0, 1, -1), (1, 0, -1)):
            products[one][other] += sign * doubt
        found = _least(products, self.sums)
        return sum(map(operator.mul, self.sums, found)), found


@attrs.define
class SpeedSamples:
    """The samples of one engine, added up."""

    answers: float = 0.0
    prompts: float = 0.0
    most_together: float = 0.0
    """Answers that were written at the same time, at most."""
    lag_s: float = 0.0
    """The sum of what was neither waiting nor computing, before first tokens."""
    _by_slowing: dict[float, _Sums] = attrs.field(
        factory=lambda: {each: _Sums() for each in SLOWINGS}
    )

    def add_answer(
        self,
        *,
        tokens: int,
        together: float,
        prompt_tokens: float,
        took_s: float,
        others: float = 0.0,
    ) -> None:
        """Note the tokens of an answer behind its first one: how many answers were written with it
        on average, itself included, the prompt tokens that were computed meanwhile, and how many
        other agents were busy."""
        if tokens > 0 and took_s > 0:
            self._add((tokens, tokens * max(1.0, together), prompt_tokens), took_s, others)
            self.answers += 1
            self.most_together = max(self.most_together, together)

    def add_prompt(
        self,
        *,
        tokens: float,
        passes: float,
        together: float,
        took_s: float,
        others: float = 0.0,
    ) -> None:
        """Note a first token: the prompt tokens that were computed for it, in about so many passes
        with so many answers in each, while so many other agents were busy."""
        if took_s > 0:
            self._add((passes, passes * together, tokens), took_s, others)
            self.prompts += 1

    def add_lag(self, lag_s: float) -> None:
        """Note what one first token took beside waiting and computing."""
        self.lag_s += max(0.0, lag_s)

    def include(self, other: SpeedSamples) -> None:
        """Add the samples of another engine."""
        self.answers += other.answers
        self.prompts += other.prompts
        self.most_together = max(self.most_together, other.most_together)
        self.lag_s += other.lag_s
        for slowing, sums in self._by_slowing.items():
            sums.include(other._by_slowing[slowing])

    @property
    def is_enough(self) -> bool:
        return min(self.answers, self.prompts) >= ENOUGH

    def slowing(self) -> float:
        """Return by how much other busy agents slow it: what explains most, if that is a fifth of
        what is not explained without it."""
        number = self.answers + self.prompts
        left = {each: number - sums.best(number)[0] for each, sums in self._by_slowing.items()}
        found = min(left, key=lambda each: left[each])
        return found if left[found] <= 0.8 * left[0.0] else 0.0

    def speed(self, cache_tokens: int, slowing: float = 0.0) -> EngineSpeed | None:
        """Return what fits best; None of no samples. Without different numbers of answers together
        half of a pass is believed to be its own, and half the answers'."""
        if not (self.answers and self.prompts):
            return None
        _, found = self._by_slowing[slowing].best(self.answers + self.prompts)
        pass_s, token_s, prompt_s = (max(_LEAST_S, each) for each in found)
        lag_s, cells = self.lag_s / self.prompts, max(1, cache_tokens)
        return EngineSpeed(1 / prompt_s, pass_s, token_s, None, cells, lag_s, slowing)

    def _add(self, amounts: tuple[float, float, float], took_s: float, others: float) -> None:
        self.answers *= KEPT
        self.prompts *= KEPT
        self.lag_s *= KEPT
        for slowing, sums in self._by_slowing.items():
            sums.add([each * (1 + slowing * others) / took_s for each in amounts])


def speeds_of(
    samples: Iterable[tuple[SpeedSamples, int]],
) -> tuple[list[EngineSpeed] | None, float]:
    """Return the speed of each engine, and the most answers that any wrote together.

    Args:
      samples: of each engine, with the tokens that it keeps; one with few samples is believed to be
        as all of them are together. By how much they slow each other is one number for all.

    Returns:
      None for the speeds if nothing was measured at all.
    """
    given = list(samples)
    together = SpeedSamples()
    for each, _ in given:
        together.include(each)
    slowing = together.slowing()
    found = [(each if each.is_enough else together).speed(cells, slowing) for each, cells in given]
    speeds = [each for each in found if each is not None]
    return (speeds if len(speeds) == len(given) else None), together.most_together


def _least(products: Sequence[Sequence[float]], sums: Sequence[float]) -> list[float]:
    """Return the least squares in which nothing is below zero: the best of those in which some are
    zero and the others free."""
    best, gain = [0.0] * 3, 0.0
    for number in (3, 2, 1):
        for free in combinations(range(3), number):
            found = _solved([[products[row][at] for at in free] + [sums[row]] for row in free])
            if found is not None and min(found) >= 0.0:
                gained = sum(sums[at] * each for at, each in zip(free, found, strict=True))
                if gained > gain:
                    gain, best = gained, [0.0] * 3
                    for at, each in zip(free, found, strict=True):
                        best[at] = each
    return best


def _solved(rows: list[list[float]]) -> list[float] | None:
    """Solve positive definite equations, the right side last in each row; None for others."""
    for at, row in enumerate(rows):
        if row[at] <= 0.0:
            return None
        row[:] = [each / row[at] for each in row]
        for other in rows:
            if other is not row:
                factor = other[at]
                other[:] = [each - factor * own for each, own in zip(other, row, strict=True)]
    return [row[-1] for row in rows]
