"""Fit the speed of an engine to what was seen of requests.

Whatever an engine did in a time, that time is: passes x time of a pass + answers' tokens x time of
one + prompt tokens x time of one. Each answer, and each wait for a first token, is a sample; of an
engine's own threads nothing need be known. Errors count in proportion to the times that a first fit
expects: in proportion to those that were seen, slow samples would hardly count, and capacity is a
matter of the mean. Agents that share a machine slow each other: by how much is tried.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from typing import Final, NamedTuple

import attrs

from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed

MAX_SAMPLES: Final = 512
"""The newest of an engine are kept, so many."""
MOST_COMPARED: Final = 2048
"""Samples of all engines, with which it is tried by how much they slow each other."""
SLOWINGS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Parts by which each other busy agent may slow an engine: they share a machine."""
ENOUGH: Final = 5
"""Samples of each kind, below which an engine is believed to be as those of others are."""
DOUBT: Final = 2.0
"""So many samples say that half of a pass is its own and half the answers'."""
_LEAST_S: Final = 1e-7


class Sample(NamedTuple):
    """An answer behind its first token, or a wait for a first token.

    Args:
      passes: about how many there were.
      tokens: of answers, that were computed in them.
      prompt_tokens: that were computed.
      others: agents that were busy meanwhile.
      lag_s: of a first token, what was neither waiting nor computing; below 0 for an answer.
    """

    passes: float
    tokens: float
    prompt_tokens: float
    others: float
    took_s: float
    lag_s: float

    @property
    def is_answer(self) -> bool:
        return self.lag_s < 0.0

    @property
    def together(self) -> float:
        """Answers that were written at the same time, on average."""
        return self.tokens / self.passes


@attrs.define
class SpeedSamples:
    """The newest samples of one engine; to add one costs next to nothing."""

    _flat: array[float] = attrs.field(factory=lambda: array("d"))

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
            drawn = tokens * max(1.0, together)
            self._add(Sample(tokens, drawn, prompt_tokens, others, took_s, -1.0))

    def add_prompt(
        self,
        *,
        tokens: float,
        passes: float,
        together: float,
        took_s: float,
        others: float = 0.0,
        lag_s: float = 0.0,
    ) -> None:
        """Note a first token: the prompt tokens that were computed for it, in about so many passes
        with so many answers in each, while so many other agents were busy; and what it took beside
        waiting and computing."""
        if took_s > 0:
            lag_s = max(0.0, lag_s)
            self._add(Sample(passes, passes * together, tokens, others, took_s, lag_s))

    def copy(self) -> SpeedSamples:
        """Return them as they are now, to be read in another thread."""
        return SpeedSamples(self._flat[:])

    def all(self) -> list[Sample]:
        """Return them, the newest last."""
        size = len(Sample._fields)
        found = (Sample(*self._flat[at : at + size]) for at in range(0, len(self._flat), size))
        return list(found)[-MAX_SAMPLES:]

    def _add(self, sample: Sample) -> None:
        self._flat.extend(sample)
        if len(self._flat) >= 2 * MAX_SAMPLES * len(sample):
            del self._flat[: MAX_SAMPLES * len(sample)]


def speeds_of(
    samples: Iterable[tuple[Sequence[Sample], int]],
) -> tuple[list[EngineSpeed] | None, float]:
    """Return the speed of each engine, and the most answers that any wrote together.

    Args:
      samples: of each engine, with the tokens that it keeps; one with few samples is believed to be
        as all of them are together. By how much they slow each other is one number for all.

    Returns:
      None for the speeds if nothing was measured at all.
    """
    given = list(samples)
    known = list(chain.from_iterable(each for each, _ in given))
    some = known[:: 1 + len(known) // MOST_COMPARED]
    slowing = slowing_of(some)
    usual = speed_of(some, 1, slowing)
    if usual is None:
        return None, 0.0
    speeds = [
        (speed_of(each, cells, slowing) if _is_enough(each) else None)
        or attrs.evolve(usual, cache_tokens=cells)
        for each, cells in given
    ]
    return speeds, max(each.together for each in known if each.is_answer)


def slowing_of(samples: Sequence[Sample]) -> float:
    """Return by how much other busy agents slow an engine: what explains most, if that is a fifth
    of what is not explained without it."""
    weights = _weights(samples, 0.0)
    left = {each: _fit(samples, each, weights)[0] for each in SLOWINGS}
    found = min(left, key=lambda each: left[each])
    return found if left[found] <= 0.8 * left[0.0] else 0.0


def speed_of(
    samples: Sequence[Sample], cache_tokens: int, slowing: float = 0.0
) -> EngineSpeed | None:
    """Return what fits best; None without samples of both kinds. Without different numbers of
    answers together half of a pass is believed to be its own, and half the answers'."""
    lags = [each.lag_s for each in samples if not each.is_answer]
    if not 0 < len(lags) < len(samples):
        return None
    fitted = _fit(samples, slowing, _weights(samples, slowing))[1]
    pass_s, token_s, prompt_s = (max(_LEAST_S, each) for each in fitted)
    lag_s, cells = sum(lags) / len(lags), max(1, cache_tokens)
    return EngineSpeed(1 / prompt_s, pass_s, token_s, None, cells, lag_s, slowing)


def _is_enough(samples: Sequence[Sample]) -> bool:
    answers = sum(each.is_answer for each in samples)
    return min(answers, len(samples) - answers) >= ENOUGH


def _fit(
    samples: Sequence[Sample], slowing: float, weights: Sequence[float] | None = None
) -> tuple[float, list[float]]:
    """Return the sum of the squares that are left, and the times with which they are least."""
    products, sums, total = [[0.0] * 3 for _ in range(3)], [0.0] * 3, 0.0
    for number, (passes, tokens, prompt_tokens, others, took_s, _) in enumerate(samples):
        weight = 1 / took_s if weights is None else weights[number]
        part, target = (1 + slowing * others) * weight, took_s * weight
        total += target * target
        shares = passes * part, tokens * part, prompt_tokens * part
        for at, share in enumerate(shares):
            sums[at] += share * target
            row = products[at]
            for place in range(3):
                row[place] += share * shares[place]
    doubt = DOUBT * products[0][0] / max(1, len(samples))
    for one, other, sign in ((0, 0, 1), (1, 1, 1), (0, 1, -1), (1, 0, -1)):
        products[one][other] += sign * doubt
    found = _least(products, sums)
    return total - sum(map(operator.mul, sums, found)), found


def _weights(samples: Sequence[Sample], slowing: float) -> list[float]:
    """Return for each sample one over the time that a first fit expects of it."""
    own_s, token_s, prompt_s = _fit(samples, slowing)[1]
    return [
        1
        / max(
            _LEAST_S,
            (each.passes * own_s + each.tokens * token_s + each.prompt_tokens * prompt_s)
            * (1 + slowing * each.others),
        )
        for each in samples
    ]


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
