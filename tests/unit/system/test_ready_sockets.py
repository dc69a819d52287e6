"""Sockets that are read before Trio waits: who is called, who is told of an end, and when Trio has
its turn."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

from paddler_trio.system import ready_sockets
from paddler_trio.system.ready_sockets import closing, read_while, run_ready_sockets


@attrs.define(eq=False)
class Pair:
    """Two ends of a connection, and what was read from the first one."""

    ours: socket.socket
    theirs: socket.socket
    got: list[bytes] = attrs.field(factory=list)

    def read(self) -> bool:
        self.got.append(self.ours.recv(100))
        return self.got[-1] not in (b"last", b"")

    @property
    def descriptor(self) -> int:
        return self.ours.fileno()


class Clock:
    """Goes on by a millisecond whenever it is read, and when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(ready_sockets, "time", SimpleNamespace(monotonic=self.read))

    def read(self) -> float:
        self.now_s += 0.001
        return self.now_s


@asynccontextmanager
async def reading(number: int = 1) -> AsyncIterator[tuple[list[Pair], trio.Nursery]]:
    pairs = [Pair(*socket.socketpair()) for _ in range(number)]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_ready_sockets)
            for pair in pairs:
                pair.ours.setblocking(False)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(50):
                yield pairs, nursery
            nursery.cancel_scope.cancel()
    finally:
        for pair in pairs:
            pair.ours.close()
            pair.theirs.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await trio.lowlevel.checkpoint()


async def test_what_arrives_is_read_until_the_reader_has_enough() -> None:
    async with reading() as ([pair], nursery):
        nursery.start_soon(read_while, pair.descriptor, pair.read)
        pair.theirs.send(b"first")
        await until(lambda: len(pair.got) == 1)
        pair.theirs.send(b"last")
        await until(lambda: len(pair.got) == 2)
        await trio.testing.wait_all_tasks_blocked()
        pair.theirs.send(b"for somebody else")
        await trio.testing.wait_all_tasks_blocked()
        assert pair.got == [b"first", b"last"]


async def test_what_came_before_is_read_and_the_end_too() -> None:
    async with reading() as ([pair], _):
        pair.theirs.send(b"early")
        pair.theirs.close()
        await read_while(pair.descriptor, pair.read)
        assert pair.got == [b"early", b""]


async def test_a_reader_that_fails_is_told_and_no_other_is() -> None:
    async with reading(2) as ([bad, good], nursery):
        nursery.start_soon(read_while, good.descriptor, good.read)

        def fail() -> bool:
            raise ValueError("no frame")

        bad.theirs.send(b"x")
        with pytest.raises(ValueError, match="no frame"):
            await read_while(bad.descriptor, fail)
        good.theirs.send(b"goes on")
        await until(lambda: good.got == [b"goes on"])


async def test_who_reads_a_socket_that_is_closed_is_told() -> None:
    async with reading() as ([pair], nursery):

        async def close() -> None:
            closing(pair.descriptor)
            pair.ours.close()

        nursery.start_soon(close)
        with pytest.raises(trio.ClosedResourceError):
            await read_while(pair.descriptor, pair.read)
        closing(pair.descriptor)  # again, and of no socket


async def test_a_socket_closed_in_the_same_step_is_not_read() -> None:
    async with reading(2) as (pairs, nursery):
        ended: list[Pair] = []

        def read_and_close_the_other(pair: Pair) -> bool:
            other = pairs[1 - pairs.index(pair)]
            closing(other.descriptor)
            other.ours.close()
            return pair.read()

        async def wait(pair: Pair) -> None:
            try:
                await read_while(pair.descriptor, lambda: read_and_close_the_other(pair))
            except trio.ClosedResourceError:
                ended.append(pair)

        for pair in pairs:
            nursery.start_soon(wait, pair)
            pair.theirs.send(b"last")
        await until(lambda: len(ended) == 1)
        assert sorted(pair.got for pair in pairs) == [[], [b"last"]]


async def test_a_task_that_is_cancelled_leaves_its_socket_to_the_next() -> None:
    async with reading() as ([pair], _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await read_while(pair.descriptor, pair.read)
        pair.theirs.send(b"last")
        await read_while(pair.descriptor, pair.read)
        assert pair.got == [b"last"]


async def test_what_is_watched_when_the_service_ends_is_waited_for_by_its_own_task() -> None:
    pair = Pair(*socket.socketpair())
    pair.ours.setblocking(False)
    with pair.ours, pair.theirs, trio.fail_after(50):
        async with trio.open_nursery() as requests, trio.open_nursery() as services:
            services.start_soon(run_ready_sockets)
            await trio.testing.wait_all_tasks_blocked()
            requests.start_soon(read_while, pair.descriptor, pair.read)
            await trio.testing.wait_all_tasks_blocked()
            services.cancel_scope.cancel()
            requests.start_soon(trio.to_thread.run_sync, pair.theirs.send, b"last")
        assert pair.got == [b"last"]


async def test_without_the_service_a_task_waits_for_its_own() -> None:
    pair = Pair(*socket.socketpair())
    pair.ours.setblocking(False)
    with pair.ours, pair.theirs, trio.fail_after(50):
        pair.theirs.send(b"last")
        await read_while(pair.descriptor, pair.read)
        assert pair.got == [b"last"]


async def test_a_task_that_is_woken_by_a_read_runs_at_once() -> None:
    async with reading() as ([pair], nursery):
        is_woken = trio.Event()

        def read() -> bool:
            is_woken.set()
            return pair.read()

        nursery.start_soon(read_while, pair.descriptor, read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(trio.to_thread.run_sync, pair.theirs.send, b"x")
        began_s = trio.current_time()
        await is_woken.wait()
        assert trio.current_time() - began_s < 60, "no deadline is near"


async def test_deadlines_pass_while_sockets_are_ready_all_the_time() -> None:
    async with reading() as ([pair], nursery):
        reads = 0

        def read() -> bool:
            nonlocal reads
            reads += 1  # and what has come stays
            return True

        nursery.start_soon(read_while, pair.descriptor, read)
        pair.theirs.send(b"x")
        with trio.move_on_after(0.05) as patience:
            await trio.sleep_forever()
        assert patience.cancelled_caught
        assert reads > 10


async def test_a_deadline_that_a_read_sets_is_noticed() -> None:
    async with reading() as ([pair], nursery):
        with trio.CancelScope() as scope:

            def read() -> bool:
                scope.deadline = trio.current_time()
                return pair.read()

            nursery.start_soon(read_while, pair.descriptor, read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(trio.to_thread.run_sync, pair.theirs.send, b"x")
            await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_read_sees_the_context_of_its_task() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="of nobody")
    seen: list[str] = []
    async with reading() as ([pair], _):

        def read() -> bool:
            seen.append(variable.get())
            return pair.read()

        variable.set("of the task")
        pair.theirs.send(b"last")
        await read_while(pair.descriptor, read)
    assert seen == ["of the task"]


async def test_an_error_leaves_no_cycle_behind() -> None:
    async with reading() as ([pair], _):
        errors: list[weakref.ref[ValueError]] = []

        class NoFrameError(ValueError):
            pass

        def fail() -> bool:
            error = NoFrameError("no frame")
            errors.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

        async def read() -> None:
            with suppress(NoFrameError):
                await read_while(pair.descriptor, fail)

        pair.theirs.send(b"x")
        gc.disable()
        try:
            await read()
            await trio.testing.wait_all_tasks_blocked()
            assert errors[0]() is None
        finally:
            gc.enable()


async def test_others_have_their_turn_between_sockets_that_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read takes a second of this clock; nobody is read a second time before the others."""
    clock = Clock(monkeypatch)
    async with reading(3) as (pairs, nursery):
        turns, told, order = 0, [], []

        def slow(pair: Pair) -> bool:
            clock.now_s += 1.0
            told.append(turns)
            order.append(pairs.index(pair))
            return len(order) < 6

        for pair in pairs:
            nursery.start_soon(read_while, pair.descriptor, partial(slow, pair))
        await trio.testing.wait_all_tasks_blocked()
        for pair in pairs:
            pair.theirs.send(b"stays unread")
        while len(order) < 6:
            await trio.lowlevel.checkpoint()
            turns += 1
        # Trio runs the tasks of a turn in any order: two reads may stand between two turns of ours
        assert max(told.count(turn) for turn in told) <= 2
        assert sorted(order[:3]) == [0, 1, 2] == sorted(order[3:6])


async def test_a_task_that_is_woken_behind_a_slow_read_runs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    async with reading(2) as (pairs, nursery):
        is_woken = trio.Event()
        order: list[Pair] = []

        def slow(pair: Pair) -> bool:
            clock.now_s += 1.0
            order.append(pair)
            if len(order) == 2:
                is_woken.set()
            return pair.read()

        for pair in pairs:
            nursery.start_soon(read_while, pair.descriptor, partial(slow, pair))
        await trio.testing.wait_all_tasks_blocked()
        for pair in pairs:
            pair.theirs.send(b"x")
        await is_woken.wait()  # no deadline is near, and nothing else comes
        assert set(map(id, order)) == set(map(id, pairs))
