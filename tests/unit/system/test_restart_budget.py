"""The restart budget: so many crashes in so long, with growing pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.system.supervise import RestartBudget


def test_pauses_double_up_to_the_longest_and_then_the_budget_is_spent() -> None:
    budget = RestartBudget(max_restarts=5, period_s=60, first_pause_s=1, longest_pause_s=5)
    assert [budget.crashed(0.0) for _ in range(6)] == [1, 2, 4, 5, 5, None]


def test_what_is_older_than_the_period_is_forgotten() -> None:
    budget = RestartBudget(max_restarts=1, period_s=10, first_pause_s=1)
    assert budget.crashed(0.0) == 1
    assert budget.crashed(9.9) is None
    assert budget.crashed(30.0) == 1


@given(st.lists(st.floats(0, 30), min_size=1, max_size=50))
def test_no_more_restarts_than_allowed_in_any_period(gaps_s: list[float]) -> None:
    budget = RestartBudget(max_restarts=3, period_s=20)
    now_s = 0.0
    forgiven_s: list[float] = []
    for gap_s in gaps_s:
        now_s += gap_s
        if budget.crashed(now_s) is not None:
            forgiven_s.append(now_s)
    for start_s in forgiven_s:
        assert sum(start_s <= moment_s < start_s + 20 for moment_s in forgiven_s) <= 3


@given(st.lists(st.floats(0.01, 5), min_size=4, max_size=20))
def test_a_refilled_budget_forgives_again(gaps_s: list[float]) -> None:
    budget = RestartBudget(max_restarts=3, period_s=20)
    now_s = 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        if budget.crashed(now_s) is None:
            now_s += budget.refilled_in_s(now_s) + 0.001
            assert budget.crashed(now_s) is not None


def test_thousands_of_crashes_still_have_a_longest_pause() -> None:
    budget = RestartBudget(max_restarts=2000, period_s=60, longest_pause_s=5)
    assert [budget.crashed(0.0) for _ in range(2000)][-1] == 5


def test_a_budget_of_no_restarts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_restarts"):
        RestartBudget(max_restarts=0, period_s=60)
