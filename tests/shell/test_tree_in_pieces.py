"""The running tree made in pieces: the same as the one of a moment, and never long at a time."""

from __future__ import annotations

import itertools
import json

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from paddler_trio.system.printed_tree import PIECE_S, TreeNode, running_tree, running_tree_json


def _names(node: dict) -> list[str]:  # type: ignore[type-arg]  # a tree node as JSON
    return [node["name"], *(name for child in node["children"] for name in _names(child))]


async def _with_children(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(trio.sleep_forever, name=f'child {number} "of" {count}')


async def test_in_pieces_it_is_the_tree_of_a_moment() -> None:
    async with trio.open_nursery() as nursery:
        for count in (0, 1, 12):
            nursery.start_soon(_with_children, count, name=f"parent of {count}")
        await wait_all_tasks_blocked()
        expected: TreeNode = running_tree()
        assert json.loads(await running_tree_json(lambda: 0.0)) == attrs.asdict(expected)
        nursery.cancel_scope.cancel()


async def test_tasks_that_come_and_go_between_pieces_leave_a_whole_tree() -> None:
    """The clock makes every step a piece of its own, and each time a task begins and one ends."""
    ticks = iter(range(10**9))
    scopes: list[trio.CancelScope] = []

    async def short_lived() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await trio.sleep_forever()

    async def change(nursery: trio.Nursery) -> None:
        number = 0
        while True:
            number += 1
            nursery.start_soon(short_lived, name=f"changing {number}")
            if len(scopes) > 20:
                scopes.pop(0).cancel()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_with_children, 50, name="steady")
        nursery.start_soon(change, nursery)
        await trio.lowlevel.checkpoint()
        for _ in range(20):
            names = _names(json.loads(await running_tree_json(lambda: float(next(ticks)))))
            assert len(names) == len(set(names))
            assert sum(name.endswith('"of" 50') for name in names) == 50
        nursery.cancel_scope.cancel()


async def test_a_tree_of_5000_tasks_gives_others_their_turns() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_with_children, 5000, name="many")
        await wait_all_tasks_blocked()
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        before, looks = turns, itertools.count()
        text = await running_tree_json(lambda: next(looks) * PIECE_S / 10)
        assert len(_names(json.loads(text))) >= 5000
        assert turns - before >= next(looks) / 12  # ten looks at the clock are a piece
        nursery.cancel_scope.cancel()
