"""Whoever desires something after a rollout turned back gets it: going back overwrites nothing."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from fleet_world import FleetWorld, Manners, fleet_world, spec
from test_fleet_controller import phase, until, until_served
from trio.testing import MockClock

from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.fleet.stored_fleet import StoredFleet
from paddler_trio.errors import StateDatabaseError
from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.wire.paddler.desired_state import LocalToAgent
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, RolloutSpec

SLOW = RolloutSpec(min_ready_s=60)
CODER = DeploymentSpec(name="coder", model=LocalToAgent("c"))


async def half_way(world: FleetWorld) -> None:
    """From ``a`` to ``b``, whose canary serves for a minute first."""
    await until_served(world, "a")
    await world.apply(spec("b", rollout=SLOW))
    await until(world, lambda: "b" in world.served().values())


async def test_what_is_desired_after_an_abort_is_newer_than_going_back(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        await half_way(world)
        await FleetRollouts(world.controller).abort(DEFAULT, author="ann")
        assert world.keeper.current.state.deployments == (spec("a"),)
        assert world.keeper.current.note == "default rolled back: aborted by ann"
        await world.apply(spec("b"))
        revision = world.keeper.current.revision
        await until_served(world, "b")
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)
        assert world.keeper.current.revision == revision


@attrs.define
class SlowDatabase(MemoryDatabase):
    """Something happens while it stores that a rollout went back; once."""

    world: FleetWorld | None = None
    desired: tuple[DeploymentSpec, ...] = ()
    breaks: bool = False

    async def write(self, stored: StoredFleet) -> StoredFleet:
        if self.breaks:
            raise StateDatabaseError("no space left")
        return await MemoryDatabase.write(self, stored)

    async def write_progress(self, stored: StoredFleet) -> StoredFleet:
        phases = {each.phase for each in stored.rollouts.values()}
        world, desired = self.world, self.desired
        if world is not None and "rolled_back" in phases and desired:
            self.desired = ()
            for host in world.hosts.values():
                host.manners.outcomes = {}
            world.nursery.start_soon(world.apply, *desired)
            await trio.testing.wait_all_tasks_blocked()
        return await MemoryDatabase.write(self, stored)


@pytest.mark.parametrize(
    ("desired", "served"),
    [
        ((spec("b", rollout=SLOW),), "b"),
        ((spec("c"),), "c"),
        ((spec("b"), CODER), "a"),
        ((CODER,), None),
    ],
    ids=["the same weights once more", "other weights", "another deployment", "it is gone"],
)
async def test_what_is_desired_while_a_rollback_is_stored_is_not_overwritten(
    desired: tuple[DeploymentSpec, ...], served: str | None, autojump_clock: MockClock
) -> None:
    async with fleet_world(spec("a"), hosts=3, manners=Manners(outcomes={"b": "fails"})) as world:
        await until_served(world, "a")
        database = SlowDatabase()
        await database.write(await world.keeper.database.read())
        world.keeper.database = database
        database.world, database.desired = world, desired
        await world.apply(spec("b"))
        await until(world, lambda: not database.desired)
        wanted = {each.model for each in desired}
        if served == "a":  # gone back to
            wanted = {LocalToAgent("a"), CODER.model}
        await until(
            world, lambda: {s.model for s in world.keeper.current.state.deployments} == wanted
        )
        await until_served(world, served) if served else await until_served(world, "c", "coder")
        await until(
            world,
            lambda: phase(world) in (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK, None),
        )
        assert {s.model for s in world.keeper.current.state.deployments} == wanted
        assert (world.keeper.current.author == "a rollout") == (served == "a")


async def test_an_abort_that_cannot_be_stored_goes_back_all_the_same(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        database = SlowDatabase()
        await until_served(world, "a")
        await database.write(await world.keeper.database.read())
        world.keeper.database = database
        await half_way(world)
        database.breaks = True
        with pytest.raises(StateDatabaseError):
            await FleetRollouts(world.controller).abort(DEFAULT, author="ann")
        await until_served(world, "a")
        assert phase(world) is RolloutPhase.ABORTED
