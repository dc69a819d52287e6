"""Which runs there are, in which order, and how long all of them can take. Pure.

A *run* is one workload at one concurrency against one target. The targets take turns, so that
both meet the same machine, and change who is first every time. Within a run
there are as many clients as the concurrency says; each sends its next request when its last one is
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.cli.bench.workloads import Sizes, Workload
from paddler_trio.errors import ConfigurationError

MAX_CONCURRENCY: Final = 1024
MAX_LEVELS: Final = 16
MAX_ROUNDS: Final = 100
MAX_REQUESTS: Final = 200_000
MAX_GAPS: Final = 8_000_000
"""Times that are kept, of all requests together: 64 MB."""


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
    """What is to be done, validated.

    Args:
      requests: of each client in a run.
      run_s: after so long a run sends no further request.
      timeout_s: what a request may take before it counts as failed.
      max_s: for everything; what is not done by then is left out.
    """

    workloads: tuple[Workload, ...] = (Workload.plain,)
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16)
    rounds: int = 2
    requests: int = 4
    warmup: int = 2
    run_s: float = 10.0
    timeout_s: float = 60.0
    max_s: float = 600.0
    sizes: Sizes = attrs.field(factory=Sizes)
    seed: int = 0
    num_targets: int = 1

    def __attrs_post_init__(self) -> None:
        _check_levels(self.concurrencies)
        if len(set(self.workloads)) != len(self.workloads) or not self.workloads:
            raise ConfigurationError(
                f"--workload {','.join(self.workloads)} must name each workload once"
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
        """In the order in which they are taken."""
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
        """How many requests it sends at most."""
        return self.requests * run.concurrency

    @property
    def num_requests(self) -> int:
        """Of all runs, without those that warm up."""
        each = self.requests * sum(self.concurrencies)
        return each * self.rounds * len(self.workloads) * self.num_targets

    @property
    def num_warming(self) -> int:
        """Of the requests that warm up, for all targets."""
        return self.warmup * len(self.workloads) * self.num_targets

    @property
    def longest_s(self) -> float:
        """Everything is over by then, whatever the targets do."""
        num_runs = len(self.workloads) * len(self.concurrencies) * self.rounds * self.num_targets
        before_s = self.num_targets * self.timeout_s
        return min(self.max_s, before_s + num_runs * (self.run_s + self.timeout_s))


def _check_levels(concurrencies: Sequence[int]) -> None:
    listed = ",".join(map(str, concurrencies))
    if not 1 <= len(concurrencies) <= MAX_LEVELS:
        raise ConfigurationError(f"--concurrency {listed} must have 1 to {MAX_LEVELS} numbers")
    for level in concurrencies:
        if not 1 <= level <= MAX_CONCURRENCY:
            raise ConfigurationError(
                f"--concurrency {listed} has {level}, and must have numbers from 1 to "
                f"{MAX_CONCURRENCY}"
            )
    if len(set(concurrencies)) != len(concurrencies):
        raise ConfigurationError(f"--concurrency {listed} must have each number once")
