"""The runs that there are, their order, and how long all of them can take. Pure.

A *run* is one workload at one concurrency against one target. The targets take turns, so that
both meet the same machine, and change who is first every time. Within a run
there are as many clients as the concurrency says; each sends its next request when its last one is
over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import attrs

from paddler_trio.cli.bench.workloads import LOAD, Sizes, Workload
from paddler_trio.errors import ConfigurationError
from paddler_trio.setting import Reading, Setting

BOUNDS: Final = "Bounds"
ALL: Final = "all"
MAX_LEVELS_CHARS: Final = 200
MAX_CONCURRENCY: Final = 1024
MAX_LEVELS: Final = 16
MAX_ROUNDS: Final = 100
MAX_REQUESTS: Final = 200_000
MAX_GAPS: Final = 8_000_000
"""Times that are kept, of all requests together: 64 MB."""


def listed(values: Iterable[object]) -> str:
    """Return values as a flag has several: with commas between."""
    return ",".join(map(str, values))


def parse_workloads(text: str) -> tuple[Workload, ...]:
    """``plain,mixed`` or ``all``; ConfigurationError."""
    if text.strip() == ALL:
        return tuple(Workload)
    try:
        return tuple(Workload(each.strip()) for each in text.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"--workload {text[:100]!r} is not known: give {', '.join(Workload)}, several with "
            "commas between, or all"
        ) from error


def parse_levels(text: str) -> tuple[int, ...]:
    """``1,2,4``; ConfigurationError."""
    parts = [part.strip() for part in text.split(",")]
    is_list = all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts)
    if not is_list or len(text) > MAX_LEVELS_CHARS:
        raise ConfigurationError(
            f"--concurrency {text[:MAX_LEVELS_CHARS]!r} must be numbers with commas between, such "
            "as 1,2,4"
        )
    return tuple(int(part) for part in parts)


@attrs.frozen(kw_only=True)
class Run:
    """``occasion`` counts what the targets are compared on: workload, concurrency and round."""

    number: int
    occasion: int
    workload: Workload
    concurrency: int
    round: int
    target: int


@attrs.frozen(kw_only=True)
class BenchPlan:
    """The plan of a load test, validated."""

    concurrencies: Annotated[
        tuple[int, ...],
        Setting(
            "How many clients at a time; a run for each of these numbers.",
            flag="--concurrency",
            panel=LOAD,
            reading=Reading(make=parse_levels, given=str, write=listed),
        ),
    ] = (1, 2, 4, 8, 16)
    workloads: Annotated[
        tuple[Workload, ...],
        Setting(
            "plain, prefix (all prompts begin alike), mixed (one prompt in four is long), "
            "several with commas between, or all.",
            flag="--workload",
            panel=LOAD,
            reading=Reading(make=parse_workloads, given=str, write=listed),
        ),
    ] = (Workload.plain,)
    requests: Annotated[
        int, Setting("Requests of each client in a run.", panel=LOAD, min=1, max=10_000)
    ] = 4
    rounds: Annotated[
        int, Setting("How often each run is done.", panel=LOAD, min=1, max=MAX_ROUNDS)
    ] = 2
    warmup: Annotated[
        int,
        Setting(
            "Requests of each workload that are sent before, and not counted.",
            panel=LOAD,
            min=0,
            max=64,
        ),
    ] = 2
    sizes: Sizes = attrs.field(factory=Sizes)
    ignores_end: Annotated[
        bool,
        Setting(
            "Ask for answers of --max-tokens (ignore_eos), or let the model end them.",
            flag="--full-length/--natural-length",
            panel=LOAD,
        ),
    ] = True
    seed: Annotated[
        int,
        Setting(
            "Of the prompts: the same ones again, if no server has them in its cache.",
            panel=LOAD,
            unset="a new one",
            min=0,
            max=2**32 - 1,
        ),
    ] = 0
    run_s: Annotated[
        float,
        Setting(
            "Seconds after which a run sends no further request.",
            flag="--run-time",
            panel=BOUNDS,
            min=0.1,
            max=3600,
        ),
    ] = 10.0
    timeout_s: Annotated[
        float,
        Setting(
            "Seconds that a request may take.", flag="--timeout", panel=BOUNDS, min=0.1, max=3600
        ),
    ] = 60.0
    max_s: Annotated[
        float,
        Setting(
            "Seconds that everything may take; what is not done by then is left out.",
            flag="--max-time",
            panel=BOUNDS,
            min=1,
            max=86_400,
        ),
    ] = 600.0
    num_targets: int = 1

    def __attrs_post_init__(self) -> None:
        _check_levels(self.concurrencies)
        if len(set(self.workloads)) != len(self.workloads) or not self.workloads:
            raise ConfigurationError(
                f"--workload {listed(self.workloads)} must name each workload once"
            )
        if self.num_requests > MAX_REQUESTS:
            raise ConfigurationError(
                f"these are {self.num_requests} requests, and {MAX_REQUESTS} are the limit: lower "
                "--requests, --rounds or --concurrency"
            )
        if self.num_requests * self.sizes.max_tokens > MAX_GAPS:
            raise ConfigurationError(
                f"{self.num_requests} requests of {self.sizes.max_tokens} tokens are more than "
                f"{MAX_GAPS} tokens: lower --requests, --rounds or --max-tokens"
            )

    @property
    def runs(self) -> list[Run]:
        """All runs in the order in which they are taken."""
        runs: list[Run] = []
        occasion = 0
        for workload in self.workloads:
            for concurrency in self.concurrencies:
                for round_number in range(self.rounds):
                    for place in range(self.num_targets):
                        run = Run(
                            number=len(runs),
                            occasion=occasion,
                            workload=workload,
                            concurrency=concurrency,
                            round=round_number,
                            target=(place + occasion) % self.num_targets,
                        )
                        runs.append(run)
                    occasion += 1
        return runs

    def num_requests_of(self, run: Run) -> int:
        """Return how many requests a run sends at most."""
        return self.requests * run.concurrency

    @property
    def num_requests(self) -> int:
        """The requests of all runs, without those that warm up."""
        each = self.requests * sum(self.concurrencies)
        return each * self.rounds * len(self.workloads) * self.num_targets

    @property
    def num_warming(self) -> int:
        """The requests that warm up, for all targets."""
        return self.warmup * len(self.workloads) * self.num_targets

    @property
    def longest_s(self) -> float:
        """Everything is over by then, whatever the targets do."""
        num_runs = len(self.workloads) * len(self.concurrencies) * self.rounds * self.num_targets
        before_s = self.num_targets * self.timeout_s
        return min(self.max_s, before_s + num_runs * (self.run_s + self.timeout_s))


def _check_levels(concurrencies: Sequence[int]) -> None:
    shown = listed(concurrencies)
    if not 1 <= len(concurrencies) <= MAX_LEVELS:
        raise ConfigurationError(f"--concurrency {shown} must have 1 to {MAX_LEVELS} numbers")
    for level in concurrencies:
        if not 1 <= level <= MAX_CONCURRENCY:
            raise ConfigurationError(
                f"--concurrency {shown} has {level}, and must have numbers from 1 to "
                f"{MAX_CONCURRENCY}"
            )
    if len(set(concurrencies)) != len(concurrencies):
        raise ConfigurationError(f"--concurrency {shown} must have each number once")
