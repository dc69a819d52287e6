"""A model that answers, as its requests see it, and how many of them use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from paddler_trio.agent.engine_process import EngineProcess
from paddler_trio.agent.preparation import Preparation
from paddler_trio.nursery_tree.synchronization import Changes


@attrs.define(eq=False)
class Uses:
    """How many requests are bound to one engine: from before they are prepared for it until
    nothing of them is left there."""

    count: int = attrs.field(default=0, init=False)
    _changes: Changes = attrs.field(factory=Changes, init=False)

    @contextmanager
    def one(self) -> Iterator[None]:
        """One use, for the length of the block."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            self._changes.notify()

    async def wait_none(self) -> None:
        """Return when there is none."""
        ordinal = self._changes.ordinal
        while self.count:
            ordinal = await self._changes.wait_beyond(ordinal)


@attrs.frozen(eq=False)
class Serving:
    """The preparation of requests and the living engine. A request keeps the one it began with,
    whatever is put in force meanwhile."""

    preparation: Preparation
    engine: EngineProcess
    uses: Uses = attrs.field(factory=Uses)
