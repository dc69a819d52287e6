"""From measured times to the figures that are printed: pure arithmetic, no clock.

A run is one scenario against one contestant in one round. Percentiles are taken within a run; what
is printed is the median over the rounds. A ratio is taken within a round, where both contestants
met the same machine, and then again the median over the rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

FIGURES = (
    "tokens_per_s",
    "requests_per_s",
    "ttft_ms_p50",
    "ttft_ms_p95",
    "ttft_ms_p99",
    "gap_ms_p50",
    "gap_ms_p95",
    "gap_ms_p99",
    "cpu_us_per_token",
)
"""Every figure of a run; of the first two more is better, of all others less."""


@attrs.frozen
class Run:
    """One scenario against one contestant, once.

    ``tokens`` and ``prompt_tokens`` are what the contestant itself counted, one entry a request,
    in the order of the scenario. ``gaps_s`` lie between the visible tokens of one answer.
    ``cpu_s`` is processor time by process; empty where the system does not tell.
    """

    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    wall_s: float
    ttfts_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    cpu_s: Mapping[str, float]
    failed: int = 0
    """Requests that ended with an error, or before their limit, where that is counted."""

    def figures(self) -> dict[str, float]:
        """By the names in ``FIGURES``; what was not measured is NaN."""
        total = sum(self.tokens)
        cpu_s = sum(self.cpu_s.values()) if self.cpu_s else math.nan
        return {
            "tokens_per_s": total / self.wall_s,
            "requests_per_s": len(self.tokens) / self.wall_s,
            **{f"ttft_ms_p{p}": 1e3 * percentile(self.ttfts_s, p) for p in (50, 95, 99)},
            **{f"gap_ms_p{p}": 1e3 * percentile(self.gaps_s, p) for p in (50, 95, 99)},
            "cpu_us_per_token": 1e6 * cpu_s / total if total else math.nan,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of them do not exceed (nearest rank); NaN if there are none."""
    if not values:
        return math.nan
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(0, rank - 1)]


def median_figures(runs: Sequence[Run]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    each = [run.figures() for run in runs]
    return {name: statistics.median(figures[name] for figures in each) for name in FIGURES}


def median_ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> dict[str, float]:
    """The median over the rounds of ours divided by theirs, figure by figure."""
    ratios: dict[str, list[float]] = {name: [] for name in FIGURES}
    for our_run, their_run in zip(ours, theirs, strict=True):
        a, b = our_run.figures(), their_run.figures()
        for name in FIGURES:
            ratios[name].append(a[name] / b[name] if b[name] else math.nan)
    return {name: statistics.median(values) for name, values in ratios.items()}


def median_cpu_us_per_token(runs: Sequence[Run]) -> dict[str, float]:
    """Microseconds of processor time a token, by process."""
    return {
        process: statistics.median(
            1e6 * run.cpu_s[process] / max(1, sum(run.tokens)) for run in runs
        )
        for process in runs[0].cpu_s
    }


def differences(ours: Sequence[Run], theirs: Sequence[Run]) -> list[str]:
    """Where the two did not do the same work, one sentence each; empty when all is equal."""
    found = []
    for number, (our_run, their_run) in enumerate(zip(ours, theirs, strict=True), start=1):
        for what in ("prompt_tokens", "tokens"):
            a, b = getattr(our_run, what), getattr(their_run, what)
            unequal = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
            if unequal:
                first = unequal[0]
                found.append(
                    f"round {number}: {what} differ in {len(unequal)} of {len(a)} requests "
                    f"(request {first}: ours {a[first]}, theirs {b[first]}; "
                    f"in all {sum(a)} and {sum(b)})"
                )
    return found
