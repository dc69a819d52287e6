"""Clients of a played fleet that never stop asking, and a watch on the slots that serve them.

Each client asks again as soon as it has its answer, so that streams run and wait in every moment of
a rollout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from fleet_world import FleetWorld

from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

LOOK_S = 0.05


@attrs.define(eq=False)
class Streams:
    """What the clients heard so far.

    ``cut``: answers whose balancer was killed under them, with what was heard before.
    ``least_serving``: the fewest slots that served at any moment, busy or free, by what hosts do
    (and not by what a balancer knows of it).
    """

    world: FleetWorld
    whole: list[list[str]] = attrs.field(factory=list)
    cut: list[list[str]] = attrs.field(factory=list)
    lost: list[tuple[list[str], Failure]] = attrs.field(factory=list)
    least_serving: int = 10**9

    @property
    def mixtures(self) -> list[list[str]]:
        """Answers to which more than one model contributed."""
        heard = [*self.whole, *self.cut, *(models for models, _ in self.lost)]
        return [models for models in heard if len(set(models)) > 1]

    @property
    def models(self) -> set[str]:
        """Those that answered."""
        return {models[0] for models in self.whole}

    async def ask(self) -> None:
        """One client, until cancelled."""
        while True:
            await self.world.is_up.wait()
            balancer = self.world.dispatcher
            models, problem = await self.world.request()
            if problem is None:
                self.whole.append(models)
            elif balancer is not self.world.dispatcher or not self.world.is_up.is_set():
                self.cut.append(models)
            else:
                self.lost.append((models, problem))

    async def watch(self) -> None:
        """The slots, until cancelled."""
        while True:
            serving = sum(
                host.manners.slots
                for host in self.world.hosts.values()
                for instance in [host.instances.get(DEFAULT_DEPLOYMENT)]
                if instance is not None and instance.served is not None
            )
            self.least_serving = min(self.least_serving, serving)
            await trio.sleep(LOOK_S)


@asynccontextmanager
async def streams(world: FleetWorld, clients: int) -> AsyncIterator[Streams]:
    """So many clients from now on; at the end no one asks again, and all answers are heard."""
    heard = Streams(world)
    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(heard.ask)
        nursery.start_soon(heard.watch)
        yield heard
        nursery.cancel_scope.cancel()
