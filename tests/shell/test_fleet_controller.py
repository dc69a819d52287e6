"""The desired fleet comes true, host by host, on a mock clock."""

from __future__ import annotations

import random

import pytest
import trio
from fleet_world import Manners, fleet_world, phase, spec, until, until_served
from trio.testing import MockClock

from paddler_trio.balancer.fleet.placed_hosts import FORGET_S
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts, rollouts_document
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.wire.paddler.desired_state import LocalToAgent
from paddler_trio.wire.trio.fleet_state import DEFAULT, OnFailure, RolloutSpec
from paddler_trio.wire.trio.replica_range import ReplicaRange

A = LocalToAgent("a")


async def test_the_first_state_is_loaded_everywhere_at_once(autojump_clock: MockClock) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        began_s = trio.current_time()
        await until_served(world, "a")
        assert trio.current_time() - began_s < 2 * Manners().load_s
        assert phase(world) is RolloutPhase.COMPLETE
        assert world.free_slots() == 12


async def test_other_weights_roll_with_a_canary_and_no_stream_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        await until_served(world, "a")
        answers: list[tuple[list[str], object]] = []
        least = 12

        async def ask() -> None:
            answers.append(await world.request())

        async def watch() -> None:
            nonlocal least
            while True:
                least = min(least, world.free_slots())
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as requests:
                for _ in range(8):
                    requests.start_soon(ask)
                await trio.sleep(1)
                await world.apply(spec("b"))
                for _ in range(40):
                    requests.start_soon(ask)
                    await trio.sleep(1)
            await until_served(world, "b")
            nursery.cancel_scope.cancel()
        assert phase(world) is RolloutPhase.COMPLETE
        assert [problem for _, problem in answers if problem] == []
        assert all(len(set(models)) == 1 and len(models) == 10 for models, _ in answers)
        assert {models[0] for models, _ in answers} == {"a", "b"}
        assert least >= 8, "one host at a time"
        assert world.keeper.good[DEFAULT].spec == spec("b")


async def test_a_canary_that_cannot_load_rolls_back_and_the_good_state_is_desired_again(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=3, manners=Manners(outcomes={"b": "fails"})) as world:
        await until_served(world, "a")
        await world.apply(spec("b"))
        await until(world, lambda: phase(world) is RolloutPhase.ROLLED_BACK, 100)
        await until(world, lambda: world.keeper.current.state.deployments == (spec("a"),), 10)
        await until_served(world, "a")
        assert sum(host.instances[DEFAULT].loads for host in world.hosts.values()) <= 4
        assert "b cannot be loaded" in world.keeper.current.note


async def test_a_deployment_beside_default_gets_instances_and_its_requests(
    autojump_clock: MockClock,
) -> None:
    coder = spec("c", name="coder", replicas=ReplicaRange(1, 1), where=("gpu=yes",))
    async with fleet_world(spec("a"), coder) as world:
        await world.host("h1")
        await world.host("h2", labels={"gpu": "yes"})
        await until_served(world, "a")
        await until_served(world, "c", "coder")
        assert list(world.served("coder")) == ["h2"]
        models, problem = await world.request("coder")
        assert (set(models), problem) == ({"c"}, None)
        await world.apply(spec("a"))
        await until(world, lambda: not world.served("coder"), 60)


async def test_on_demand_the_first_request_loads_and_idleness_unloads(
    autojump_clock: MockClock,
) -> None:
    rare = spec("r", name="rare", replicas=ReplicaRange(0, 1), idle_ttl=60)
    async with fleet_world(spec("a"), rare, hosts=1) as world:
        await until_served(world, "a")
        await trio.sleep(30)
        assert not world.served("rare")
        began_s = trio.current_time()
        models, problem = await world.request("rare")
        assert (set(models), problem) == ({"r"}, None)
        assert trio.current_time() - began_s < 3 + 5 + 2, "its load, its tokens, and little more"
        await trio.sleep(50)
        assert world.served("rare")
        await trio.sleep(20)
        assert not world.served("rare")


async def test_two_deployments_of_the_same_state_share_a_host(autojump_clock: MockClock) -> None:
    twin = spec("a", name="twin", replicas=ReplicaRange(1, 1))
    async with fleet_world(spec("a"), twin, hosts=1) as world:
        await until_served(world, "a")
        await until_served(world, "a", "twin")


async def test_other_weights_for_two_deployments_of_the_same_hosts(
    autojump_clock: MockClock,
) -> None:
    """While the one loads, what it takes is not known: that is no reason against the other."""
    before, after = (spec("a"), spec("c", name="coder")), (spec("b"), spec("d", name="coder"))
    async with fleet_world(*before, hosts=2, manners=Manners(memory_bytes=1000)) as world:
        await until_served(world, "a")
        await until_served(world, "c", "coder")
        await world.apply(*after)
        await until_served(world, "b")
        await until_served(world, "d", "coder")
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)


async def test_a_balancer_that_is_killed_goes_on_with_the_rollout(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        await until_served(world, "a")
        for moment_s in (0.5, 4.0, 9.0, 15.0):
            target = f"b{moment_s}"
            await world.apply(spec(target))
            await trio.sleep(moment_s)
            world.kill_balancer()
            await trio.sleep(2)
            await world.start_balancer()
            await until_served(world, target)
            await until(world, lambda: phase(world) is RolloutPhase.COMPLETE, 60)
        loads = [host.instances[DEFAULT].loads for host in world.hosts.values()]
        assert loads == [5, 5, 5], "nothing is loaded twice"


async def test_instances_survive_a_restart_of_the_balancer(autojump_clock: MockClock) -> None:
    coder = spec("c", name="coder", replicas=ReplicaRange(1, 1))
    async with fleet_world(spec("a"), coder, hosts=2) as world:
        await until_served(world, "c", "coder")
        (where,) = world.served("coder")
        world.kill_balancer()
        await trio.sleep(1)
        await world.start_balancer()
        await trio.sleep(30)
        assert list(world.served("coder")) == [where]
        assert world.hosts[where].instances["coder"].loads == 1


async def test_a_host_that_is_lost_has_its_replica_elsewhere(autojump_clock: MockClock) -> None:
    coder = spec("c", name="coder", replicas=ReplicaRange(1, 1))
    async with fleet_world(spec("a"), coder, hosts=2) as world:
        await until_served(world, "c", "coder")
        (where,) = world.served("coder")
        world.hosts[where].kill()
        await trio.sleep(40)
        assert world.served("coder") == {({"h1", "h2"} - {where}).pop(): "c"}


async def test_a_connection_that_breaks_for_a_moment_moves_nothing(
    autojump_clock: MockClock,
) -> None:
    coder = spec("c", name="coder", replicas=ReplicaRange(1, 1))
    async with fleet_world(spec("a"), coder, hosts=2) as world:
        await until_served(world, "c", "coder")
        (where,) = world.served("coder")
        world.hosts[where].cut()
        await trio.sleep(40)
        assert list(world.served("coder")) == [where]
        assert [host.instances[DEFAULT].loads for host in world.hosts.values()] == [1, 1]


async def test_a_newer_state_supersedes_a_rollout(autojump_clock: MockClock) -> None:
    async with fleet_world(spec("a"), hosts=3) as world:
        await until_served(world, "a")
        await world.apply(spec("b"))
        await trio.sleep(5)
        await world.apply(spec("c"))
        await until_served(world, "c")
        loads = [host.instances[DEFAULT].loads for host in world.hosts.values()]
        assert sum(loads) <= 3 + 2 + 3, "hosts that had not begun skip to the newest state"


async def test_an_agent_that_is_lost_is_shown_as_gone_under_its_name_and_then_not_at_all(
    autojump_clock: MockClock,
) -> None:
    async with fleet_world(spec("a"), hosts=2) as world:
        await until_served(world, "a")
        world.names["h3"] = "attic"
        await world.host("h3")
        await until_served(world, "a")

        def shown() -> dict[str, str]:
            (rollout,) = rollouts_document(world.controller)["rollouts"]  # type: ignore[misc]  # JSON
            return {each["agent"]: each["phase"] for each in rollout["agents"]}

        assert shown() == {"h1": "serving", "h2": "serving", "attic": "serving"}
        world.hosts["h3"].kill()
        await trio.sleep(FORGET_S / 2)
        assert shown() == {"h1": "serving", "h2": "serving", "attic": "gone"}
        await trio.sleep(FORGET_S)
        assert shown() == {"h1": "serving", "h2": "serving"}


async def test_files_are_fetched_everywhere_before_the_first_host_drains(
    autojump_clock: MockClock,
) -> None:
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a"), hosts=3) as world:
        await until_served(world, "a")
        slow = world.hosts["h3"]
        slow.manners = Manners(fetch_s=50)
        await world.apply(spec(model))
        await trio.sleep(40)
        assert set(world.served().values()) == {"a"}
        assert phase(world) is RolloutPhase.PREFETCHING
        await until_served(world, model)


async def test_a_file_that_is_missing_for_one_host_leaves_the_old_revision_everywhere(
    autojump_clock: MockClock,
) -> None:
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a"), hosts=3) as world:
        await until_served(world, "a")
        world.hosts["h2"].manners = Manners(lacks=frozenset({model}))
        await world.apply(spec(model, rollout=RolloutSpec(progress_deadline_s=60)))
        await until(world, lambda: phase(world) is RolloutPhase.ROLLED_BACK, 300)
        await until_served(world, "a")
        await until(world, lambda: world.keeper.current.revision == 3)
        assert "no https://models.example/b.gguf to fetch" in world.keeper.current.note


async def test_a_rollout_that_paused_by_itself_goes_on_when_the_agent_serves_after_all(
    autojump_clock: MockClock,
) -> None:
    rules = RolloutSpec(min_ready_s=5, on_failure=OnFailure.PAUSE)
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a", rollout=rules), hosts=2) as world:
        await until_served(world, "a")
        for host in world.hosts.values():
            host.manners = Manners(outcomes={model: "fails"})
        await world.apply(spec(model, rollout=rules))
        await until(world, lambda: phase(world) is RolloutPhase.PAUSED)
        assert world.keeper.current.state.deployments == (spec(model, rollout=rules),)
        assert world.free_slots() == 4, "the other one serves the old model"
        for host in world.hosts.values():
            host.manners = Manners()
        (failed,) = (
            host.instances[DEFAULT]
            for host in world.hosts.values()
            if host.instances[DEFAULT].phase == "failed"
        )
        failed.try_again()
        await until_served(world, model)
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)


async def test_files_that_paused_a_rollout_are_asked_for_again_until_they_are_there(
    autojump_clock: MockClock,
) -> None:
    rules = RolloutSpec(min_ready_s=5, on_failure=OnFailure.PAUSE)
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a", rollout=rules), hosts=2) as world:
        await until_served(world, "a")
        for host in world.hosts.values():
            host.manners = Manners(lacks=frozenset({model}))
        await world.apply(spec(model, rollout=rules))
        await until(world, lambda: phase(world) is RolloutPhase.PAUSED)
        reason = world.controller.rollouts[DEFAULT].reason or ""
        assert reason.endswith(f"no {model} to fetch; the next attempt is in 60 s")
        await trio.sleep(59)
        assert phase(world) is RolloutPhase.PAUSED
        await until(world, lambda: phase(world) is RolloutPhase.PREFETCHING, 2)
        await until(world, lambda: phase(world) is RolloutPhase.PAUSED, 10)
        assert set(world.served().values()) == {"a"}
        for host in world.hosts.values():
            host.manners = Manners()
        await until_served(world, model)
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)


async def test_what_an_operator_paused_asks_for_no_files(autojump_clock: MockClock) -> None:
    rules = RolloutSpec(min_ready_s=5, on_failure=OnFailure.PAUSE)
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a", rollout=rules), hosts=2) as world:
        await until_served(world, "a")
        for host in world.hosts.values():
            host.manners = Manners(lacks=frozenset({model}))
        await world.apply(spec(model, rollout=rules))
        await until(world, lambda: phase(world) is RolloutPhase.PREFETCHING)
        await FleetRollouts(world.controller).pause(DEFAULT, author="ops")
        for host in world.hosts.values():
            host.manners = Manners()
        await trio.sleep(600)
        assert phase(world) is RolloutPhase.PAUSED


async def test_an_agent_that_is_busy_or_leaves_has_failed_of_nothing(
    autojump_clock: MockClock,
) -> None:
    model = "https://models.example/b.gguf"
    async with fleet_world(spec("a"), hosts=2) as world:
        await until_served(world, "a")
        host = world.hosts["h2"]
        host.manners = Manners(is_busy=True)
        await world.apply(spec(model))
        await trio.sleep(60)
        assert phase(world) is RolloutPhase.PREFETCHING
        host.manners = Manners()
        await until_served(world, model)


async def test_a_newer_state_ends_the_fetch_of_the_one_before(autojump_clock: MockClock) -> None:
    wrong, right = "https://models.example/wrong.gguf", "https://models.example/right.gguf"
    async with fleet_world(spec("a"), hosts=2) as world:
        await until_served(world, "a")
        for host in world.hosts.values():
            host.manners = Manners(fetch_s=10_000)
        await world.apply(spec(wrong))
        await trio.sleep(10)
        assert all(len(world.controller.knowledge.of(host).fetching) == 1 for host in world.hosts)
        for host in world.hosts.values():
            host.manners = Manners(fetch_s=2)
        await world.apply(spec(right))
        with trio.fail_after(60):
            await until_served(world, right)
        assert not any(world.controller.knowledge.of(host).fetching for host in world.hosts)


async def test_after_the_drain_deadline_others_go_on_with_the_answers(
    autojump_clock: MockClock,
) -> None:
    rules = RolloutSpec(min_ready_s=5, drain_deadline_s=4)
    async with fleet_world(spec("a", rollout=rules), hosts=3) as world:
        await until_served(world, "a")
        world.tokens = 100
        answers: list[tuple[list[str], object]] = []

        async def ask() -> None:
            answers.append(await world.request())

        async with trio.open_nursery() as requests:
            for _ in range(6):
                requests.start_soon(ask)
            await trio.sleep(1)
            began_s = trio.current_time()
            await world.apply(spec("b", rollout=rules))
            await until(world, lambda: "b" in world.served().values())
            assert trio.current_time() - began_s < 4 + Manners().load_s + 1
        assert [problem for _, problem in answers] == [None] * 6
        assert [models for models, _ in answers] == [["a"] * 100] * 6
        await until_served(world, "b")


@pytest.mark.parametrize("outcome", ["hangs", "crashes", "fails"])
async def test_a_load_that_goes_wrong_ends_on_the_old_revision_everywhere(
    outcome: str, autojump_clock: MockClock
) -> None:
    rules = RolloutSpec(min_ready_s=5, progress_deadline_s=30)
    async with fleet_world(spec("a", rollout=rules), hosts=3) as world:
        await until_served(world, "a")
        for host in world.hosts.values():
            host.manners = Manners(outcomes={"b": outcome})
        answers: list[tuple[list[str], object]] = []

        async def ask() -> None:
            answers.append(await world.request())

        async with trio.open_nursery() as requests:
            await world.apply(spec("b", rollout=rules))
            for _ in range(60):
                requests.start_soon(ask)
                await trio.sleep(1)
        await until(world, lambda: world.keeper.current.state.deployments[0].model == A)
        await until_served(world, "a")
        failed = [models for models, problem in answers if problem]
        assert all(set(models) == {"b"} for models in failed), "no other agent has that model"
        assert not failed or outcome == "crashes"
        assert {tuple(sorted(set(models))) for models, _ in answers} <= {("a",), ("b",)}


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_answers_are_of_one_model_and_the_fleet_comes_to_rest(
    seed: int, autojump_clock: MockClock
) -> None:
    """Agents are killed and come back, connections break, the balancer is killed, operators change
    their minds, models turn out to be bad."""
    dice = random.Random(seed)
    rules = RolloutSpec(min_ready_s=2, progress_deadline_s=30)
    manners = Manners(outcomes={"bad1": "fails", "bad2": "crashes", "bad3": "hangs"})
    models = ["b", "c", "d", "bad1", "bad2", "bad3"]
    async with fleet_world(spec("a", rollout=rules), hosts=4, manners=manners) as world:
        await until_served(world, "a")
        answers: list[tuple[list[str], Failure | None]] = []

        async def ask() -> None:
            answers.append(await world.request())

        async with trio.open_nursery() as requests:
            for step in range(40):
                match dice.choice(["wait", "wait", "apply", "kill", "cut", "balancer"]):
                    case "apply":
                        await world.apply(spec(dice.choice(models), rollout=rules))
                    case "kill":
                        world.hosts[dice.choice(sorted(world.hosts))].kill()
                        await world.host(f"new{step}", manners=manners)
                    case "cut":
                        world.hosts[dice.choice(sorted(world.hosts))].cut()
                    case "balancer" if step % 3 == 0:
                        world.kill_balancer()
                        await trio.sleep(dice.uniform(0, 3))
                        await world.start_balancer()
                for _ in range(dice.randrange(4)):
                    requests.start_soon(ask)
                await trio.sleep(dice.uniform(0, 4))
        assert all(len(set(models)) <= 1 for models, _ in answers), "a mixture"
        await world.apply(spec("e", rollout=rules))
        await until_served(world, "e")
        await until(world, lambda: phase(world) is RolloutPhase.COMPLETE)
        assert (await world.request()) == (["e"] * 10, None)
