"""Every fault in every part of a rollout, under streams: what docs/fleet.md promises of each.

0 streams lost, 0 answers of two models, never fewer slots than the rules and the fault itself
leave, and one revision everywhere in the end. The same faults of real processes are in
tests/integration/test_rolling_changes.py and test_rollout_faults.py.
"""

from __future__ import annotations

from itertools import product

import attrs
import pytest
import trio
from fleet_world import FleetWorld, Manners, fleet_world, spec
from running_streams import Streams, streams
from trio.testing import MockClock

from paddler_trio.scheduler.fleet.fleet_values import RolloutPhase
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, RolloutSpec

HOSTS = 3
SLOTS = 4
CLIENTS = 16
"""More than there are slots: the others wait, no longer than they may when a host is away."""
RULES = RolloutSpec(min_ready_s=4, progress_deadline_s=30)
FETCHED = "https://models.example/b.gguf"
MANNERS = Manners(probe_s=1.0)
WITHIN_S = 400.0


def wanted(model: str) -> DeploymentSpec:
    return spec(model, rollout=RULES)


async def until_phase(world: FleetWorld, *phases: RolloutPhase) -> None:
    """The rollout from the first model to another one is in one of these."""
    first = wanted("a").digest
    with trio.fail_after(WITHIN_S):
        while True:
            rollout = world.controller.rollouts.get(DEFAULT)
            if rollout is not None and rollout.target != first and rollout.phase in phases:
                return
            await trio.sleep(0.01)


async def until_instance(world: FleetWorld, phase: str) -> str:
    """A host is in this phase on its way to ``FETCHED``; which one."""
    target = wanted(FETCHED).digest
    with trio.fail_after(WITHIN_S):
        while True:
            for name, host in world.hosts.items():
                instance = host.instances[DEFAULT]
                if instance.wanted_digest == target and instance.phase == phase:
                    return name
            await trio.sleep(0.01)


async def until_at_rest(world: FleetWorld, model: str, *, hosts: int = HOSTS) -> None:
    """So many hosts serve ``model``, it is what is desired, and the rollout has ended."""
    ended = (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK)
    with trio.fail_after(WITHIN_S):
        while not (  # noqa: ASYNC110  # hosts, keeper and controller have no event in common
            set(world.served().values()) == {model}
            and len(world.hosts) == hosts
            and world.keeper.current.state.deployments == (wanted(model),)
            and (rollout := world.controller.rollouts.get(DEFAULT)) is not None
            and rollout.phase in ended
        ):
            await trio.sleep(0.05)


def check(heard: Streams, *, hosts_lost: int = 0) -> None:
    """What holds whatever went wrong."""
    assert heard.mixtures == []
    assert heard.lost == []
    assert heard.models <= {"a", FETCHED, "c"}
    rules_leave = HOSTS - RULES.max_unavailable
    assert heard.least_serving >= (rules_leave - hosts_lost) * SLOTS


MODEL_FAULTS = {
    "a file that is missing for one of three": ("missing", 1),
    "a file that is missing for all": ("missing", HOSTS),
    "a corrupt file on one of three, or no memory to load it": ("fails", 1),
    "a corrupt file, or no memory to load it": ("fails", HOSTS),
    "an engine that dies at its first decode on one of three": ("dies", 1),
    "an engine that dies at its first decode": ("dies", HOSTS),
    "an engine that hangs while it loads on one of three": ("hangs", 1),
    "an engine that hangs while it loads": ("hangs", HOSTS),
}


@pytest.mark.parametrize("loads_beside", [False, True])
@pytest.mark.parametrize("fault", MODEL_FAULTS)
async def test_a_model_that_cannot_be_served_costs_no_stream_and_the_old_one_is_served_everywhere(
    fault: str, loads_beside: bool, autojump_clock: MockClock
) -> None:
    outcome, hosts = MODEL_FAULTS[fault]
    good = attrs.evolve(MANNERS, loads_beside=loads_beside)
    async with fleet_world(wanted("a"), hosts=HOSTS, manners=good) as world:
        await until_at_rest(world, "a")
        for number in range(HOSTS, HOSTS - hosts, -1):  # the last ones, so not the canary if one
            bad = attrs.evolve(good, outcomes={FETCHED: outcome})
            world.hosts[f"h{number}"].manners = bad
        async with streams(world, CLIENTS) as heard:
            await trio.sleep(1)
            await world.apply(wanted(FETCHED))
            await until_phase(world, RolloutPhase.ROLLED_BACK)
            await until_at_rest(world, "a")
        check(heard)


@pytest.mark.parametrize("loads_beside", [False, True])
async def test_a_template_that_does_not_compile_costs_nothing(
    loads_beside: bool, autojump_clock: MockClock
) -> None:
    template = ChatTemplate("{% if %}")
    manners = attrs.evolve(
        MANNERS, loads_beside=loads_beside, broken_templates=frozenset({template.content})
    )
    async with fleet_world(wanted("a"), hosts=HOSTS, manners=manners) as world:
        await until_at_rest(world, "a")
        async with streams(world, CLIENTS) as heard:
            await trio.sleep(1)
            await world.apply(attrs.evolve(wanted("a"), template=template.content))
            await until_phase(world, RolloutPhase.ROLLED_BACK)
            await until_at_rest(world, "a")
        check(heard)
        assert [host.instances[DEFAULT].loads for host in world.hosts.values()] == [1] * HOSTS


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    ("phase", "loads_beside"),
    [
        ("draining", False),  # who loads beside does not drain
        *product(["fetching", "loading", "probing", "serving", "rolling"], [False, True]),
    ],
)
async def test_an_agent_that_is_killed_costs_no_stream_and_the_new_model_is_served_everywhere(
    phase: str, returns: bool, loads_beside: bool, autojump_clock: MockClock
) -> None:
    manners = attrs.evolve(MANNERS, loads_beside=loads_beside)
    async with fleet_world(wanted("a"), hosts=HOSTS, manners=manners) as world:
        await until_at_rest(world, "a")
        async with streams(world, CLIENTS) as heard:
            await trio.sleep(1)
            await world.apply(wanted(FETCHED))
            if phase == "fetching":
                await until_phase(world, RolloutPhase.PREFETCHING)
                victim = "h2"
            else:
                victim = await until_instance(world, "serving" if phase == "rolling" else phase)
            if phase in ("serving", "rolling"):
                await trio.sleep(1)  # it has streams of the new model
            if phase == "rolling":
                await until_phase(world, RolloutPhase.ROLLING)
                await trio.sleep(1)
            world.hosts[victim].kill()
            if returns:
                await trio.sleep(2)
                await world.host(victim, manners=manners)
            await until_at_rest(world, FETCHED, hosts=HOSTS if returns else HOSTS - 1)
        is_on_its_turn = phase in ("draining", "loading", "probing")
        check(heard, hosts_lost=0 if is_on_its_turn and returns else 1)


@pytest.mark.parametrize("loads_beside", [False, True])
@pytest.mark.parametrize("phase", ["prefetching", "canary", "rolling", "rolling_back", "complete"])
async def test_a_balancer_that_is_killed_goes_on_and_loses_only_what_its_clients_were_reading(
    phase: str, loads_beside: bool, autojump_clock: MockClock
) -> None:
    manners = attrs.evolve(MANNERS, loads_beside=loads_beside)
    async with fleet_world(wanted("a"), hosts=HOSTS, manners=manners) as world:
        await until_at_rest(world, "a")
        if phase == "rolling_back":
            bad = attrs.evolve(manners, outcomes={FETCHED: "dies"})
            world.hosts["h3"].manners = bad
        async with streams(world, CLIENTS) as heard:
            await trio.sleep(1)
            await world.apply(wanted(FETCHED))
            await until_phase(world, RolloutPhase(phase))
            await trio.sleep(0.7)
            world.kill_balancer()
            await trio.sleep(2)
            await world.start_balancer()
            await until_at_rest(world, "a" if phase == "rolling_back" else FETCHED)
        check(heard)
        assert len(heard.cut) <= CLIENTS


@pytest.mark.parametrize("phase", ["prefetching", "canary", "rolling", "rolling_back"])
async def test_a_third_revision_in_the_middle_is_what_all_serve_in_the_end(
    phase: str, autojump_clock: MockClock
) -> None:
    async with fleet_world(wanted("a"), hosts=HOSTS, manners=MANNERS) as world:
        await until_at_rest(world, "a")
        if phase == "rolling_back":
            bad = attrs.evolve(MANNERS, outcomes={FETCHED: "dies"})
            world.hosts["h3"].manners = bad
        async with streams(world, CLIENTS) as heard:
            await trio.sleep(1)
            await world.apply(wanted(FETCHED))
            await until_phase(world, RolloutPhase(phase))
            await trio.sleep(0.7)
            await world.apply(wanted("c"))
            await until_at_rest(world, "c")
        check(heard)
