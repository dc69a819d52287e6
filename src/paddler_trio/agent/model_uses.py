"""Marks on the cached files that this agent needs, so that no process removes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
import trio

from paddler_trio.models.cache_place import UseMark, place_of
from paddler_trio.models.hub_settings import HubSettings


@attrs.define(eq=False)
class ModelUses:
    """What is marked, by the path of the model's first file. The process's end ends the marks."""

    hub: HubSettings
    _marks: dict[str, list[UseMark]] = attrs.field(factory=dict, init=False)
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def hold(self, files: Iterable[Path]) -> None:
        """Mark all files of a model, first part first; those in no cache need none."""
        paths = tuple(files)

        def mark() -> list[UseMark]:
            places = [place_of(path, self.hub) for path in paths]
            marks = [UseMark.hold(place) for place in places if place is not None]
            return [mark for mark in marks if mark is not None]

        if str(paths[0]) not in self._marks:
            self._marks[str(paths[0])] = await trio.to_thread.run_sync(mark, limiter=self._one)

    async def keep(self, firsts: Iterable[str]) -> None:
        """Give up the marks of all other models."""
        kept = frozenset(firsts)
        over = [mark for path in self._marks.keys() - kept for mark in self._marks.pop(path)]
        if over:
            await trio.to_thread.run_sync(_close, over, limiter=self._one)

    async def touch(self) -> None:
        """They are in use still."""
        marks = [mark for held in self._marks.values() for mark in held]
        await trio.to_thread.run_sync(_touch, marks, limiter=self._one)


def _close(marks: list[UseMark]) -> None:
    for mark in marks:
        mark.close()


def _touch(marks: list[UseMark]) -> None:
    for mark in marks:
        mark.touch()
