"""Threads give way to busy programs, come back when these leave, and are not tried too often."""

from __future__ import annotations

import math

import attrs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.scheduler.batching.thread_count import ThreadCount

PASS_S = 0.01


@attrs.define
class Machine:
    """Some cores, of which other programs keep some busy; a pass of too many threads loses."""

    cores: int
    busy: int = 0
    now_s: float = 0.0
    slow_s: float = 0.0
    """Time spent in passes of too many threads."""

    def compute(self, count: ThreadCount, for_s: float) -> list[int]:
        """Passes for so long; the numbers of threads that computed them."""
        until_s = self.now_s + for_s
        used = []
        while self.now_s < until_s:
            used.append(count.now)
            is_crowded = count.now > max(1, self.cores - self.busy)
            wall_s = PASS_S * (6 if is_crowded else 1)
            self.now_s += wall_s
            self.slow_s += wall_s if is_crowded else 0
            ran_s = wall_s * (0.5 if is_crowded else 0.97)
            count.passed(wall_s, ran_s, paged_in=0, now_s=self.now_s)
        return used


cores = st.integers(2, 64)


@given(cores)
def test_on_a_quiet_machine_all_compute_all_the_time(most: int) -> None:
    assert set(Machine(most).compute(ThreadCount(most), 100)) == {most}


@given(cores, st.data())
def test_beside_busy_programs_soon_as_many_compute_as_cores_are_left(
    most: int, data: st.DataObject
) -> None:
    busy = data.draw(st.integers(1, most))
    machine, count = Machine(most, busy), ThreadCount(most)
    machine.compute(count, 5)
    left = max(1, most - busy)
    assert count.now <= left + 1
    slow_s = machine.slow_s
    used = machine.compute(count, 200)
    assert machine.slow_s - slow_s < 0.04 * 200
    assert used.count(left) > 0.5 * len(used)


@given(cores, st.data())
def test_when_the_programs_leave_all_compute_again(most: int, data: st.DataObject) -> None:
    busy = data.draw(st.integers(1, most))
    machine, count = Machine(most, busy), ThreadCount(most)
    machine.compute(count, 100)
    machine.busy = 0
    assert machine.compute(count, 100)[-1] == most


def test_after_a_long_quiet_a_short_disturbance_is_soon_forgotten() -> None:
    machine, count = Machine(2, 1), ThreadCount(2)
    machine.compute(count, 60)
    machine.busy = 0
    machine.compute(count, 60)
    machine.busy = 1
    machine.compute(count, 0.3)
    assert count.now == 1
    machine.busy = 0
    assert machine.compute(count, 1)[-1] == 2


def test_nothing_gives_way_where_a_pass_waits_for_other_things() -> None:
    count = ThreadCount(4, least=4)
    assert Machine(4, 3).compute(count, 5)[-1] == 4


def test_waiting_for_the_disk_is_no_reason_to_give_way() -> None:
    count = ThreadCount(4)
    for paged_in in range(1, 200):
        assert not count.passed(1.0, 0.1, paged_in=paged_in, now_s=float(paged_in))
    assert count.now == 4


def test_a_program_that_takes_every_other_slice_is_noticed_by_short_passes_too() -> None:
    """Most of them meet nothing, and the few that do take most of the time."""
    count, now_s = ThreadCount(2), 0.0
    for turn in range(200):
        wall_s, ran_s = (0.0005, 0.0005) if turn % 5 else (0.0035, 0.0005)
        now_s += wall_s
        count.passed(wall_s, ran_s, paged_in=0, now_s=now_s)
        if count.now == 1:
            return
    raise AssertionError("two threads went on")


def test_a_single_slow_pass_is_no_reason_either() -> None:
    count = ThreadCount(2)
    assert not count.passed(0.02, 0.001, paged_in=0, now_s=0.02)
    for turn in range(100):
        assert not count.passed(PASS_S, PASS_S, paged_in=0, now_s=1.0 + turn * PASS_S)


def test_a_slow_pass_of_a_long_prompt_is_enough() -> None:
    count = ThreadCount(2)
    assert count.passed(0.5, 0.25, paged_in=0, now_s=0.5)
    assert count.now == 1


@given(st.integers(1, 64), st.floats(0.0001, 2.0))
def test_a_pass_may_take_some_times_what_it_should_unless_it_has_the_fewest_threads(
    most: int, expected_s: float
) -> None:
    count = ThreadCount(most)
    assert count.limit_s(None) == math.inf, "nothing was measured"
    limit_s = count.limit_s(expected_s)
    assert limit_s == math.inf if most == 1 else limit_s > 2 * expected_s
    assert limit_s >= 0.05, "less than anybody notices"


@given(cores)
def test_passes_that_are_broken_off_soon_have_one_thread_and_no_limit(most: int) -> None:
    count, broken_off = ThreadCount(most), 0
    while count.limit_s(0.003) < math.inf:
        count.broken_off(now_s=0.1 * broken_off)
        broken_off += 1
    assert count.now == 1
    assert broken_off <= math.ceil(math.log2(most))
    assert Machine(most).compute(count, 100)[-1] == most, "it comes back"


class AnyPasses(RuleBasedStateMachine):
    """Whatever is measured, the number stays within its bounds, falls by a quarter at most, by half
    where a pass was broken off, and rises by one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = ThreadCount(8, least=2)
        self.before = self.count.now
        self.now_s = 0.0

    @rule(
        wall_s=st.floats(0.0, 5.0),
        share=st.floats(0.0, 1.2),
        idle_s=st.floats(0.0, 100.0),
        paged_in=st.integers(0, 1),
    )
    def pass_ends(self, wall_s: float, share: float, idle_s: float, paged_in: int) -> None:
        self.before = self.count.now
        self.now_s += wall_s + idle_s
        changed = self.count.passed(wall_s, wall_s * share, paged_in=paged_in, now_s=self.now_s)
        assert changed == (self.count.now != self.before)

        assert -max(1, self.before // 4) <= self.count.now - self.before <= 1

    @rule(idle_s=st.floats(0.0, 100.0))
    def pass_is_broken_off(self, idle_s: float) -> None:
        self.before = self.count.now
        self.now_s += idle_s
        self.count.broken_off(self.now_s)
        assert self.count.now < self.before or self.before == 2
        assert self.count.now >= self.before - max(1, self.before // 2)

    @invariant()
    def is_bounded(self) -> None:
        assert 2 <= self.count.now <= 8


TestAnyPasses = AnyPasses.TestCase
