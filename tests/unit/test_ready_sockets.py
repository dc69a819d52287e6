"""Sockets that one task reads for all: who is called, and who is told of an end."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

from paddler_trio.ready_sockets import ReadySockets


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


@asynccontextmanager
async def reading(number: int = 1) -> AsyncIterator[tuple[ReadySockets, list[Pair], trio.Nursery]]:
    sockets, pairs = ReadySockets(), [Pair(*socket.socketpair()) for _ in range(number)]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sockets.run)
            for pair in pairs:
                pair.ours.setblocking(False)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(5):
                yield sockets, pairs, nursery
            nursery.cancel_scope.cancel()
    finally:
        for pair in pairs:
            pair.ours.close()
            pair.theirs.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await trio.lowlevel.checkpoint()


async def test_what_arrives_is_read_until_the_reader_has_enough() -> None:
    async with reading() as (sockets, [pair], nursery):
        nursery.start_soon(sockets.read_while, pair.descriptor, pair.read)
        pair.theirs.send(b"first")
        await until(lambda: len(pair.got) == 1)
        pair.theirs.send(b"last")
        await until(lambda: len(pair.got) == 2)
        await trio.testing.wait_all_tasks_blocked()
        pair.theirs.send(b"for somebody else")
        await trio.testing.wait_all_tasks_blocked()
        assert pair.got == [b"first", b"last"]


async def test_what_came_before_is_read_and_the_end_too() -> None:
    async with reading() as (sockets, [pair], _):
        pair.theirs.send(b"early")
        pair.theirs.close()
        await sockets.read_while(pair.descriptor, pair.read)
        assert pair.got == [b"early", b""]


async def test_a_reader_that_fails_is_told_and_no_other_is() -> None:
    async with reading(2) as (sockets, [bad, good], nursery):
        nursery.start_soon(sockets.read_while, good.descriptor, good.read)

        def fail() -> bool:
            raise ValueError("no frame")

        bad.theirs.send(b"x")
        with pytest.raises(ValueError, match="no frame"):
            await sockets.read_while(bad.descriptor, fail)
        good.theirs.send(b"goes on")
        await until(lambda: good.got == [b"goes on"])


async def test_who_reads_a_socket_that_is_closed_is_told() -> None:
    async with reading() as (sockets, [pair], nursery):

        async def close() -> None:
            sockets.closing(pair.descriptor)
            pair.ours.close()

        nursery.start_soon(close)
        with pytest.raises(trio.ClosedResourceError):
            await sockets.read_while(pair.descriptor, pair.read)
        sockets.closing(pair.descriptor)  # again, and of no socket


async def test_a_socket_closed_in_the_same_step_is_not_read() -> None:
    async with reading(2) as (sockets, pairs, nursery):
        ended: list[Pair] = []

        def read_and_close_the_other(pair: Pair) -> bool:
            other = pairs[1 - pairs.index(pair)]
            sockets.closing(other.descriptor)
            other.ours.close()
            return pair.read()

        async def wait(pair: Pair) -> None:
            try:
                await sockets.read_while(pair.descriptor, lambda: read_and_close_the_other(pair))
            except trio.ClosedResourceError:
                ended.append(pair)

        for pair in pairs:
            nursery.start_soon(wait, pair)
            pair.theirs.send(b"last")
        await until(lambda: len(ended) == 1)
        assert sorted(pair.got for pair in pairs) == [[], [b"last"]]


async def test_a_task_that_is_cancelled_leaves_its_socket_to_the_next() -> None:
    async with reading() as (sockets, [pair], _):
        with trio.CancelScope() as scope:
            scope.cancel()
            await sockets.read_while(pair.descriptor, pair.read)
        pair.theirs.send(b"last")
        await sockets.read_while(pair.descriptor, pair.read)
        assert pair.got == [b"last"]


async def test_who_sleeps_when_the_reading_ends_goes_on() -> None:
    sockets, pair = ReadySockets(), Pair(*socket.socketpair())
    with pair.ours, pair.theirs:
        async with trio.open_nursery() as requests, trio.open_nursery() as services:
            services.start_soon(sockets.run)
            await trio.testing.wait_all_tasks_blocked()
            requests.start_soon(sockets.read_while, pair.descriptor, pair.read)
            await trio.testing.wait_all_tasks_blocked()
            services.cancel_scope.cancel()
        assert not sockets.is_running
        assert not pair.got


async def test_an_error_leaves_no_cycle_behind() -> None:
    async with reading() as (sockets, [pair], _):
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
                await sockets.read_while(pair.descriptor, fail)

        pair.theirs.send(b"x")
        gc.disable()
        try:
            await read()
            await trio.testing.wait_all_tasks_blocked()
            assert errors[0]() is None
        finally:
            gc.enable()


async def test_it_says_whether_anybody_would_read() -> None:
    sockets = ReadySockets()
    assert not sockets.is_running
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        await trio.testing.wait_all_tasks_blocked()
        assert sockets.is_running
        nursery.cancel_scope.cancel()
    assert not sockets.is_running
