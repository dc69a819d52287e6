"""Sequences with different adapters take turns: nobody starves, and turns are not shorter than need
be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.adapter_turns import ROUND_MS, WORTH, AdapterTurns
from paddler_trio.scheduler.batching.sequences import AdapterScales, Sequence

NONE: AdapterScales = ()
CHOICES: list[AdapterScales] = [NONE, ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 2.0))]
choices = st.sampled_from(CHOICES)
LONG_MS = 20.0
"""A change takes so long that turns are as long as they may be."""


def sequences(chosen: list[AdapterScales]) -> list[Sequence]:
    return [Sequence(key, [1], 1, adapters=each) for key, each in enumerate(chosen)]


@given(
    st.lists(st.tuples(st.lists(choices, min_size=1, max_size=8), st.floats(0, 300)), max_size=60)
)
def test_there_is_always_somebody_whose_turn_it_is(
    passes: list[tuple[list[AdapterScales], float]],
) -> None:
    turns = AdapterTurns()
    for chosen, took_ms in passes:
        running = sequences(chosen)
        turns.begin(running)
        members = turns.members(running)
        assert members
        assert {each.adapters for each in members} == {turns.now}
        turns.passed(took_ms, took_ms)


@given(
    st.lists(
        st.tuples(st.lists(choices, max_size=6), st.floats(0.01, 300)), min_size=1, max_size=200
    ),
    choices,
)
def test_nobody_waits_for_more_turns_than_there_are_other_choices(
    others: list[tuple[list[AdapterScales], float]], own: AdapterScales
) -> None:
    turns = AdapterTurns(LONG_MS)
    had: list[AdapterScales] = []
    """The turns since one of our own."""
    waited_ms, longest_ms = 0.0, 0.0
    for chosen, took_ms in others:
        running = sequences([*chosen, own])
        turns.begin(running)
        if turns.now == own:
            had, waited_ms, longest_ms = [], 0.0, 0.0
        else:
            if not had or had[-1] != turns.now:
                had.append(turns.now)
            waited_ms += took_ms
            longest_ms = max(longest_ms, took_ms)
        assert len(had) == len(set(had)), "one had two turns while another waited"
        assert waited_ms <= len(had) * (ROUND_MS / 2 + longest_ms)
        turns.passed(took_ms, took_ms)


@given(st.integers(2, 5), st.floats(0.1, 200), st.integers(1, 300))
def test_all_get_equal_time_whatever_their_number(number: int, pass_ms: float, passes: int) -> None:
    turns, time_ms = AdapterTurns(LONG_MS), dict.fromkeys(CHOICES[:number], 0.0)
    running = sequences([choice for choice in time_ms for _ in range(1 + len(choice) * 3)])
    for _ in range(passes):
        turns.begin(running)
        time_ms[turns.now] += pass_ms
        turns.passed(pass_ms, pass_ms)
    assert max(time_ms.values()) - min(time_ms.values()) <= ROUND_MS / number + 2 * pass_ms


def test_short_passes_share_a_change_of_adapters() -> None:
    turns, changes, before = AdapterTurns(LONG_MS), 0, NONE
    running = sequences([NONE, ((0, 1.0),)])
    for _ in range(1000):
        turns.begin(running)
        changes += turns.now != before
        before = turns.now
        turns.passed(1.0, 1.0)
    assert changes == 1000 / (ROUND_MS / 2) - 1


def test_a_turn_is_no_longer_than_a_change_is_worth() -> None:
    turns, changes, before = AdapterTurns(0.25), 0, NONE
    running = sequences([NONE, ((0, 1.0),)])
    for _ in range(2400):
        turns.begin(running)
        changes += turns.now != before
        before = turns.now
        turns.passed(1.0, 1.0)
    assert changes == 2400 / (WORTH * 0.25) - 1


def test_a_turn_that_has_to_wait_for_a_core_is_longer() -> None:
    turns = AdapterTurns(0.5)
    running = sequences([NONE, ((0, 1.0),)])
    for _ in range(9):
        turns.begin(running)
        assert turns.now == NONE
        turns.passed(12.0, 1.0)
    for _ in range(2):
        turns.begin(running)
        turns.passed(12.0, 1.0)
    turns.begin(running)
    assert turns.now == ((0, 1.0),)


def test_long_passes_alternate() -> None:
    turns, had = AdapterTurns(LONG_MS), []
    running = sequences([NONE, ((0, 1.0),), ((1, 1.0),)])
    for _ in range(6):
        turns.begin(running)
        had.append(turns.now)
        turns.passed(ROUND_MS / 2.5, ROUND_MS / 2.5)
    assert had == 2 * [NONE, ((0, 1.0),), ((1, 1.0),)]


def test_a_pass_without_anything_to_compute_ends_the_turn() -> None:
    turns = AdapterTurns()
    running = sequences([NONE, ((0, 1.0),)])
    turns.begin(running)
    turns.passed(0.0, 0.0)
    turns.begin(running)
    assert turns.now == ((0, 1.0),)


def test_who_is_alone_never_waits_and_keeps_no_debt() -> None:
    turns = AdapterTurns()
    alone, both = sequences([((0, 1.0),)]), sequences([NONE, ((0, 1.0),)])
    for _ in range(50):
        turns.begin(alone)
        assert turns.now == ((0, 1.0),)
        turns.passed(70.0, 70.0)
    turns.begin(both)
    assert turns.now == NONE, "it waits for no turn that was used up alone"
