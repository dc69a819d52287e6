"""Count what requests did, for the history and for usage: an observer.

A request costs one look at its end, and a token nothing: what running requests have written is
added up every few seconds. Who it was, for whom, of which model and where is one tally; which
series a tally belongs to is worked out in a thread. The figures of the whole fleet are those of the
live history, which counts every token.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import attrs
import trio

from paddler_trio.balancer.activity.measures.endings import request_outcome
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import FAULTLESS
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.balancer.front.end_user import USER_NAMES
from paddler_trio.balancer.history.history_file import SeriesKey
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Phase, Request
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.limits.periods import day_of
from paddler_trio.scheduler.metering.time_samples import OTHER, Kind, Sample
from paddler_trio.scheduler.metering.time_steps import STEPS
from paddler_trio.scheduler.metering.usage import UsageCount, UsageCounts, UsageKey

STEP_S: Final = STEPS[0].step_s
ANONYMOUS: Final = "anonymous"
"""The client of requests without a key and without a name."""
MAX_TALLIES: Final = 5000
"""Between two writes; what comes beyond them has no client, no agent and no user of its own."""
MAX_NAMES: Final = 64
"""Of each kind of series at a time; the others are one."""
FORGOTTEN_S: Final = 3600
LOOK_AT: Final = 500
"""Running requests that are looked at without a pause."""


class Whose(NamedTuple):
    """One that requests are counted for, and where; ``key`` is empty for none, as ``agent`` and
    ``user``."""

    deployment: str
    agent: str
    client: str
    key: str
    user: str


@attrs.define(eq=False)
class Tally:
    """Add up what requests of one did in one step of time."""

    sample: Sample = attrs.field(factory=Sample)
    last_s: int = 0


@attrs.define(eq=False)
class Piece:
    """One step of time, not stored yet; ``refused`` are counted by key, and when the last was."""

    start: int
    fleet: Sample = attrs.field(factory=Sample)
    tallies: dict[Whose, Tally] = attrs.field(factory=dict)
    refused: Counter[str] = attrs.field(factory=Counter)
    refused_s: dict[str, int] = attrs.field(factory=dict)


@attrs.define(eq=False, repr=False)
class HistoryCollector(DispatchObserver):
    """See the module docstring.

    Args:
      activity: has the records; that of a request that ended is there before this is called.
      metrics: the live figures of the fleet.
    """

    activity: RequestActivity
    metrics: MetricsHistory
    unix_s: Callable[[], float] = time.time
    _piece: Piece = attrs.field(init=False)
    _closed: list[Piece] = attrs.field(factory=list, init=False)
    _seen: dict[RequestKey, int] = attrs.field(factory=dict, init=False)
    """Tokens of running requests that are counted already."""

    def __attrs_post_init__(self) -> None:
        self._piece = Piece(_start_of(self.unix_s()))

    def __repr__(self) -> str:
        return f"<HistoryCollector of {len(self._piece.tallies)} tallies>"

    # ------------------------------------------------------------ observing

    def moved(self, request: Request, left: Phase) -> None:
        if not isinstance(request.phase, Ended):
            return
        record = self.activity.finished.last
        assert record is not None, "its record is kept first"
        unix_s = self.unix_s()
        tally = self._tally(unix_s, request, record)
        tally.last_s = int(unix_s)
        sample = tally.sample
        sample.requests += 1
        if request_outcome(request.ending, request.answered_with) not in FAULTLESS:
            sample.failed += 1
        for placement in record.placements:
            if placement.prompt_tokens is not None:
                sample.prompt_tokens += placement.prompt_tokens
                sample.cached_tokens += placement.cached_tokens or 0
                break  # a loss makes no client pay twice
        counted = self._seen.pop(request.key, 0)
        if record.kind == "generation":
            sample.generated_tokens += record.tokens - counted
        first_s, ended_s = record.first_s, record.ended_s
        if first_s is not None:
            sample.ttft.add(first_s - record.arrived_s)
            if record.tokens > 1 and ended_s is not None:
                gap_s = (ended_s - first_s) / (record.tokens - 1)
                sample.between_tokens.add(gap_s, record.tokens - 1)
        if record.placements:
            sample.queue.add(record.placements[0].at_s - record.arrived_s)

    def refused(self, key: str) -> None:
        """A request of this key was refused at one of its limits."""
        unix_s = self.unix_s()
        piece = self._now(unix_s)
        piece.refused[key] += 1
        piece.refused_s[key] = int(unix_s)

    # -------------------------------------------------------------- reading

    async def look(self) -> None:
        """Count the tokens of requests that run, and how many do."""
        busy: Counter[Whose] = Counter()
        for number, (key, record) in enumerate(list(self.activity.in_flight.items())):
            if number % LOOK_AT == LOOK_AT - 1:
                await trio.lowlevel.checkpoint()
            request = self.activity.request(key)
            if request is None or record.phase == "buffered":
                continue
            whose = self._whose(request, record)
            busy[whose] += 1
            more = record.tokens - self._seen.get(key, 0)
            if more > 0 and record.kind == "generation":
                self._seen[key] = record.tokens
                self._tally(self.unix_s(), request, record).sample.generated_tokens += more
        piece = self._now(self.unix_s())
        for whose, number in busy.items():
            sample = _tally_of(piece, whose).sample
            sample.busy_max = max(sample.busy_max, number)

    def take(self) -> list[Piece]:
        """Return what is not stored yet, and begin anew."""
        piece = self._now(self.unix_s())
        piece.fleet.include(self.metrics.take())
        taken = [*self._closed, piece]
        self._closed, self._piece = [], Piece(piece.start)
        return taken

    # -------------------------------------------------------------- private

    def _tally(self, unix_s: float, request: Request, record: RequestRecord) -> Tally:
        return _tally_of(self._now(unix_s), self._whose(request, record))

    def _whose(self, request: Request, record: RequestRecord) -> Whose:
        placements = record.placements
        return Whose(
            record.deployment,
            placements[-1].agent if placements else "",
            record.client or ANONYMOUS,
            request.account,
            USER_NAMES.name_of(request.user),
        )

    def _now(self, unix_s: float) -> Piece:
        """Return the piece of this moment; the one before is closed in the step in which it
        ends, so that no request counts for the wrong day."""
        start = _start_of(unix_s)
        if start != self._piece.start:
            self._piece.fleet.include(self.metrics.take())
            self._closed.append(self._piece)
            self._piece = Piece(start)
        return self._piece


def _start_of(unix_s: float) -> int:
    return int(unix_s) // STEP_S * STEP_S


def _tally_of(piece: Piece, whose: Whose) -> Tally:
    tally = piece.tallies.get(whose)
    if tally is None:
        if len(piece.tallies) >= MAX_TALLIES:
            whose = whose._replace(agent="", client=OTHER, user=OTHER if whose.user else "")
            tally = piece.tallies.get(whose)
        if tally is None:
            tally = piece.tallies[whose] = Tally()
    return tally


@attrs.define(eq=False)
class SeriesNames:
    """Names of series that are told apart now: of each kind ``MAX_NAMES``, until they are silent
    for an hour."""

    _seen_at: dict[Kind, dict[str, int]] = attrs.field(factory=dict)

    def bounded(self, kind: Kind, name: str, now: int) -> str:
        """Return the name, or ``other`` if there are too many."""
        seen_at = self._seen_at.setdefault(kind, {})
        if name not in seen_at and len(seen_at) >= MAX_NAMES:
            for each in [each for each, at in seen_at.items() if now - at > FORGOTTEN_S]:
                del seen_at[each]
            if len(seen_at) >= MAX_NAMES:
                return OTHER
        seen_at[name] = now
        return name


@attrs.define(eq=False)
class Unstored:
    """Everything that is to be written, added up: samples by series, and usage."""

    samples: dict[SeriesKey, Sample] = attrs.field(factory=dict)
    usage: UsageCounts = attrs.field(factory=UsageCounts)

    def include(self, pieces: Iterable[Piece], names: SeriesNames) -> None:
        """Add what was collected; it takes time and belongs into a thread."""
        for piece in pieces:
            self._add(SeriesKey(piece.start, "fleet", ""), piece.fleet)
            day = day_of(piece.start)
            for whose, tally in piece.tallies.items():
                kinds: Mapping[Kind, str] = {
                    "deployment": whose.deployment,
                    "agent": whose.agent,
                    "client": whose.client,
                    "key": whose.key,
                }
                for kind, name in kinds.items():
                    if name:
                        bounded = names.bounded(kind, name, piece.start)
                        self._add(SeriesKey(piece.start, kind, bounded), tally.sample)
                self.usage.add(UsageKey(day, whose.key, whose.user, whose.deployment), _used(tally))
            for key, number in piece.refused.items():
                count = UsageCount(refused=number, last_s=piece.refused_s[key])
                self.usage.add(UsageKey(day, key, "", ""), count)

    def _add(self, key: SeriesKey, sample: Sample) -> None:
        self.samples.setdefault(key, Sample()).include(sample)


def _used(tally: Tally) -> UsageCount:
    sample = tally.sample
    return UsageCount(
        requests=sample.requests,
        failed=sample.failed,
        prompt_tokens=sample.prompt_tokens,
        cached_tokens=sample.cached_tokens,
        generated_tokens=sample.generated_tokens,
        last_s=tally.last_s,
    )
