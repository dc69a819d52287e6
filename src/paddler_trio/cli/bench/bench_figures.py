"""The figures that are reported, computed from the samples of runs. Pure.

Rounds are merged by pooling: percentiles are of the requests of all rounds together, rates are all
tokens over all the time. So each figure is one that a reader can compute again from the samples.

The fate of one request, as the client saw it. Pure.

Times are seconds of one monotonic clock. A *gap* is the time between two pieces of text of one
answer: the inter-token latency, if the server sends each token as soon as there is one.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import attrs

from paddler_trio.cli.bench.plan import Run


class FailureKind(StrEnum):
    """The part of a request that failed; a status has its number behind it."""

    connect = "connect"
    """No connection, or no TLS."""
    status = "status"
    """The answer's status is not 200."""
    event = "error event"
    """The stream began, and ended with an error in it."""
    broken = "broken off"
    """The connection ended before the answer did."""
    protocol = "protocol"
    """What came is no HTTP, or no stream of chat completion chunks."""
    empty = "no text"
    """The stream ended in order without text, and no token was counted: tokens that a server does
    not show, such as reasoning, are an answer without a first one."""
    timeout = "timeout"
    """It was not over in time."""


@attrs.frozen
class Failure:
    """Why a request failed. ``status``: of the answer, 0 if there was none. ``text``: the server's
    words, or the operating system's; foreign text."""

    kind: FailureKind
    text: str
    status: int = 0

    @property
    def label(self) -> str:
        """The words that failures are counted by."""
        return f"status {self.status}" if self.kind is FailureKind.status else self.kind.value


@attrs.frozen(kw_only=True)
class ServerCounts:
    """The counts that a server tells of a request; None where it does not.

    ``prompt_ms``: how long the prompt was computed, llama.cpp's ``timings.prompt_ms``.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_ms: float | None = None


NO_COUNTS: Final = ServerCounts()


@attrs.frozen(kw_only=True)
class Sample:
    """One request that is over.

    Args:
      kind: the sort of prompt, as the workload names it.
      sent_s: before its connection was opened, if it needed a new one.
      first_s: when the first text came; None if none did.
      gaps_s: in the order of the answer; doubles.
      num_pieces: pieces of text that came, for servers that do not count tokens.
    """

    kind: str
    sent_s: float
    ended_s: float
    first_s: float | None = None
    gaps_s: array[float] = attrs.field(factory=lambda: array("d"))
    num_pieces: int = 0
    counts: ServerCounts = NO_COUNTS
    failure: Failure | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def queue_s(self) -> float | None:
        """The seconds before the first token without those of its prompt: waiting for a slot
        and for the engine, and the way there and back. None if the server does not tell."""
        if self.ttft_s is None or self.counts.prompt_ms is None:
            return None
        return max(0.0, self.ttft_s - self.counts.prompt_ms / 1000)

    @property
    def completion_tokens(self) -> int:
        """The server's count, else the pieces of text."""
        told = self.counts.completion_tokens
        return self.num_pieces if told is None else told


BUSY_SHARE: Final = 0.7
"""Of a core: a client that is busier than this was late itself, and is told of."""


@attrs.define(kw_only=True)
class RunResult:
    """A run, under way or over.

    Args:
      num_sent: requests that were begun; more than samples if it was cut off.
      client_cpu_s: processor time of this process while it lasted.
    """

    run: Run
    began_s: float = 0.0
    ended_s: float = 0.0
    client_cpu_s: float = 0.0
    num_sent: int = 0
    is_over: bool = False
    samples: list[Sample] = attrs.field(factory=list)

    @property
    def wall_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s)


@attrs.frozen
class Percentiles:
    """Percentiles of ``count`` >= 1 values; of fewer than 100, ``p99`` is the largest."""

    p50: float
    p95: float
    p99: float
    count: int


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of some runs; times in seconds, None where nobody told any.

    ``client_share`` is processor time of the client, as a share of one core.
    ``cached_tokens`` and ``queue`` are told by some servers only.
    """

    requests: int
    failed: int
    unfinished: int
    wall_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int
    ttft: Percentiles | None
    itl: Percentiles | None
    queue: Percentiles | None
    total: Percentiles | None
    client_share: float
    errors: Mapping[str, int]

    @property
    def error_rate(self) -> float:
        """0..1 of the requests that are over; 0 if none is."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers."""
        return _rate(self.completion_tokens, self.wall_s)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Tokens of prompts, from a cache or computed."""
        return None if self.prompt_tokens is None else _rate(self.prompt_tokens, self.wall_s)

    @property
    def requests_per_s(self) -> float:
        """Requests that succeeded."""
        return _rate(self.requests - self.failed, self.wall_s)

    @property
    def cached_share(self) -> float | None:
        """0..1 of the tokens of prompts."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def client_was_busy(self) -> bool:
        """The client itself may have made times longer and rates lower."""
        return self.client_share > BUSY_SHARE


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest of the values, which are sorted and not none, that ``percent`` of them do not
    exceed (nearest rank)."""
    rank = math.ceil(percent * len(ordered) / 100)
    return ordered[max(0, rank - 1)]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Percentiles(p50, p95, p99, len(ordered))


def figures_of(results: Sequence[RunResult]) -> Figures:
    """Return the figures of all rounds of one point of the plan, or of any other runs.

    Failed requests are counted, and count in nothing else: their tokens and times are left out.
    """
    samples = [sample for result in results for sample in result.samples]
    good = [sample for sample in samples if sample.failure is None]
    failures = [sample.failure for sample in samples if sample.failure is not None]
    wall_s = sum(result.wall_s for result in results)
    return Figures(
        requests=len(samples),
        failed=len(failures),
        unfinished=sum(result.num_sent for result in results) - len(samples),
        wall_s=wall_s,
        prompt_tokens=_sum_if_told(sample.counts.prompt_tokens for sample in good),
        cached_tokens=_sum_if_told(sample.counts.cached_tokens for sample in good),
        completion_tokens=sum(sample.completion_tokens for sample in good),
        ttft=percentiles(each.ttft_s for each in good if each.ttft_s is not None),
        itl=percentiles(gap for each in good for gap in each.gaps_s),
        queue=percentiles(each.queue_s for each in good if each.queue_s is not None),
        total=percentiles(each.ended_s - each.sent_s for each in good),
        client_share=_rate(sum(result.client_cpu_s for result in results), wall_s),
        errors=dict(sorted(Counter(failure.label for failure in failures).items())),
    )


def _rate(amount: float, wall_s: float) -> float:
    return amount / wall_s if wall_s > 0 else 0.0


def _sum_if_told(counts: Iterable[int | None]) -> int | None:
    told = [count for count in counts if count is not None]
    return sum(told) if told else None
