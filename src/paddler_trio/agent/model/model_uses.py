"""Marks on the cached files that this agent needs, so that no process removes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import attrs
import trio

from paddler_trio.models.cache.cache_place import UseMark, place_of
from paddler_trio.models.hub.hub_settings import HubSettings


@attrs.define(eq=False)
class ModelUses:
    """Marks of files in use, by the path of the model's first file. The process's end ends the
    marks."""

    hub: HubSettings
    _marks: dict[str, UseMark] = attrs.field(factory=dict, init=False)
    _one: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def hold(self, first: Path) -> None:
        """Mark a model by its first file, for all of its parts; one in no cache needs no mark."""

        def mark() -> UseMark | None:
            place = place_of(first, self.hub)
            return None if place is None else UseMark.hold(place)

        if str(first) not in self._marks:
            held = await trio.to_thread.run_sync(mark, limiter=self._one)
            if held is not None:
                self._marks[str(first)] = held

    async def keep(self, firsts: Iterable[str]) -> None:
        """Give up the marks of all other models."""
        kept = frozenset(firsts)
        over = [self._marks.pop(path) for path in self._marks.keys() - kept]
        if over:
            await trio.to_thread.run_sync(_close, over, limiter=self._one)

    async def touch(self) -> None:
        """Note that these files are in use still."""
        marks = list(self._marks.values())
        await trio.to_thread.run_sync(_touch, marks, limiter=self._one)


def _close(marks: list[UseMark]) -> None:
    for mark in marks:
        mark.close()


def _touch(marks: list[UseMark]) -> None:
    for mark in marks:
        mark.touch()
