"""Who may have killed an engine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.suspects import Death, Work, suspects

DECODE, ADMIT, SEE = 1, 2, 3
"""Threads."""
BATCH = Work(DECODE, (1, 2, 3), computes=True, takes_memory=False)
ADMISSION = Work(ADMIT, (7,), computes=False, takes_memory=True)
VISION = Work(SEE, (9,), computes=True, takes_memory=True)
ALL = (BATCH, ADMISSION, VISION)


def found(
    *works: Work[int], thread: int | None = None, seen: bool = True, outside: bool = False
) -> set[int]:
    return set(suspects(works, Death(thread, was_seen=seen, is_from_outside=outside)))


def test_the_thread_that_died_names_its_own() -> None:
    assert found(*ALL, thread=ADMIT) == {7}
    assert found(*ALL, thread=DECODE) == {1, 2, 3}
    assert found(*ALL, thread=99) == set(), "it worked for nobody"


def test_a_thread_that_is_not_pythons_computes() -> None:
    assert found(*ALL) == {1, 2, 3, 9}
    assert found(ADMISSION) == set()


def test_where_no_handler_could_run_a_stack_overflowed_before_a_kernel_failed() -> None:
    assert found(*ALL, seen=False) == {7, 9}
    assert found(BATCH, seen=False) == {1, 2, 3}


def test_a_kill_from_outside_clears_threads_that_take_no_memory() -> None:
    assert found(BATCH, seen=False, outside=True) == set()
    assert found(*ALL, seen=False, outside=True) == {7, 9}, "the machine may have had none left"


@given(
    st.lists(
        st.builds(
            Work,
            st.integers(1, 5),
            st.lists(st.integers(0, 20), min_size=1).map(tuple),
            st.booleans(),
            st.booleans(),
        )
    ),
    st.builds(Death, st.none() | st.integers(1, 6), st.booleans(), st.booleans()),
)
def test_only_who_was_worked_for_is_suspected(works: list[Work[int]], death: Death) -> None:
    everybody = {key for work in works for key in work.keys}
    assert suspects(works, death) <= everybody
    if death.thread is not None:
        others = {key for work in works if work.thread == death.thread for key in work.keys}
        assert suspects(works, death) == others
