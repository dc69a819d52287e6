"""Ranges of memory, and the time that copies into it may take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.prefix_store import FreeList
from paddler_trio.scheduler.batching.save_budget import SaveBudget

STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 100), st.integers(0, 30))
)


@given(STEPS)
def test_ranges_never_overlap_and_all_is_free_again_in_the_end(
    steps: list[tuple[bool, int, int, int]],
) -> None:
    memory = FreeList(100)
    taken: list[tuple[int, int]] = []
    for is_taking, size, below, choice in steps:
        if is_taking:
            fits = memory.fits(size, below=below)
            start = memory.take(size, below=below)
            assert (start is not None) == fits
            free = set(range(below)) - {b for s, n in taken for b in range(s, s + n)}
            if start is None:
                runs = (set(range(s, s + size)) for s in range(100))
                assert not any(run <= free for run in runs), "there was room"
                continue
            assert set(range(start, start + size)) <= free
            taken.append((start, size))
        elif taken:
            memory.give_back(*taken.pop(choice % len(taken)))
        assert memory.num_free == 100 - sum(size for _, size in taken)
    for start, size in taken:
        memory.give_back(start, size)
    assert memory.take(100, below=100) == 0, "neighbours are one again"


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 500), st.floats(80, 800), st.integers(1, 10**9), st.floats(0.01, 3000)
        ),
        min_size=1,
    )
)
def test_copies_take_a_small_part_of_the_time_and_are_short_beside_a_pass(
    passes: list[tuple[float, float, int, float]],
) -> None:
    budget = SaveBudget()
    assert not budget.affords(1), "nothing was ever computed"
    computed_ms = copied_ms = last_ms = 0.0
    first_limit_ms = passes[0][1] / 4
    for pass_ms, target_ms, num_bytes, took_ms in passes:
        budget.passed(pass_ms, target_ms=target_ms)
        computed_ms += pass_ms
        if budget.affords(num_bytes):
            assert budget.cost_ms(num_bytes) <= target_ms / 4
            assert copied_ms <= computed_ms / 64 + first_limit_ms + 1e-6
            budget.saved(num_bytes, took_ms)
            copied_ms += took_ms
            last_ms = took_ms
    assert copied_ms - last_ms <= computed_ms / 64 + first_limit_ms + 1e-6


def test_a_copy_is_paid_for_by_the_passes_before_it() -> None:
    budget = SaveBudget()
    budget.passed(10, target_ms=80)
    size = 80_000_000
    assert budget.affords(size)
    assert not budget.affords(2 * size), "one token would wait too long"
    budget.saved(size, 20)
    assert not budget.affords(1_000_000)
    for _ in range(200):
        budget.passed(10, target_ms=80)
    assert budget.affords(size)


def test_a_slow_copy_is_remembered_for_a_while() -> None:
    budget = SaveBudget()
    budget.passed(10, target_ms=80)
    size = 40_000_000
    assert budget.cost_ms(size) == 10
    budget.saved(size, 1000)
    assert budget.cost_ms(size) > 100
    assert not budget.is_worth(size, compute_ms=300)
    assert budget.is_worth(size, compute_ms=3000)
    for _ in range(20_000):
        budget.passed(10, target_ms=80)
    assert budget.affords(size)


def test_long_copies_wait_for_a_longer_idle_time() -> None:
    budget = SaveBudget()
    assert budget.idle_wait_s(1000) == 0.05
    assert budget.idle_wait_s(4_000_000_000) == 8
    assert budget.is_worth(1000, compute_ms=None)
