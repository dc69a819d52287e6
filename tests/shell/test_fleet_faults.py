"""The fleet's controller when something breaks at a bad moment: a link, a disk, itself."""

from __future__ import annotations

import attrs
import pytest
import trio
from dispatch_world import world as dispatch_world
from fleet_world import (
    FleetWorld,
    Manners,
    PlayedInstance,
    fleet_world,
    phase,
    spec,
    until,
    until_served,
)
from trio.testing import MockClock

from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_routes import RolloutRefusedError
from paddler_trio.balancer.fleet.placed_instance import PlacedInstance, State
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.fleet.stored_fleet import MAX_HISTORY, ROLLOUT, StoredFleet
from paddler_trio.errors import StateDatabaseError
from paddler_trio.nursery_tree.agent_kinds import PADDLER
from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.wire.paddler.desired_state import LocalToAgent
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus
from paddler_trio.wire.trio.fleet_state import DEFAULT, OnFailure, RolloutSpec
from paddler_trio.wire.trio.trio_link import Answer

QUICK = RolloutSpec(min_ready_s=2, max_unavailable=1)


class FailingDisk(MemoryDatabase):
    """Cannot write the progress of a rollout that is in ``fails_in``, once."""

    fails_in: str | None = None

    async def write_progress(self, stored: StoredFleet) -> StoredFleet:
        if any(rollout.phase == self.fails_in for rollout in stored.rollouts.values()):
            self.fails_in = None
            raise StateDatabaseError("no space left on device")
        return await super().write_progress(stored)


async def test_an_instance_whose_link_is_down_when_it_is_removed_blocks_nothing(
    autojump_clock: MockClock,
) -> None:
    coder = spec("b", name="coder")
    async with fleet_world(spec("a"), coder, hosts=1) as world:
        await trio.sleep(60)
        instance = world.hosts["h1"].instances["coder"]
        assert instance.connection is not None
        instance.connection.scope.cancel()  # and it dials again after a second
        await trio.sleep(0.1)
        await world.apply(spec("a"))
        await trio.sleep(30)
        assert list(world.hosts["h1"].instances) == [DEFAULT]
        await world.apply(spec("z"))
        await trio.sleep(60)
        assert world.served() == {"h1": "z"}


@pytest.mark.parametrize("hosts_over", [1, 2, 3])
async def test_a_restart_in_a_rollout_knows_what_many_revisions_superseded(
    hosts_over: int, autojump_clock: MockClock
) -> None:
    """What is served has left the history by then. It serves on until its hosts have their turn."""
    async with fleet_world(spec("a", rollout=QUICK), hosts=4) as world:
        await trio.sleep(60)
        await world.apply(spec("b", rollout=QUICK))
        await until(world, lambda: list(world.served().values()).count("b") >= hosts_over)
        await until(world, lambda: phase(world) is RolloutPhase.ROLLING)
        for number in range(MAX_HISTORY + 2):
            await world.apply(spec(f"c{number}", rollout=QUICK))
            await trio.sleep(0.01)
        await trio.sleep(0.5)
        world.kill_balancer()
        await trio.sleep(0.5)
        await world.start_balancer()
        await trio.sleep(2)
        free: list[int] = []

        def is_over() -> bool:
            free.append(world.free_slots())
            return set(world.served().values()) == {f"c{MAX_HISTORY + 1}"}

        await until(world, is_over)
        assert min(free) >= 12, "one host of four at a time"


async def test_what_failed_is_not_desired_any_more_though_the_disk_was_full(
    autojump_clock: MockClock,
) -> None:
    disk = FailingDisk()
    async with trio.open_nursery() as nursery:
        world = FleetWorld(nursery, database=disk)
        await world.start_balancer()
        await world.apply(spec("a", rollout=QUICK))
        for number in (1, 2):
            await world.host(f"h{number}", manners=Manners(outcomes={"bad": "fails"}))
        await trio.sleep(60)
        disk.fails_in = RolloutPhase.ROLLED_BACK.value
        await world.apply(spec("bad", rollout=QUICK))
        await trio.sleep(120)
        assert disk.fails_in is None
        desired = world.keeper.find(DEFAULT)
        assert desired is not None
        assert desired.model == LocalToAgent("a")
        assert world.served() == {"h1": "a", "h2": "a"}
        nursery.cancel_scope.cancel()


async def test_what_is_served_becomes_the_good_state_though_the_disk_was_full(
    autojump_clock: MockClock,
) -> None:
    disk = FailingDisk()
    async with trio.open_nursery() as nursery:
        world = FleetWorld(nursery, database=disk)
        await world.start_balancer()
        await world.apply(spec("a", rollout=QUICK))
        await world.host("h1")
        await trio.sleep(60)
        await world.apply(spec("b", rollout=QUICK))
        await trio.sleep(1)
        disk.fails_in = RolloutPhase.COMPLETE.value
        await trio.sleep(120)
        assert disk.fails_in is None
        assert world.served() == {"h1": "b"}
        assert world.keeper.good[DEFAULT].spec.model == LocalToAgent("b")
        nursery.cancel_scope.cancel()


async def test_a_host_that_could_not_say_whether_a_model_fits_is_asked_again_after_a_minute(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked_s = PlayedInstance.reply, list[float]()

    def busy_at_first(self: PlayedInstance, answer: Answer) -> None:
        if isinstance(answer.answer, dict) and "fits" in answer.answer:
            asked_s.append(trio.current_time())
            if len(asked_s) <= 4:
                answer = Answer(answer.id, None, "busy", 503)
        real(self, answer)

    monkeypatch.setattr(PlayedInstance, "reply", busy_at_first)
    async with fleet_world(spec("a"), spec("b", name="coder"), hosts=1):
        await trio.sleep(150)
        assert len(asked_s) == 6, "for each of two states at 0, 60 and 120 s"


async def test_what_is_known_of_hosts_does_not_grow_with_the_revisions(
    autojump_clock: MockClock,
) -> None:
    coder = spec("b", name="coder", rollout=QUICK)
    async with fleet_world(spec("a", rollout=QUICK), coder, hosts=1) as world:
        await trio.sleep(30)
        for number in range(2 * MAX_HISTORY):
            await world.apply(spec("a", temperature=0.001 * number, rollout=QUICK), coder)
            await trio.sleep(20)
        knowledge = world.controller.knowledge
        (host,) = world.controller.hosts.known
        known = knowledge.of(host)
        for each in (knowledge.needs, known.on_disk, known.load_s, known.ask_again_s):
            assert len(each) <= MAX_HISTORY + 2
        assert len(knowledge.needs) > MAX_HISTORY / 2, "what may be gone back to is known"


async def test_the_second_of_two_undos_at_once_is_refused_as_any_conflict(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a", rollout=QUICK), hosts=1) as world:
        await trio.sleep(30)
        await world.apply(spec("b", rollout=QUICK))
        await trio.sleep(60)
        rollouts, refused = FleetRollouts(world.controller), list[int]()

        async def undo() -> None:
            try:
                await rollouts.undo(DEFAULT, author="ann")
            except RolloutRefusedError as error:
                refused.append(error.status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(undo)
            nursery.start_soon(undo)
        assert refused == [409]
        assert world.keeper.current.revision == 3


async def test_an_undo_goes_back_to_what_serves_whatever_was_tried_in_vain_since(
    autojump_clock: MockClock,
) -> None:
    paused = attrs.evolve(QUICK, on_failure=OnFailure.PAUSE)
    outcomes = {"bad": "fails", "worse": "fails"}
    async with fleet_world(
        spec("a", rollout=paused), hosts=1, manners=Manners(outcomes=outcomes)
    ) as world:
        await until_served(world, "a")
        for model in outcomes:
            await world.apply(spec(model, rollout=paused))
            await until(world, lambda: phase(world) is RolloutPhase.PAUSED)
        rollouts = FleetRollouts(world.controller)
        await rollouts.undo(DEFAULT, author="ann")
        assert world.keeper.current.state.find(DEFAULT) == spec("a", rollout=paused)
        await until_served(world, "a")
        with pytest.raises(RolloutRefusedError, match="in revision 2 is undone already"):
            await rollouts.undo(DEFAULT, author="ann")


async def test_an_undo_passes_what_was_on_its_way_to_fail_when_another_deployment_was_changed(
    autojump_clock: MockClock,
) -> None:
    before, after = (spec("c", name="coder", temperature=each, rollout=QUICK) for each in (0, 1))
    async with fleet_world(
        spec("a", rollout=QUICK), before, hosts=1, manners=Manners(outcomes={"bad": "fails"})
    ) as world:
        await until_served(world, "a")
        await world.apply(spec("bad", rollout=QUICK), before)
        await world.apply(spec("bad", rollout=QUICK), after)
        await until(world, lambda: world.keeper.current.author == ROLLOUT)
        await until_served(world, "a")
        with pytest.raises(RolloutRefusedError, match="is undone already"):
            await FleetRollouts(world.controller).undo(DEFAULT, author="ann")
        assert world.keeper.current.state.find(DEFAULT) == spec("a", rollout=QUICK)


@pytest.mark.parametrize("on_failure", [OnFailure.PAUSE, OnFailure.ROLLBACK])
async def test_what_failed_before_is_nothing_against_what_comes_next(
    on_failure: OnFailure, autojump_clock: MockClock
) -> None:
    """The agent's newest report is still of the model that it could not load."""
    paused = attrs.evolve(QUICK, on_failure=OnFailure.PAUSE)
    async with fleet_world(
        spec("a", rollout=paused), hosts=1, manners=Manners(outcomes={"bad": "fails"})
    ) as world:
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)
        await world.apply(spec("bad", rollout=paused))
        await until(world, lambda: phase(world) is RolloutPhase.PAUSED)
        await world.apply(spec("c", rollout=attrs.evolve(QUICK, on_failure=on_failure)))
        phases = set()

        def is_over() -> bool:
            for _ in range(3):
                world.controller.look()
            phases.add(phase(world))
            return phase(world) is RolloutPhase.COMPLETE

        await until(world, is_over)
        assert world.served() == {"h1": "c"}
        assert not phases & {RolloutPhase.PAUSED, RolloutPhase.ROLLING_BACK}


async def test_an_agent_of_paddlers_is_judged_by_what_it_says_after_it_was_sent_a_state(
    autojump_clock: MockClock,
) -> None:
    """Its status does not say of which state it speaks."""
    async with dispatch_world() as here:
        agent = here.agent(kind=PADDLER).connection
        placed = PlacedInstance("host", DEFAULT, here.dispatcher)
        placed.connected(agent)
        for model in ("bad", "worse"):
            wanted = spec(model)
            placed.assign(State.of(wanted.agent_state, wanted.extras))
            assert placed.phase == "loading"
            agent.status = attrs.evolve(
                agent.status,
                version=agent.status.version + 1,
                state_application_status=AgentStateApplicationStatus.STUCK,
            )
            assert placed.phase == "failed"
            placed.assign(State.of(wanted.agent_state, wanted.extras))
            assert placed.phase == "failed", "it was sent nothing new"
