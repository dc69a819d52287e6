"""Two ways for one task to tell another something, both synchronous for the teller."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False)
class Verdict(Generic[T]):
    """A question with one answer. The first answer counts; later ones change nothing."""

    _told: trio.Event = attrs.field(factory=trio.Event, init=False)
    _answers: list[T] = attrs.field(factory=list, init=False)

    def give(self, answer: T) -> bool:
        """Answer the question; False if it was answered already."""
        if self._answers:
            return False
        self._answers.append(answer)
        self._told.set()
        return True

    @property
    def answer(self) -> T | None:
        """The answer, or None as long as there is none."""
        return self._answers[0] if self._answers else None

    async def wait(self) -> T:
        """The answer, once there is one."""
        await self._told.wait()
        return self._answers[0]


@attrs.define(eq=False)
class Changes:
    """Something that changes; watchers see the latest state, not every step.

    ``ordinal`` counts the changes, so a watcher that was busy knows it missed some.
    """

    ordinal: int = attrs.field(default=0, init=False)
    _event: trio.Event = attrs.field(factory=trio.Event, init=False)

    def notify(self) -> None:
        self.ordinal += 1
        self._event.set()
        self._event = trio.Event()

    async def wait_beyond(self, ordinal: int) -> int:
        """Wait until the count exceeds ``ordinal``; returns the newest count."""
        while self.ordinal <= ordinal:
            await self._event.wait()
        return self.ordinal


async def wait_any(*events: trio.Event) -> None:
    """Return when one of these events is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel(reason="one of them happened")

        for event in events:
            nursery.start_soon(wait, event)
