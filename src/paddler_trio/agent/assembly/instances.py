"""The deployments that an agent serves beside the one of its first link: an instance for each.

    instances
    └─ instance coder        run again when it fails; ends no other one
       ├─ model              as the agent's first: its own desired state, its own engine
       ├─ model cache
       └─ links
          ├─ balancer link
          └─ requests

The list is declarative. One that is new is started; one that is not listed any more, or with other
slots, offers nothing, finishes what it has within the drain timeout, deregisters and ends. The list
stays in force when the link is lost: instances have links of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.instance_tree import InstanceParts, run_instance
from paddler_trio.system.supervise import keep
from paddler_trio.system.synchronization import Changes

log = structlog.get_logger("agent")


class Wanted(Protocol):
    """An instance as the balancer wants it; equal ones are the same."""

    @property
    def deployment(self) -> str: ...


W = TypeVar("W", bound=Wanted)


@attrs.define(eq=False)
class _Running(Generic[W]):
    wanted: W
    stop: trio.Event = attrs.field(factory=trio.Event)
    is_up: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def end(self) -> None:
        """Let it drain; one that waits for its restart ends at once."""
        self.stop.set()
        if not self.is_up:
            self.scope.cancel(reason="it is not wanted any more")


@attrs.define(eq=False)
class Instances(Generic[W]):
    """See the module docstring.

    Args:
      assemble: the parts of an instance, made anew for each of its lives.
    """

    assemble: Callable[[W], InstanceParts]
    _wanted: tuple[W, ...] = attrs.field(default=(), init=False)
    _running: dict[str, _Running[W]] = attrs.field(factory=dict, init=False)
    """By deployment; until it has ended."""
    _changes: Changes = attrs.field(factory=Changes, init=False)

    def __repr__(self) -> str:
        return f"<Instances: {len(self._wanted)} wanted, {len(self._running)} running>"

    @property
    def deployments(self) -> tuple[str, ...]:
        """Those that it runs, or is to run."""
        return tuple(each.deployment for each in self._wanted)

    def want(self, wanted: Sequence[W]) -> None:
        """These and no others, from now on."""
        self._wanted = tuple(wanted)
        self._changes.notify()

    async def run(self, stop: trio.Event) -> None:
        """Own them until ``stop``; returns when all have drained and ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wake_at, stop, name="stop watch")
            while not stop.is_set():
                self._reconcile(nursery)
                await self._changes.wait_beyond(self._changes.ordinal)
            for running in self._running.values():
                running.end()

    async def _wake_at(self, stop: trio.Event) -> None:
        await stop.wait()
        self._changes.notify()

    def _reconcile(self, nursery: trio.Nursery) -> None:
        wanted = {each.deployment: each for each in self._wanted}
        for name, running in self._running.items():
            if wanted.get(name) != running.wanted:
                running.end()
        for name, each in wanted.items():
            if name not in self._running:  # else it starts when the one before has ended
                running = self._running[name] = _Running(each)
                nursery.start_soon(self._keep, running, name=f"instance {name}")

    async def _keep(self, running: _Running[W]) -> None:
        """One instance, until it is not wanted any more."""
        name = running.wanted.deployment

        def crashed(crash: BaseException) -> None:
            running.is_up = False
            log.error("an instance failed", deployment=name, exc_info=crash)
            if running.stop.is_set():
                running.scope.cancel(reason="it was stopping")

        log.info("instance starts", deployment=name)
        try:
            with running.scope:
                await keep(f"instance {name}", Exception, partial(self._live, running), crashed)
        finally:
            del self._running[name]
            self._changes.notify()
        log.info("instance ended", deployment=name)

    async def _live(self, running: _Running[W]) -> None:
        running.is_up = True
        await run_instance(self.assemble(running.wanted), running.stop)
