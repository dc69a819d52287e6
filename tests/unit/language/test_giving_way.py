"""Threads that prepare leave the cores to others, and only when there are others."""

import time

import pytest

from paddler_trio.language.giving_way import (
    CORES,
    LONGEST_REST_S,
    WORK_S,
    GivingWay,
    give_way,
)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept, each time; nobody really sleeps."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def work(processor_s: float) -> None:
    ends_s = time.thread_time() + processor_s
    while time.thread_time() < ends_s:
        pass


def test_outside_of_a_preparation_nobody_rests(rests: list[float]) -> None:
    work(2 * WORK_S)
    give_way()
    assert not rests


def test_one_thread_rests_as_long_as_it_worked(rests: list[float]) -> None:
    def prepare() -> None:
        work(2 * WORK_S)
        give_way()
        [rest_s] = rests
        assert rest_s >= 2 * WORK_S * (1 / CORES - 1)
        give_way()
        assert len(rests) == 1, "what was rested for is not rested for again"

    GivingWay(to_others=lambda: True).run(prepare)


def test_what_is_short_does_not_rest(rests: list[float]) -> None:
    GivingWay(to_others=lambda: True).run(give_way)
    assert not rests


def test_alone_a_preparation_does_not_rest_and_owes_nothing_later(rests: list[float]) -> None:
    others: list[str] = []

    def prepare() -> None:
        work(5 * WORK_S)
        give_way()
        others.append("somebody")
        give_way()

    GivingWay(to_others=lambda: bool(others)).run(prepare)
    assert not any(rests)


def test_several_threads_share_the_same_half_of_a_core() -> None:
    giving_way = GivingWay(to_others=lambda: True)
    worked_s = 0.002

    def rest_beside(others: int) -> float:
        if others:
            return giving_way.run(lambda: rest_beside(others - 1))
        return giving_way.rest_s(worked_s)

    for threads in (1, 3):
        cycle_s = worked_s + rest_beside(threads)
        assert threads * worked_s / cycle_s == pytest.approx(CORES)
    assert giving_way.run(lambda: giving_way.rest_s(10.0)) == LONGEST_REST_S


def test_one_that_fails_is_one_less() -> None:
    giving_way = GivingWay(to_others=lambda: True)
    with pytest.raises(ZeroDivisionError):
        giving_way.run(lambda: 1 / 0)
    assert giving_way.run(lambda: giving_way.rest_s(0.002)) == pytest.approx(0.002)
