"""How agents that lost their balancer come back: soon, and not all at once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.agent.link.balancer_link import (
    FIRST_PAUSE_S,
    LASTING_S,
    LEAST_SHARE,
    LONGEST_PAUSE_S,
    Redial,
)

AGENTS = 1000
WINDOW_S = 0.5

chances = st.floats(min_value=0, max_value=1)


def dials_s(until_s: float, seed: int) -> list[float]:
    """When an agent dials that lost its balancer at 0; attempts fail at once."""
    draw = random.Random(seed)
    redial, now_s = Redial(), 0.0
    linked_s, dials = LASTING_S, []
    while now_s < until_s:
        now_s += redial.pause_s(linked_s, draw.random())
        linked_s = 0.0
        dials.append(now_s)
    return dials


@given(st.lists(chances, min_size=1, max_size=20))
def test_between_a_quarter_and_all_of_a_doubling_pause_is_waited(
    drawn: list[float],
) -> None:
    redial = Redial()
    bound_s = FIRST_PAUSE_S
    for chance in drawn:
        assert bound_s * LEAST_SHARE <= redial.pause_s(0.0, chance) <= bound_s
        bound_s = min(2 * bound_s, LONGEST_PAUSE_S)


@given(st.lists(chances, max_size=12), chances)
def test_only_a_link_that_lasted_makes_the_pause_short_again(
    drawn: list[float], chance: float
) -> None:
    redial, again = Redial(), Redial()
    for each in drawn:
        redial.pause_s(0.0, each)
        again.pause_s(0.0, each)
    assert redial.pause_s(LASTING_S, chance) <= FIRST_PAUSE_S
    unmoved_s = min(FIRST_PAUSE_S * 2 ** len(drawn), LONGEST_PAUSE_S)
    assert again.pause_s(LASTING_S / 2, chance) >= unmoved_s * LEAST_SHARE


@given(st.lists(chances, max_size=12), chances)
def test_a_balancer_that_hands_over_is_dialled_as_if_nothing_had_failed(
    drawn: list[float], chance: float
) -> None:
    redial = Redial()
    for each in drawn:
        redial.pause_s(0.0, each)
    redial.begin_anew()
    assert redial.pause_s(0.0, chance) == Redial().pause_s(0.0, chance)


@given(st.floats(min_value=0, max_value=600), st.integers(min_value=0))
def test_every_agent_dials_a_balancer_that_is_back_within_the_longest_pause(
    outage_s: float, seed: int
) -> None:
    first_s = next(each for each in dials_s(outage_s + 60, seed) if each >= outage_s)
    assert first_s - outage_s <= LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("outage_s", "share"),
    [(2.0, 0.35), (3.0, 0.25), (5.0, 0.2), (8.0, 0.2), (13.0, 0.2), (34.0, 0.2), (100.0, 0.2)],
)
def test_a_fleet_that_lost_its_balancer_does_not_dial_it_in_one_moment(
    outage_s: float, share: float
) -> None:
    """No half second has more than this share of the fleet's first dials in it."""
    firsts = [
        next(each for each in dials_s(outage_s + 10, seed) if each >= outage_s)
        for seed in range(AGENTS)
    ]
    windows = Counter(int(first / WINDOW_S) for first in firsts)
    assert max(windows.values()) <= AGENTS * share
