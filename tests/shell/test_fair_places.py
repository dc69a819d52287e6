"""Places are held by no more than there are, by clients in turns, and by none that has left."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.scheduler.dispatch.fair_order import FairOrder, Place, Priority, RequestKey
from paddler_trio.system.fair_places import FairPlaces


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
    assert here.held == ["holder", "a", "b", "b", "b", "b", "b"]


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


@attrs.define
class Model:
    """What the places have to do, said in the plainest way: look at everybody that waits."""

    limit: int
    share: int
    waiting: list[tuple[Place, str, int]] = attrs.field(factory=list)
    holding: list[tuple[str, int]] = attrs.field(factory=list)
    order: FairOrder = attrs.field(factory=FairOrder)

    def ask(self, client: str, number: int) -> None:
        place = self.order.place(RequestKey(number), client=client, priority=Priority.NORMAL)
        self.waiting.append((place, client, number))
        self.grant()

    def leave(self, client: str, number: int) -> None:
        if (client, number) in self.holding:
            self.holding.remove((client, number))
        else:
            tags = {n: p[0] - Priority.NORMAL.value for p, of, n in self.waiting if of == client}
            self.waiting = [each for each in self.waiting if each[2] != number]
            own = tags.pop(number)
            self.order.gave_up(client, own, max(tags.values(), default=None))
        self.grant()

    def grant(self) -> None:
        while len(self.holding) < self.limit:
            held = Counter(client for client, _ in self.holding)
            may = [each for each in self.waiting if held[each[1]] < self.share]
            if not may:
                return
            place, client, number = min(may)
            self.waiting.remove((place, client, number))
            self.order.granted(place, Priority.NORMAL)
            self.holding.append((client, number))


@given(
    limit=st.integers(1, 4),
    share=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from("aaabc"), st.integers(0, 2)), max_size=40),
)
def test_it_is_always_the_turn_of_whom_the_plain_model_says(
    limit: int, share: int, steps: list[tuple[str, int]]
) -> None:
    """Clients ask, and what waits or holds leaves."""

    async def run() -> None:
        model, here = Model(limit, share), FairPlaces(limit, share)
        scopes: dict[tuple[str, int], trio.CancelScope] = {}
        holding: list[tuple[str, int]] = []

        async def hold(own: tuple[str, int], scope: trio.CancelScope) -> None:
            with scope:
                async with here.held_by(own[0]):
                    holding.append(own)
                    try:
                        await trio.sleep_forever()
                    finally:
                        holding.remove(own)

        async with trio.open_nursery() as nursery:
            for number, (client, kind) in enumerate(steps):
                if kind and scopes:
                    own = list(scopes)[number % len(scopes)]
                    scopes.pop(own).cancel()
                    model.leave(*own)
                else:
                    own = client, number
                    scopes[own] = trio.CancelScope()
                    nursery.start_soon(hold, own, scopes[own])
                    model.ask(*own)
                await wait_all_tasks_blocked()
                assert sorted(holding) == sorted(model.holding)
            nursery.cancel_scope.cancel()

    trio.run(run)


async def test_a_place_costs_the_same_among_thousands_of_clients() -> None:
    """Counted in comparisons of turns, of which a look at everybody would take one for each."""
    compared = 0

    class Number(int):
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)  # type: ignore[call-overload]

    places = FairPlaces(1, 1)
    places._numbers = map(Number, itertools.count())  # type: ignore[assignment]
    most, granted = 1000, 0

    async def ask(client: str) -> None:
        nonlocal granted
        async with places.held_by(client):
            granted += 1

    async with trio.open_nursery() as nursery, places.held_by("first"):
        for number in range(most):
            nursery.start_soon(ask, f"client {number}")
        await wait_all_tasks_blocked()
        compared = 0
    assert granted == most
    assert compared < 60 * most
