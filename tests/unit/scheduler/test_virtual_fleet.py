"""A fleet in virtual time: what it shows of the deciders of the balancer."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

import attrs
import pytest

from paddler_trio.scheduler.virtual.virtual_engine import (
    BLOCK_TOKENS,
    EngineSpeed,
    VirtualPrompt,
)
from paddler_trio.scheduler.virtual.virtual_fleet import Outcome, Turn, VirtualFleet

SPEED = EngineSpeed()


def prompt(name: object, blocks: int, rest: int = 30) -> VirtualPrompt:
    hashes = tuple(hash(each) for each in accumulate((name, n) for n in range(blocks)))
    return VirtualPrompt(hashes, BLOCK_TOKENS * blocks + rest)


def arrivals(
    dice: random.Random, number: int, every_s: float, *, tenants: int = 0
) -> list[tuple[float, Turn]]:
    """Requests of 4 to 20 blocks; of so many tenants, whose prompts begin alike."""
    made, at_s = list[tuple[float, Turn]](), 0.0
    for each in range(number):
        at_s += dice.expovariate(1 / every_s)
        name = dice.randrange(tenants) if tenants else each
        asked = prompt(name, 20 if tenants else dice.randint(4, 20))
        made.append((at_s, Turn(asked, asked.hashes, dice.randint(20, 80))))
    return made


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_a_wait_is_predicted_within_a_factor_of_two(load: float) -> None:
    fleet = VirtualFleet([(2, SPEED)] * 3)
    outcomes = fleet.run(arrivals(random.Random(1), 400, 0.3 / load))
    known = [
        each.predicted_wait_s / each.waited_s
        for each in outcomes
        if each.predicted_wait_s is not None and each.waited_s > 1.0
    ]
    assert len(known) > 150
    right = [each for each in known if 0.5 <= each <= 2.0]
    assert len(right) >= 0.9 * len(known)


def met_s(let_in: Sequence[Outcome], at_s: float) -> float | None:
    """Return how long a client who came at that time would have waited for a slot: until the next
    request of the same client that was let in had it."""
    place = bisect_left(let_in, at_s, key=lambda each: each.arrived_s)
    return let_in[place].arrived_s + let_in[place].waited_s - at_s if place < len(let_in) else None


@pytest.mark.parametrize("most_tries", [2, 1000])
@pytest.mark.parametrize("max_buffered", [10, 30])
@pytest.mark.parametrize("load", [1.5, 3.0])
def test_who_comes_again_when_told_waits_half_to_twice_as_long(
    load: float, max_buffered: int, most_tries: int
) -> None:
    """Whether clients give up as those of OpenAI do, or come again until they are let in."""
    fleet = VirtualFleet([(2, SPEED)] * 3, max_buffered=max_buffered, most_tries=most_tries)
    made = arrivals(random.Random(5), 400, 0.3 / load)
    named = [(at_s, attrs.evolve(turn, client=f"c{n % 4}")) for n, (at_s, turn) in enumerate(made)]
    outcomes = fleet.run(named)
    let_in = defaultdict[str, list[Outcome]](list)
    for each in outcomes:
        if each.refused_s is None:
            let_in[each.turn.client].append(each)
    met = [
        waited_s / each.retry_after_s
        for each in outcomes
        if each.refused_s is not None and each.tries < most_tries
        if (waited_s := met_s(let_in[each.turn.client], each.refused_s + each.retry_after_s))
        is not None
    ]
    assert len(met) > 100
    right = [each for each in met if 0.5 <= each <= 2.0]
    assert len(right) >= 0.9 * len(met)


def test_everything_is_answered_and_tokens_are_computed_or_cached() -> None:
    fleet = VirtualFleet([(2, SPEED), (4, SPEED.slowed(2.0))])
    outcomes = fleet.run(arrivals(random.Random(2), 200, 0.2, tenants=5))
    assert all(each.ttft_s is not None and each.ended_s is not None for each in outcomes)
    cached = sum(each.cached for each in outcomes)
    assert cached + fleet.computed_tokens == sum(each.turn.prompt.tokens for each in outcomes)


def test_by_prediction_less_is_computed_and_first_tokens_come_earlier() -> None:
    def median_s(fleet: VirtualFleet) -> float:
        outcomes = fleet.run(arrivals(random.Random(3), 300, 0.25, tenants=60))
        return sorted(each.ttft_s or 0.0 for each in outcomes)[150]

    speed = EngineSpeed(cache_tokens=30_000)
    warm = VirtualFleet([(2, speed)] * 4)
    loaded = VirtualFleet([(2, speed)] * 4, is_warm=False)
    assert median_s(warm) < 0.5 * median_s(loaded)
    assert warm.computed_tokens < 0.6 * loaded.computed_tokens


def chain(dice: random.Random, client: str, blocks: int, most_tokens: int) -> Turn:
    """Requests of a client, each of which is asked when the one before is answered."""
    turn: Turn | None = None
    for _ in range(300):
        asked = prompt(dice.random(), blocks)
        turn = Turn(asked, asked.hashes, dice.randint(1, most_tokens), 0.0, client, turn)
    assert turn is not None
    return turn


def test_clients_have_equal_parts_of_the_slots_whatever_their_requests_take() -> None:
    def part_of_the_short(*, is_by_work: bool) -> float:
        dice, fleet = random.Random(5), VirtualFleet([(3, SPEED)], is_by_work=is_by_work)
        made = [(0.0, chain(dice, "long", 30, 200)) for _ in range(6)]
        made += [(0.0, chain(dice, "short", 0, 20)) for _ in range(6)]
        seconds = dict.fromkeys(("long", "short"), 0.0)
        for each in fleet.run(made, until_s=300.0):
            if each.ended_s is not None and each.arrived_s > 30.0:
                seconds[each.turn.client] += each.ended_s - each.arrived_s - each.waited_s
        return seconds["short"] / sum(seconds.values())

    assert part_of_the_short(is_by_work=False) < 0.3
    assert 0.45 <= part_of_the_short(is_by_work=True) <= 0.55


def test_the_same_requests_have_the_same_outcome() -> None:
    def times() -> list[float | None]:
        fleet = VirtualFleet([(2, SPEED)] * 3)
        made = arrivals(random.Random(4), 200, 0.1, tenants=8)
        return [each.ttft_s for each in fleet.run(made)]

    assert times() == times()
