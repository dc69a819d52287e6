"""Hosts say whether they would go on serving while they load, and a rollout relies on it."""

from __future__ import annotations

import trio
from fleet_world import SLOTS, FleetWorld, Manners, fleet_world, spec
from trio.testing import MockClock

from paddler_trio.balancer.fleet.rollout_control import rollouts_document
from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.scheduler.fleet.rollout_orders import aborted
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, RolloutSpec

ROOM = Manners(loads_beside=True, probe_s=1)
NO_ROOM = Manners(loads_beside=False, probe_s=1)


def wanted(model: str, *, hosts: int = 1, **fields: object) -> DeploymentSpec:
    """None of the slots of ``hosts`` may be away."""
    rules = RolloutSpec(min_ready_s=2, min_capacity=hosts * SLOTS, progress_deadline_s=500)
    return spec(model, rollout=rules, **fields)


async def until(world: FleetWorld, model: str, phase: RolloutPhase, within_s: float) -> int:
    """The rollout to ``model`` is in this phase; the fewest slots that were there until then."""
    least = 10**9
    with trio.fail_after(within_s):
        while True:
            least = min(least, world.free_slots())
            rollout = world.controller.rollouts.get(DEFAULT)
            target = world.keeper.current.state.deployments[0].digest
            is_there = rollout is not None and rollout.target == target and rollout.phase is phase
            if is_there and set(world.served().values()) == {model}:
                return least
            await trio.sleep(0.05)


def questions(world: FleetWorld) -> int:
    return sum(host.instances[DEFAULT].questions for host in world.hosts.values())


async def test_hosts_with_room_swap_though_no_slot_may_be_away(autojump_clock: MockClock) -> None:
    for hosts in (1, 3):
        async with fleet_world(wanted("a", hosts=hosts), hosts=hosts, manners=ROOM) as world:
            await until(world, "a", RolloutPhase.COMPLETE, 30)
            await world.apply(wanted("b", hosts=hosts))
            least = await until(world, "b", RolloutPhase.COMPLETE, 60)
            assert least == hosts * SLOTS
            assert questions(world) == hosts


async def test_a_host_without_room_is_asked_again_and_begins_when_there_is(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(wanted("a"), hosts=1, manners=NO_ROOM) as world:
        await until(world, "a", RolloutPhase.COMPLETE, 30)
        await world.apply(wanted("b"))
        await trio.sleep(100)
        assert world.served() == {"h1": "a"}
        reason = world.controller.rollouts[DEFAULT].reason
        assert reason == f"min_capacity {SLOTS} leaves no host to swap"
        assert questions(world) == 2, "one a minute"
        world.hosts["h1"].manners = ROOM
        assert await until(world, "b", RolloutPhase.COMPLETE, 90) == SLOTS


async def test_a_host_that_is_broken_does_not_hold_up_one_that_goes_on_serving(
    autojump_clock: MockClock,
) -> None:
    rules = RolloutSpec(min_ready_s=2)
    async with fleet_world(spec("a", rollout=rules), hosts=2, manners=ROOM) as world:
        await until(world, "a", RolloutPhase.COMPLETE, 30)
        broken = world.hosts["h1"].instances[DEFAULT]
        broken.crash("a")
        await world.apply(spec("b", rollout=rules))
        with trio.fail_after(20):
            while world.served()["h2"] != "b":
                assert broken.served is None
                await trio.sleep(0.05)
        await until(world, "b", RolloutPhase.COMPLETE, 30)


async def test_on_the_way_back_hosts_are_asked_about_the_good_model(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(wanted("a", hosts=2), hosts=2, manners=ROOM) as world:
        await until(world, "a", RolloutPhase.COMPLETE, 30)
        await world.apply(wanted("b", hosts=2))
        with trio.fail_after(30):
            while "b" not in world.served().values():  # noqa: ASYNC110  # no event in common
                await trio.sleep(0.05)
        before = questions(world)
        await trio.sleep(2.5)  # the canary has passed
        rollout = aborted(world.controller.rollouts[DEFAULT], now_s=trio.current_time())
        assert rollout is not None
        assert rollout.is_proven
        world.controller.replace_rollout(rollout)
        least, shown = 10**9, []
        with trio.fail_after(30):
            while set(world.served().values()) != {"a"}:
                least = min(least, world.free_slots())
                (document,) = rollouts_document(world.controller)["rollouts"]  # type: ignore[misc]  # JSON
                shown += [agent["phase"] for agent in document["agents"]]
                await trio.sleep(0.05)
        assert least == 2 * SLOTS
        assert {"serving", "loading", "rolled_back"} <= set(shown), "what it does, not what it is"
        assert questions(world) > before


async def test_what_changes_in_place_is_no_question(autojump_clock: MockClock) -> None:
    async with fleet_world(wanted("a"), hosts=1, manners=NO_ROOM) as world:
        await until(world, "a", RolloutPhase.COMPLETE, 30)
        template = ChatTemplate("{{ messages }}").content
        await world.apply(wanted("a", template=template))
        await until(world, "a", RolloutPhase.COMPLETE, 30)
        assert questions(world) == 0
