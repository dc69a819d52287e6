"""All that only one balancer may run and write, and that it lets go of for another one.

    state owner
    ├─ fleet                 plans, and sends agents what they shall serve
    ├─ model store           a child process, started again under a restart budget
    └─ …                     agents' credentials, key usage, StatsD

It lets go in this order: changes are refused, those that run end, the tasks end and write what they
have, and from then on a write is an error. All of it can be taken back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import attrs
import trio

from paddler_trio.system.printed_tree import explain_this_task

Run: TypeAlias = Callable[[], Awaitable[None]]
"""A task that runs until it is cancelled."""


class Changes(Protocol):
    """All that clients change."""

    async def hold(self) -> None:
        """Refuse them from now on; returns when none runs any more."""
        ...

    def resume(self) -> None:
        """Let them in again."""
        ...


class Store(Protocol):
    """Something that is written to a file."""

    async def freeze(self) -> None:
        """A write from now on is an error; returns when none runs any more."""
        ...

    def thaw(self) -> None: ...


@attrs.define(eq=False)
class StateOwner:
    """See the module docstring.

    Args:
      services: by the names of their tasks.
    """

    services: Mapping[str, Run]
    changes: Changes | None = None
    stores: Sequence[Store] = ()
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _resumed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __repr__(self) -> str:
        state = "let go" if self._ended.is_set() else "owned"
        return f"<StateOwner of {len(self.services)} services: {state}>"

    async def run(self) -> None:
        """Run the services whenever the state is owned, until cancelled."""
        explain_this_task(lambda: repr(self))
        while True:
            self._ended, self._resumed = trio.Event(), trio.Event()
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    for name, run in self.services.items():
                        nursery.start_soon(run, name=name)
                    await trio.sleep_forever()
            self._ended.set()
            await self._resumed.wait()

    async def release(self) -> None:
        """Let go of the state; nothing of it is written from the return on.

        Cancellation: it is to be resumed.
        """
        if self.changes is not None:
            await self.changes.hold()
        self._resumed = trio.Event()  # one that was broken off may have been taken back unheard
        self._scope.cancel(reason="another process takes over")
        await self._ended.wait()
        for store in self.stores:
            await store.freeze()

    def resume(self) -> None:
        """Own it again."""
        for store in self.stores:
            store.thaw()
        self._resumed.set()
        if self.changes is not None:
            self.changes.resume()
