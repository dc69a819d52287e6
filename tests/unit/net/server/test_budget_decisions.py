"""The budget of all inputs: its arithmetic, and how fast a body must come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.net.server.input_budget import (
    FREE_BYTES,
    MIB,
    MIN_PROGRESS_BYTES,
    MIN_PROGRESS_INTERVAL_S,
    PUBLIC_SHARE,
    BudgetSpentError,
    InputBudget,
    Reservation,
    UploadDeadline,
)

STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "shrink", "close"]), st.integers(0, 3), st.integers(0, MIB)),
    max_size=40,
)


@given(steps=STEPS)
def test_what_is_held_is_what_the_reservations_hold_and_never_too_much(
    steps: list[tuple[str, int, int]],
) -> None:
    budget = InputBudget(2 * MIB)
    rooms = [budget.reservation(share=1.0 if number else PUBLIC_SHARE) for number in range(4)]
    for step, number, size_bytes in steps:
        room = rooms[number]
        match step:
            case "grow":
                try:
                    room.grow(size_bytes)
                except BudgetSpentError:
                    assert size_bytes > 0
            case "shrink":
                room.shrink(min(size_bytes, room.used_bytes))
            case "close":
                room.close()
        assert budget.held_bytes == sum(max(0, room.used_bytes - FREE_BYTES) for room in rooms)
        assert 0 <= budget.held_bytes <= budget.limit_bytes
        assert max(0, rooms[0].used_bytes - FREE_BYTES) <= budget.limit_bytes * PUBLIC_SHARE
    for room in rooms:
        room.close()
    assert budget.held_bytes == 0


def spent(budget: InputBudget) -> Reservation:
    """What strangers may hold, held."""
    room = budget.reservation(share=PUBLIC_SHARE)
    room.grow(int(budget.limit_bytes * PUBLIC_SHARE) + FREE_BYTES)
    return room


def test_small_requests_pass_while_the_budget_is_spent() -> None:
    budget = InputBudget()
    spent(budget)
    for _ in range(1000):
        budget.reservation(share=PUBLIC_SHARE).grow(FREE_BYTES)
    with pytest.raises(BudgetSpentError, match="--input-memory"):
        budget.reservation(share=PUBLIC_SHARE).grow(FREE_BYTES + 1)
    assert budget.refusals == 1


def test_operators_and_agents_have_room_that_strangers_cannot_spend() -> None:
    budget = InputBudget()
    spent(budget)
    budget.reservation().grow(int(budget.limit_bytes * (1 - PUBLIC_SHARE)))


def test_a_body_that_holds_nothing_has_all_the_time_and_one_that_holds_room_must_keep_coming() -> (
    None
):
    upload = UploadDeadline(0.0, 60.0)
    upload.received(FREE_BYTES, 1.0)
    assert upload.deadline_s == 60
    upload.received(1, 5.0)
    assert upload.deadline_s == 5 + MIN_PROGRESS_INTERVAL_S
    upload.received(MIN_PROGRESS_BYTES - 2, 14.0)
    assert upload.deadline_s == 5 + MIN_PROGRESS_INTERVAL_S
    upload.received(1, 14.5)
    assert upload.deadline_s == 14.5 + MIN_PROGRESS_INTERVAL_S
    upload.received(MIN_PROGRESS_BYTES, 55.0)
    assert upload.deadline_s == 60


async def test_clients_take_turns_in_the_thread_that_decodes() -> None:
    """A client with twenty bodies waits for itself, another one for at most one of them."""
    budget = InputBudget()
    order: list[str] = []
    release = threading.Event()

    async def decode(client: str, work: Callable[[], object]) -> None:
        room = budget.reservation(share=PUBLIC_SHARE, client=client)
        await room.off_loop(work)
        order.append(client)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decode, "flood", release.wait)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            nursery.start_soon(decode, "flood", list)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(decode, "honest", list)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert order.index("honest") <= 2
    assert len(order) == 22


async def test_the_thread_finishes_what_it_began_before_it_takes_another() -> None:
    budget = InputBudget()
    room = budget.reservation(client="gone")
    release, decoded = threading.Event(), trio.Event()

    async def other() -> None:
        await budget.reservation(client="other").off_loop(list)
        decoded.set()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as leaving:
            leaving.start_soon(room.off_loop, release.wait)
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        nursery.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
        assert not decoded.is_set()
        release.set()


def test_a_refusal_says_when_there_was_room_again_after_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    budget = InputBudget()

    def advice() -> int:
        with pytest.raises(BudgetSpentError) as refused:
            budget.reservation(share=PUBLIC_SHARE).grow(MIB)
        return refused.value.retry_after_s

    for _ in range(3):
        room = spent(budget)
        with pytest.raises(BudgetSpentError):
            budget.reservation(share=PUBLIC_SHARE).grow(budget.limit_bytes)  # never has room
        now_s += 50.0
        with pytest.raises(BudgetSpentError):
            budget.reservation(share=PUBLIC_SHARE).grow(32 * MIB)  # is not the next to have it
        advice()
        now_s += 4.0
        room.shrink(MIB // 2)  # too little
        now_s += 3.0
        room.close()
    room = spent(budget)
    assert advice() == 7
    now_s += 300.0
    assert advice() > 30, "it takes longer than ever"
