"""Answer whether a fleet keeps a time to the first token, what breaks first, and what would hold
it: each answer is a replay of arrivals in virtual time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from typing import Any, Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.capacity.replayed_arrivals import Arrival, turns_of
from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed
from paddler_trio.scheduler.virtual.virtual_fleet import Outcome, StoppedError, VirtualFleet

PART: Final = 0.95
"""This part of the requests must have their first token in time."""
MAX_AGENTS: Final = 256
MAX_SLOTS: Final = 256
TRIED_SLOTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TRIED_AGENTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
TRIED_MORE: Final = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
TRIED_LESS: Final = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)

Kind: TypeAlias = Literal["queue full", "waits", "first token"]


@attrs.frozen(kw_only=True)
class Site:
    """One agent: its slots now, and its measured speed."""

    name: str
    slots: int
    speed: EngineSpeed


@attrs.frozen(kw_only=True)
class Question:
    """A question.

    Args:
      target_s: the time in which ``PART`` of the requests shall have their first token.
      at: the load, of that of the arrivals.
      more_agents: beside the present ones, each like one of those.
      slots: of each agent instead of its own; None for its own.
      max_buffered: requests that may wait.
      patience_s: how long one may.
    """

    agents: Sequence[Site]
    target_s: float
    at: float = 1.0
    more_agents: int = 0
    slots: int | None = None
    max_buffered: int = 30
    patience_s: float = 10.0

    def sites(self) -> list[Site]:
        """Return the agents that are asked about."""
        added = islice(cycle(self.agents), self.more_agents)
        sites = [
            *self.agents,
            *(
                attrs.evolve(
                    each,
                    name=f"new {place}, as {each.name}",
                    speed=attrs.evolve(each.speed, slowing=0.0),  # on a machine of its own
                )
                for place, each in enumerate(added, 1)
            ),
        ]
        return [attrs.evolve(each, slots=self.slots or each.slots) for each in sites]


@attrs.frozen(kw_only=True)
class Break:
    """The first thing that goes wrong: the queue is full, a request waits too long for a slot, or
    its prompt takes too long; ``at_s`` after the first arrival. ``counts``: how often each does in
    all."""

    kind: Kind
    at_s: float
    counts: dict[str, int]


@attrs.frozen(kw_only=True)
class Replayed:
    """The outcome of all requests; times in seconds, None where that many have no first token."""

    requests: int
    answered: int
    holds: bool
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    queue_p95_s: float | None
    busy: float
    """The part of the slots that was busy, on average, from the first arrival to the last."""
    breaks: Break | None


@attrs.frozen(kw_only=True)
class Answer:
    """See the module docstring.

    Args:
      slots_that_do: the fewest of each agent with which it holds; None if no number was found.
      agents_that_do: how many more agents, each with the slots that are asked about.
      at_that_holds: the largest load that was tried and holds, of that of the arrivals.
      is_whole: everything was tried; else there was no time for some.
    """

    replayed: Replayed
    sites: Sequence[Site]
    slots_that_do: int | None = None
    agents_that_do: int | None = None
    at_that_holds: float | None = None
    is_whole: bool = True


def replay(
    question: Question, arrivals: Sequence[Arrival], has_time: Callable[[], bool] = lambda: True
) -> Replayed:
    """Replay the arrivals once; StoppedError if there is no time, or ValueError for too many blocks
    of prompts."""
    return _judged(question, *_played(question, arrivals, lambda outcomes, now_s: has_time()))


def holds(question: Question, arrivals: Sequence[Arrival], has_time: Callable[[], bool]) -> bool:
    """Return whether the time is kept; the errors of ``replay``. One that is sure not to be is
    replayed no further."""
    most_late = (1 - PART) * len(arrivals)

    def may_go_on(outcomes: Sequence[Outcome], now_s: float) -> bool:
        before_s = now_s - question.target_s
        late = [each for each in outcomes if each.arrived_s < before_s and _is_late(question, each)]
        return len(late) <= most_late and has_time()

    try:
        return _judged(question, *_played(question, arrivals, may_go_on)).holds
    except StoppedError:
        if has_time():
            return False
        raise


def answer(
    question: Question, arrivals: Sequence[Arrival], has_time: Callable[[], bool] = lambda: True
) -> Answer:
    """Answer a question; the errors of ``replay`` if not even that one can be done."""

    def does(**changes: Any) -> bool:
        return holds(attrs.evolve(question, **changes), arrivals, has_time)

    found = Answer(
        replayed=replay(question, arrivals, has_time),
        sites=question.sites(),
    )
    try:
        if found.replayed.holds:
            for factor in (1.0, *TRIED_MORE):
                at = question.at * factor
                if factor > 1 and not does(at=at):
                    return found
                found = attrs.evolve(found, at_that_holds=at)
            return found
        slots = next((each for each in TRIED_SLOTS if does(slots=each)), None)
        found = attrs.evolve(found, slots_that_do=slots)
        more = (question.more_agents + each for each in TRIED_AGENTS)
        agents = next((each for each in more if does(more_agents=each)), None)
        found = attrs.evolve(found, agents_that_do=agents)
        less = (question.at * factor for factor in TRIED_LESS)
        return attrs.evolve(found, at_that_holds=next((at for at in less if does(at=at)), None))
    except StoppedError:
        return attrs.evolve(found, is_whole=False)


def percentile(times: Sequence[float], part: float, out_of: int) -> float | None:
    """Return the time within which this part of ``out_of`` is, where those without a time come
    last.

    Args:
      times: in order.
    """
    place = max(0, math.ceil(part * out_of) - 1)
    return times[place] if place < len(times) else None


def _judged(question: Question, outcomes: Sequence[Outcome], busy: float) -> Replayed:
    times = sorted(each.ttft_s for each in outcomes if each.ttft_s is not None)
    waits = sorted(each.waited_s for each in outcomes if not each.refused)
    number = len(outcomes)
    p95_s = percentile(times, PART, number)
    holds = p95_s is not None and p95_s <= question.target_s
    return Replayed(
        requests=number,
        answered=len(times),
        holds=holds,
        ttft_p50_s=percentile(times, 0.5, number),
        ttft_p95_s=p95_s,
        ttft_p99_s=percentile(times, 0.99, number),
        queue_p95_s=percentile(waits, PART, number),
        busy=busy,
        breaks=_first_break(question.target_s, outcomes),
    )


def _first_break(target_s: float, outcomes: Iterable[Outcome]) -> Break | None:
    counts = Counter[str]()
    first: tuple[float, Kind] | None = None
    for each in outcomes:
        kind = _trouble(target_s, each)
        if kind is not None:
            counts[kind] += 1
            late_s = 0.0 if each.refused == "full" else target_s
            first = min(first or (math.inf, kind), (each.arrived_s + late_s, kind))
    return None if first is None else Break(kind=first[1], at_s=first[0], counts=dict(counts))


def _is_late(question: Question, outcome: Outcome) -> bool:
    return outcome.ttft_s is None or outcome.ttft_s > question.target_s


def _trouble(target_s: float, outcome: Outcome) -> Kind | None:
    if outcome.refused == "full":
        return "queue full"
    if outcome.refused == "waited":
        return "waits"
    if outcome.ttft_s is None or outcome.ttft_s <= target_s:
        return None
    return "waits" if outcome.waited_s > outcome.ttft_s / 2 else "first token"


def _played(
    question: Question,
    arrivals: Sequence[Arrival],
    may_go_on: Callable[[Sequence[Outcome], float], bool],
) -> tuple[list[Outcome], float]:
    """Return the outcomes, and the part of the slots that was taken while requests came."""
    sites = question.sites()
    fleet = VirtualFleet(
        [(site.slots, site.speed) for site in sites],
        max_buffered=question.max_buffered,
        patience_s=question.patience_s,
        may_go_on=may_go_on,
    )
    outcomes = fleet.run(turns_of(arrivals, question.at))
    last_s = max(each.arrived_s for each in outcomes)
    taken_s = sum(
        max(0.0, min(each.ended_s, last_s) - each.arrived_s - each.waited_s)
        for each in outcomes
        if each.ended_s is not None
    )
    slots_s = sum(site.slots for site in sites) * last_s
    return outcomes, taken_s / slots_s if slots_s else 0.0
