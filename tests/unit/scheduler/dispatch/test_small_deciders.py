"""Placement, health, continuation, swap gate, service rate and the split of embeddings."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.dispatch.agent_index import ANY, AgentClass, AgentIndex
from paddler_trio.scheduler.dispatch.continuation import ContinuationLimits, Loss, refusal
from paddler_trio.scheduler.dispatch.embedding_split import split_sizes
from paddler_trio.scheduler.dispatch.health import HealthLimits, HealthTracker
from paddler_trio.scheduler.dispatch.placement import AgentKey, load_of
from paddler_trio.scheduler.dispatch.service_rate import LONGEST_S, SHORTEST_S, ServiceRate
from paddler_trio.scheduler.dispatch.swap_gate import UNCHANGED_AFTER_S, SwapGate

# ---------------------------------------------------------------------------- placement

loads = st.tuples(
    st.integers(1, 50).map(AgentKey), st.integers(0, 8), st.integers(0, 8), st.integers(0, 100)
)


def least_loaded(agents: list[tuple[AgentKey, int, int, int]]) -> AgentKey | None:
    index, served = AgentIndex(), AgentClass()
    for agent, busy, total, last in agents:
        index.join(served)
        load = load_of(agent, slots_busy=busy, slots_total=total, last_chosen=last)
        if load is not None:
            index.put(served, load)
    return index.least_loaded(ANY)


@given(st.lists(loads, unique_by=lambda load: load[0]))
def test_the_least_relative_load_is_chosen_and_a_full_agent_never(
    agents: list[tuple[AgentKey, int, int, int]],
) -> None:
    chosen = least_loaded(agents)
    free = {agent: Fraction(busy, total) for agent, busy, total, _ in agents if busy < total}
    if not free:
        assert chosen is None
        return
    assert chosen is not None
    assert free[chosen] == min(free.values())


def test_a_tie_goes_to_whom_was_chosen_longest_ago() -> None:
    tied = [(AgentKey(n), 1, 4, last) for n, last in ((1, 9), (2, 3), (3, 7))]
    assert least_loaded(tied) == AgentKey(2)


def test_load_is_relative_to_the_slots() -> None:
    big, small = (AgentKey(1), 4, 16, 1), (AgentKey(2), 3, 4, 0)
    assert least_loaded([big, small]) == AgentKey(1)


@given(st.integers(0, 4095), st.integers(1, 4096), st.integers(0, 4095), st.integers(1, 4096))
def test_loads_are_ordered_as_fractions_are(a: int, b: int, c: int, d: int) -> None:
    first = load_of(AgentKey(1), slots_busy=a, slots_total=b, last_chosen=0)
    second = load_of(AgentKey(1), slots_busy=c, slots_total=d, last_chosen=0)
    if first is not None and second is not None:
        assert (first < second) == (Fraction(a, b) < Fraction(c, d))


# ------------------------------------------------------------------------------- health

LIMITS = HealthLimits(threshold=3, first_ejection_s=2, longest_ejection_s=10, ramp_up_s=4)


def _book(*agents: str) -> HealthTracker:
    book = HealthTracker(LIMITS)
    for agent in agents:
        book.joined(agent, 0.0)
    return book


def test_failures_in_a_row_eject_for_a_growing_time() -> None:
    book = _book("a", "b")
    now_s, lengths = 0.0, []
    for _ in range(5):
        results = [book.failed("a", now_s) for _ in range(3)]
        assert results[:2] == [None, None]
        assert results[2] is not None
        lengths.append(results[2])
        assert book.is_ejected("a", now_s)
        now_s += results[2]
        assert not book.is_ejected("a", now_s)
    assert lengths == [2, 4, 8, 10, 10]


def test_an_agent_that_goes_does_not_take_the_record_of_another_of_its_name() -> None:
    book = _book("gpu", "gpu", "other")
    book.left("gpu", 1.0, gracefully=True)
    assert [book.failed("gpu", 1.0) for _ in range(3)] == [None, None, 2]
    book.left("gpu", 1.0, gracefully=True)
    assert not book.is_ejected("gpu", 1.0), "the last one took it"


def test_an_agent_that_is_back_before_its_old_connection_ends_is_here() -> None:
    book = _book("a", "b")
    book.joined("b", 1.0)
    book.left("b", 1.0, gracefully=False)
    assert [book.failed("a", 1.0) for _ in range(3)] == [None, None, 2], "one of two"


def test_an_agent_that_fails_for_days_is_ejected_for_the_longest_time() -> None:
    book = _book("a", "b")
    now_s, lengths = 0.0, []
    for _ in range(1100):  # doubling for so long leaves the range of a float
        results = [book.failed("a", now_s) for _ in range(3)]
        assert results[2] is not None
        lengths.append(results[2])
        now_s += results[2]
    assert set(lengths[3:]) == {10}


def test_a_success_in_between_forgives() -> None:
    book = _book("a", "b")
    for _ in range(20):
        assert book.failed("a", 0.0) is None
        assert book.failed("a", 0.0) is None
        book.succeeded("a")


@given(st.integers(1, 9))
def test_never_more_than_half_of_the_fleet_is_ejected(size: int) -> None:
    names = [f"agent {number}" for number in range(size)]
    book = _book(*names)
    for name in names * 5:
        book.failed(name, 1.0)
    ejected = sum(book.is_ejected(name, 1.0) for name in names)
    assert ejected == size // 2


def test_after_an_ejection_and_after_a_loss_the_slots_open_slowly() -> None:
    book = _book("a", "b")
    assert book.usable_slots("a", 8, 0.0) == 8
    book.left("a", 1.0, gracefully=False)
    book.joined("a", 10.0)
    assert [book.usable_slots("a", 8, 10.0 + s) for s in (0, 1, 2, 3, 4)] == [1, 2, 4, 6, 8]
    for _ in range(3):
        book.failed("a", 20.0)
    assert not book.is_ejected("a", 22.0)
    assert book.usable_slots("a", 8, 22.0) == 1


def test_who_said_goodbye_comes_back_with_all_its_slots() -> None:
    book = _book("a", "b")
    book.left("a", 1.0, gracefully=True)
    book.joined("a", 2.0)
    assert book.usable_slots("a", 8, 2.0) == 8


# ------------------------------------------------------------------------- continuation


def _refusal(
    *,
    has_output: bool = True,
    is_continuable: bool = True,
    continuations: int = 0,
    suspicions: int = 0,
    suspects: int = 0,
) -> str | None:
    loss = Loss(has_output, is_continuable, continuations, suspicions, suspects)
    return refusal(loss, ContinuationLimits())


def test_what_was_sent_without_its_tokens_cannot_go_on() -> None:
    assert _refusal(is_continuable=False) == "Agent controller connection closed"
    assert _refusal(is_continuable=False, has_output=False) is None


@pytest.mark.parametrize("first_suspects", [1, 8])
def test_a_second_death_that_is_due_to_nobody_else_is_enough(first_suspects: int) -> None:
    assert _refusal(suspicions=1, suspects=first_suspects) is None
    refused = _refusal(continuations=1, suspicions=2, suspects=1)
    assert "2 engines, agents or servers died while they worked on this request" in (refused or "")


def test_who_only_ran_beside_the_cause_goes_on() -> None:
    assert _refusal(continuations=1, suspicions=1, suspects=0) is None
    assert _refusal(continuations=1, suspicions=2, suspects=8) is None
    assert _refusal(continuations=1, suspicions=5, suspects=0) is None


def test_continuations_are_counted() -> None:
    assert _refusal(continuations=1) is None
    assert "after 2 continuations" in (_refusal(continuations=2) or "")


# ---------------------------------------------------------------------------- swap gate


def test_a_41_agent_gets_work_again_after_it_fell_to_zero_and_climbed() -> None:
    gate = SwapGate()
    gate.close(slots_total=4, now_s=0.0)
    assert not gate.is_open(slots_total=4, slots_processing=2, now_s=50.0), "it drains"
    assert not gate.is_open(slots_total=0, slots_processing=0, now_s=51.0)
    assert gate.is_open(slots_total=1, slots_processing=0, now_s=51.1)


def test_the_moments_of_an_idle_agent_count_from_its_last_request() -> None:
    gate = SwapGate()
    gate.close(slots_total=4, now_s=0.0)
    assert not gate.is_open(slots_total=4, slots_processing=1, now_s=50.0)
    gate.released(now_s=60.0)
    assert not gate.is_open(slots_total=4, slots_processing=0, now_s=60.5)
    assert gate.is_open(slots_total=4, slots_processing=0, now_s=60.0 + UNCHANGED_AFTER_S)


def test_a_new_agent_gets_work_with_its_first_slot() -> None:
    gate = SwapGate()
    gate.close(slots_total=0, now_s=0.0)
    assert gate.is_open(slots_total=4, slots_processing=0, now_s=0.01)


def test_an_idle_agent_that_shows_no_change_serves_as_before() -> None:
    gate = SwapGate()
    gate.close(slots_total=4, now_s=0.0)
    soon_s = UNCHANGED_AFTER_S * 0.9
    assert not gate.is_open(slots_total=4, slots_processing=0, now_s=soon_s)
    assert gate.is_open(slots_total=4, slots_processing=0, now_s=UNCHANGED_AFTER_S)


# ------------------------------------------------------------------------- service rate


def test_retry_after_follows_the_measured_rate() -> None:
    rate = ServiceRate()
    assert SHORTEST_S <= rate.retry_after_s(100, 0.0) <= LONGEST_S
    rate.waits(0.0)
    for tick in range(1, 50):
        rate.ended(tick * 0.5, waiting=10)
    assert rate.retry_after_s(9, 24.5) == 5
    assert rate.retry_after_s(0, 24.5) == SHORTEST_S
    assert rate.retry_after_s(10_000, 24.5) == LONGEST_S
    assert rate.retry_after_s(10, 100.0) == LONGEST_S, "nothing ended for long: no promises"


def test_retry_after_counts_no_time_in_which_nobody_waited() -> None:
    rate = ServiceRate()
    rate.waits(0.0)
    rate.ended(0.5, waiting=1)
    rate.ended(1.0, waiting=0)
    rate.ended(300.0, waiting=0)  # a lonely request of a quiet afternoon
    rate.waits(600.0)
    assert rate.retry_after_s(9, 600.1) == 5
    rate.ended(600.5, waiting=9)
    assert rate.retry_after_s(9, 600.5) == 5


# ---------------------------------------------------------------------- embedding split


@pytest.mark.parametrize(
    ("documents", "agents", "batch_size", "sizes"),
    [
        (1, 5, 256, [1]),
        (3, 5, 256, [1, 1, 1]),
        (11, 4, 256, [3, 3, 3, 2]),
        (80, 4, 100, [20] * 4),
        (1000, 4, 100, [100] * 10),
        (1024, 4, 256, [256] * 4),
        (1100, 4, 256, [220] * 5),
        (2000, 4, 256, [250] * 8),
        (0, 4, 256, []),
    ],
)
def test_the_split_is_paddlers(
    documents: int, agents: int, batch_size: int, sizes: list[int]
) -> None:
    assert split_sizes(documents, agents=agents, batch_size=batch_size) == sizes


def test_the_rule_holds_for_every_combination_paddler_tests() -> None:
    for documents in (*range(51), 256, 257, 1000, 2001):
        for agents in range(1, 9):
            for batch_size in (1, 2, 4, 100, 256):
                sizes = split_sizes(documents, agents=agents, batch_size=batch_size)
                assert sum(sizes) == documents
                assert all(0 < size <= batch_size for size in sizes)
                assert not sizes or max(sizes) - min(sizes) <= 1
                assert sizes == sorted(sizes, reverse=True)
                assert len(sizes) >= min(documents, agents)
