"""The frame around a fuzzer: try trial after trial, judge each, print what of what was tried.

What an input costs is judged in long runs only: in the slices of them that are tests, a busy
machine would decide.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

EXCESS = 100
CLOCK_NOISE_S = 0.05

Trial: TypeAlias = tuple[Callable[[], object], str]
"""What is to be done, and the input as it is shown if that is a finding."""


@attrs.frozen
class FairCost:
    """Processor time that an input is worth, generously: trouble takes ``EXCESS`` times more."""

    seconds: float
    seconds_per_char: float

    def limit_s(self, shown: str) -> float:
        return max(CLOCK_NOISE_S, EXCESS * (self.seconds + self.seconds_per_char * len(shown)))


def fuzz(
    trials: Sequence[Callable[[random.Random], Trial]],
    *,
    inputs: int,
    seed: int,
    refusals: tuple[type[Exception], ...] = (),
    fair: FairCost | None = None,
    judge: Callable[[object], object] = lambda _: None,
) -> Counter[str]:
    """Try so many inputs, each kind in turn; what came of them.

    Args:
      refusals: the typed errors that are an answer; whatever else is raised is a finding.
      fair: judge the cost too.
      judge: looks at everything that was made.
    """
    dice = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(inputs):
        trial = trials[number % len(trials)]
        work, shown = trial(dice)
        outcome, made = "made", None
        began_s = time.thread_time()
        try:
            made = work()
        except refusals:
            outcome = "refused"
        except BaseException:
            print(f"FINDING in {shown[:10_000]!r}", file=sys.stderr)
            raise
        took_s = time.thread_time() - began_s
        if fair is not None and took_s > (limit_s := fair.limit_s(shown)):
            raise AssertionError(f"{took_s:.2f} s, allowed {limit_s:.2f} s: {shown[:10_000]!r}")
        outcomes[f"{trial.__name__[4:]}: {outcome}"] += 1
        judge(made)
    return outcomes


class Fuzzer(Protocol):
    def __call__(self, inputs: int, seed: int, *, judges_cost: bool = ...) -> Counter[str]: ...


def command(fuzzer: Fuzzer, description: str | None) -> None:
    """``--inputs N --seed S``; a finding ends it with the input printed."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same inputs")
    chosen = parser.parse_args()
    began_s = time.monotonic()
    outcomes = fuzzer(chosen.inputs, chosen.seed, judges_cost=True)
    for name, count in sorted(outcomes.items()):
        print(f"{name:24} {count:>9}")
    took_s = time.monotonic() - began_s
    print(f"{outcomes.total()} inputs, seed {chosen.seed}, {took_s:.0f} s, no finding")
