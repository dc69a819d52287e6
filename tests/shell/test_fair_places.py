"""Places are held by no more than there are, by clients in turns, and by none that has left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.nursery_tree.fair_places import FairPlaces


@attrs.define(eq=False)
class World:
    """Clients that hold a place for a second, in the order in which they get it."""

    places: FairPlaces
    nursery: trio.Nursery
    held: list[str] = attrs.field(factory=list)
    num_held: int = 0
    most_held: int = 0

    async def asks(self, client: str, count: int = 1) -> list[trio.CancelScope]:
        """One after the other; with the scopes in which they wait and hold."""
        scopes = [trio.CancelScope() for _ in range(count)]
        for scope in scopes:
            self.nursery.start_soon(self._hold, client, scope)
            await wait_all_tasks_blocked()
        return scopes

    async def _hold(self, client: str, scope: trio.CancelScope) -> None:
        with scope:
            async with self.places.held_by(client):
                self.held.append(client)
                self.num_held += 1
                self.most_held = max(self.most_held, self.num_held)
                try:
                    await trio.sleep(1)
                finally:
                    self.num_held -= 1


@asynccontextmanager
async def world(limit: int, share: int) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(FairPlaces(limit, share), nursery)


async def leave(scopes: list[trio.CancelScope]) -> None:
    for scope in scopes:
        scope.cancel()
    await wait_all_tasks_blocked()


async def test_clients_take_turns(autojump_clock: MockClock) -> None:
    async with world(1, 1) as here:
        await here.asks("a", 4)
        await here.asks("b", 2)
        await here.asks("c")
    assert here.held == ["a", "b", "c", "a", "b", "a", "a"]
    assert here.most_held == 1


async def test_nobody_holds_more_than_the_share(autojump_clock: MockClock) -> None:
    async with world(4, 3) as here:
        await here.asks("a", 9)
        assert here.held == ["a"] * 3
        await here.asks("b", 1)
        assert here.held == ["a"] * 3 + ["b"]
    assert here.most_held == 4


@pytest.mark.parametrize("left", [1, 100])
async def test_a_client_pays_for_no_turn_that_it_did_not_get(
    autojump_clock: MockClock, left: int
) -> None:
    async with world(1, 1) as here:
        await here.asks("holder")
        await leave(await here.asks("a", left))
        await here.asks("a")
        await here.asks("b", 5)
    assert here.held == ["holder", "b", "a", "b", "b", "b", "b"]


async def test_who_leaves_part_of_its_queue_keeps_the_rest_in_turn(
    autojump_clock: MockClock,
) -> None:
    async with world(1, 1) as here:
        await here.asks("holder")
        await here.asks("a", 2)
        await leave(await here.asks("a", 50))
        await here.asks("a")
        await here.asks("b", 3)
    assert here.held == ["holder", "a", "b", "a", "b", "a", "b"]


async def test_who_leaves_while_holding_gives_its_place_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with world(1, 1) as here:
        first = await here.asks("a")
        await here.asks("b")
        assert here.held == ["a"]
        await leave(first)
        assert here.held == ["a", "b"]
