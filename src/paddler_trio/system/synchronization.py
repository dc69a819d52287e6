"""Ways for one task to inform another, to wait for the first of several, and to be waited for.

To inform is synchronous.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")


@attrs.define(eq=False)
class Future(Generic[T]):
    """A value that is set once. The first one counts; later ones change nothing."""

    _is_set: trio.Event = attrs.field(factory=trio.Event, init=False)
    _values: list[T] = attrs.field(factory=list, init=False)

    def set(self, value: T) -> bool:
        """Set the value; False if there was one already."""
        if self._values:
            return False
        self._values.append(value)
        self._is_set.set()
        return True

    @property
    def is_set(self) -> bool:
        """Return whether there is a value, which may be None."""
        return bool(self._values)

    @property
    def value(self) -> T | None:
        """The value, or None as long as there is none."""
        return self._values[0] if self._values else None

    async def wait(self) -> T:
        """Return the value, once there is one."""
        await self._is_set.wait()
        return self._values[0]


@attrs.define(eq=False)
class Changes:
    """Something that changes; watchers see the latest state, not every step.

    ``ordinal`` counts the changes, so a watcher that was busy knows it missed some.
    """

    ordinal: int = attrs.field(default=0, init=False)
    _watchers: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def notify(self) -> None:
        self.ordinal += 1
        self._watchers.unpark_all()

    async def wait_beyond(self, ordinal: int) -> int:
        """Wait until the count exceeds ``ordinal``; returns the newest count."""
        while self.ordinal <= ordinal:
            await self._watchers.park()
        return self.ordinal


@attrs.define(eq=False)
class ChangedItems(Generic[T]):
    """Items that changed since they were asked for last, each once, in the order of their first
    change: for a reader whose work shall follow what changed, and not what there is."""

    _items: dict[T, None] = attrs.field(factory=dict, init=False)

    def note(self, item: T) -> None:
        self._items[item] = None

    def take(self) -> list[T]:
        """Return all of them; they have not changed from now on."""
        items, self._items = list(self._items), {}
        return items


async def wait_any(*events: trio.Event) -> None:
    """Return when one of these events is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel(reason="one of them happened")

        for event in events:
            nursery.start_soon(wait, event)


async def returns_before(
    ended: trio.Event, wait: Callable[..., Awaitable[None]], *args: object
) -> bool:
    """Wait for ``wait(*args)`` or the event; True if it was the first alone."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await wait(*args)
            nursery.cancel_scope.cancel(reason="it returned")

        nursery.start_soon(watch, name="watch")
        await ended.wait()
        nursery.cancel_scope.cancel(reason="it ended")
    return not ended.is_set()


async def wait_first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of them does; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def watch(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel(reason="another one returned")

        for wait in waits:
            nursery.start_soon(watch, wait, name="watch")


async def run_in(nursery: trio.Nursery, run: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Run ``run()`` as a child of a nursery elsewhere in the tree, and wait for it.

    A connection that turns out to be an agent's belongs among the agents, and its end must still be
    the end of the connection: cancelling either of the two tasks ends both.

    Args:
      name: of the child in the printed tree.

    Raises:
      Whatever ``run`` raised. The nursery is not concerned by it.

    Cancellation: the child is cancelled, too, and waited for.
    """
    has_ended = trio.Event()
    scope = trio.CancelScope()
    raised: list[Exception] = []

    async def child() -> None:
        try:
            with scope:
                await run()
        except Exception as error:  # noqa: BLE001  # raised again in the task that waits
            raised.append(error)
        except BaseExceptionGroup as group:  # an error, and the cancellation of this nursery
            errors, cancelled = group.split(Exception)
            if errors is not None:
                raised.append(errors)
            if cancelled is not None:
                raise cancelled from None
        finally:
            has_ended.set()

    nursery.start_soon(child, name=name)
    try:
        await has_ended.wait()
    finally:
        scope.cancel(reason="the task that waits for it is cancelled")
        with trio.CancelScope(shield=True):  # as a nursery waits for the children it cancelled
            await has_ended.wait()
    if raised:
        raise raised[0]
