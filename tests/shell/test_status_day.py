"""A day of random events: every sentence of status against what clients met in that moment.

The balancer's dispatcher, keeper and controller are real, agents are played over the protocol, and
time is virtual. At each sample the status is read first; then clients come, and what they meet is
compared with it. One integer decides everything that happens.
"""

from __future__ import annotations

import random
import re
from functools import partial

import attrs
import pytest
import trio
from dispatch_world import WORK
from fleet_world import LIMITS, FleetWorld, Manners, fleet_world, spec
from trio.testing import MockClock, wait_all_tasks_blocked

from effort import examples
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.balancer.fleet.rollout_control import FleetRollouts
from paddler_trio.balancer.status.known_agents import KnownAgents
from paddler_trio.nursery_tree.request import Buffered, Leased, Request
from paddler_trio.nursery_tree.request_endings import BUFFERED_TOO_LONG, OVERFLOW
from paddler_trio.scheduler.truth.deployment_truth import (
    DeploymentFacts,
    truth_of_deployment,
)
from paddler_trio.scheduler.truth.truths import Truth
from paddler_trio.wire.trio.fleet_state import DEFAULT, OnFailure, RolloutSpec
from status_judge import Met, Said, contradictions, faults_in

pytestmark = pytest.mark.thorough

HOSTS = 3
SAMPLES = examples(2500)
"""Of each seed; with all of them the four are 10,000 in more than a day."""
OUTCOMES = {"bad": "fails", "nowhere": "missing", "mortal": "dies", "crashing": "crashes"}
MODELS = ("a", "b", "c", *OUTCOMES)
EVENTS = (
    *("nothing",) * 12,
    *("clients",) * 4,
    *("kill", "start", "start", "cut", "drain", "undrain", "undrain", "apply", "good", "wait"),
)


@attrs.define(eq=False)
class LongClient:
    """A client that waits for as long as it must, and what status said meanwhile."""

    request: Request
    said: set[str] = attrs.field(factory=set)


@attrs.define(eq=False)
class Day:
    """One world, what happens in it, and what was wrong about it."""

    world: FleetWorld
    dice: random.Random
    known: KnownAgents
    samples: int = 0
    contradictions: list[str] = attrs.field(factory=list)
    seen: set[str] = attrs.field(factory=set)
    """States and sentences, without their numbers."""
    ever: set[str] = attrs.field(factory=set)
    """Hosts that were here."""
    waiting: list[LongClient] = attrs.field(factory=list)
    settled_s: float = 0.0

    @property
    def manners(self) -> Manners:
        beside = self.dice.random() < 0.5
        return Manners(outcomes=OUTCOMES, loads_beside=beside, load_s=self.dice.choice([0.5, 4]))

    async def happen(self) -> None:
        world, dice = self.world, self.dice
        here = sorted(world.hosts)
        match dice.choice(EVENTS):
            case "kill" if here:
                world.hosts[dice.choice(here)].kill()
            case "start":
                away = sorted({f"h{n}" for n in range(1, HOSTS + 1)} - set(here))
                if away:
                    await world.host(dice.choice(away), manners=self.manners)
            case "cut" if here:
                world.hosts[dice.choice(here)].cut()
            case "drain" | "undrain" as order:
                for agent in list(world.dispatcher.agents.values())[: dice.randint(1, HOSTS)]:
                    world.dispatcher.drain_agent(agent, drained=order == "drain")
            case "apply" | "good" as kind:
                model = dice.choice(MODELS if kind == "apply" else MODELS[:3])
                failure = dice.choice([OnFailure.ROLLBACK, OnFailure.PAUSE])
                rules = RolloutSpec(min_ready_s=2, progress_deadline_s=20, on_failure=failure)
                await world.apply(spec(model, rollout=rules))
            case "clients":
                for _ in range(dice.randint(1, 3 * HOSTS)):
                    world.nursery.start_soon(world.request)
            case "wait" if len(self.waiting) < 3:
                request = world.dispatcher.submit("waits", WORK)
                world.nursery.start_soon(partial(self.listen, request))
                self.waiting.append(LongClient(request))

    async def listen(self, request: Request) -> None:
        async for _ in request.outbox:
            pass

    # -------------------------------------------------------------- a sample

    def facts(self) -> DeploymentFacts:
        world = self.world
        progress = AgentsProgress(
            world.dispatcher,
            rolling=FleetRollouts(world.controller).facts,
            offline=self.known.offline,
        )
        (facts,) = progress.facts(world.keeper.current.state.deployments)
        return facts

    async def sample(self) -> None:
        """Read the status, then be the clients."""
        facts = self.facts()
        truth = truth_of_deployment(facts)
        self.samples += 1
        self.seen |= {truth.state, re.sub(r"\d+", "N", truth.sentence)}
        self.look_at_long_clients(facts)
        self.look_at_agents(facts, truth.severity)
        said = said_of(facts, truth)
        for words in faults_in(said):
            self.check(False, words)
        most = facts.agents.free + 1
        probes = [self.world.dispatcher.submit(f"probe {n}", WORK) for n in range(most)]
        placed = [isinstance(each.phase, Leased) for each in probes]
        met = "full" if probes[0].failure == OVERFLOW else "answered" if placed[0] else "waits"
        for words in contradictions([said], Met(outcome=met)):
            self.check(False, f"{words}: {facts}")
        free = facts.agents.free
        self.check(placed == [True] * free + [False], f"{placed}, {free} are free: {facts}")
        if facts.meets == "slot":
            self.check((truth.follows == "") == (not facts.waiting), f"{truth.follows}: {facts}")
        busy = sum(
            min(agent.slots_processing, agent.usable_slots)
            for agent in self.world.dispatcher.agents.values()
            if agent.is_accepting
        )
        self.check(busy + facts.agents.free - sum(placed) <= facts.agents.slots, f"busy: {facts}")
        for each in probes:
            each.stop()
        await wait_all_tasks_blocked()

    def look_at_long_clients(self, facts: DeploymentFacts) -> None:
        """One that ended with 504 was never told of a free slot, nor that its wait has an end."""
        for each in list(self.waiting):
            if isinstance(each.request.phase, Buffered):
                each.said.add(facts.meets)
                continue
            self.waiting.remove(each)
            if each.request.failure == BUFFERED_TOO_LONG:
                self.check("slot" not in each.said, f"504, and a slot was free: {each.said}")
                self.check(each.said <= {"nobody", "queue", "hold"}, f"504 after {each.said}")

    def look_at_agents(self, facts: DeploymentFacts, severity: str) -> None:
        """Those that are said to be gone are, and nothing is well while one is."""
        hosts = self.world.hosts
        here = {n for n, h in hosts.items() if h.instances[DEFAULT].connection is not None}
        self.known.follow()
        self.ever |= here
        gone = set(self.known.gone)
        self.check(gone == self.ever - here, f"gone: {gone}, here: {here}, ever: {self.ever}")
        if severity == "ok":
            desired = self.world.keeper.current.state.deployments[0].digest
            served = {hosts[name].instances[DEFAULT].served for name in here}
            self.check(served == {desired}, f"well, and {served} is served: {facts}")
            self.check(here == self.ever, f"well, without {self.ever - here}")

    def check(self, is_so: bool, words: str) -> None:
        if not is_so:
            self.contradictions.append(f"{trio.current_time():.2f} s: {words}")


def said_of(facts: DeploymentFacts, truth: Truth) -> Said:
    """What is said of a deployment, for the judge."""
    return Said(
        state=truth.state,
        severity=truth.severity,
        sentence=truth.sentence,
        follows=truth.follows,
        meets=facts.meets,
        answering=facts.agents.answering,
        free=facts.agents.free,
    )


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.mark.parametrize("seed", range(4))
async def test_status_never_contradicts_what_clients_meet(
    seed: int, autojump_clock: MockClock
) -> None:
    dice = random.Random(seed)
    rules = RolloutSpec(min_ready_s=2, progress_deadline_s=20)
    async with fleet_world(spec("a", rollout=rules), hosts=HOSTS) as world:
        day = Day(world, dice, KnownAgents(world.dispatcher))
        began_s = trio.current_time()
        while day.samples < SAMPLES:
            await day.happen()
            await trio.sleep(dice.choice([0.0, 0.1, 0.7, 3.0, 12.0, 40.0]))
            await wait_all_tasks_blocked()
            await day.sample()
        assert not day.contradictions, "\n".join(day.contradictions)
        assert trio.current_time() - began_s > SAMPLES * 24 * 3600 / 10_000
        states = {"serving", "changing", "partly", "loading", "failed", "drained"}
        assert day.seen >= states, f"never seen: {states - day.seen}"
    assert LIMITS.max_buffered > 0
