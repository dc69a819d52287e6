"""A range is shown in few points, from rows that are still kept, and nothing of it is left out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.metering.time_steps import MAX_POINTS, STEPS, plan_for

NOW = 1_796_083_190
MOST_S = STEPS[-1].kept_s


@given(st.integers(60, MOST_S), st.integers(0, MOST_S))
def test_any_range_is_covered_in_few_points(length: int, ago: int) -> None:
    end = NOW - ago + 1
    begin = max(0, end - length)
    plan = plan_for(begin, end, NOW)
    assert plan.begin <= begin
    assert plan.end >= end
    assert plan.begin % plan.shown_s == plan.end % plan.shown_s == plan.shown_s % plan.step_s == 0
    assert (plan.end - plan.begin) // plan.shown_s <= MAX_POINTS + 2
    step = next(each for each in STEPS if each.step_s == plan.step_s)
    assert step is STEPS[-1] or NOW - begin <= step.kept_s
    # never so fine that a few series are more rows than a look is worth
    assert (plan.end - plan.begin) // plan.step_s <= 2200


def test_the_usual_ranges_have_the_usual_steps() -> None:
    shown = {}
    for words, seconds in (("1h", 3600), ("6h", 21_600), ("24h", 86_400), ("7d", 604_800)):
        plan = plan_for(NOW - seconds, NOW + 1, NOW)
        shown[words] = plan.step_s, plan.shown_s
    assert shown == {"1h": (10, 10), "6h": (60, 60), "24h": (600, 600), "7d": (3600, 3600)}
    year = plan_for(NOW - 365 * 86_400, NOW + 1, NOW)
    assert (year.step_s, year.shown_s) == (86_400, 86_400)


def test_steps_are_multiples_and_kept_longer_the_coarser_they_are() -> None:
    for fine, coarse in pairwise(STEPS):
        assert coarse.step_s % fine.step_s == 0
        assert coarse.kept_s >= fine.kept_s
