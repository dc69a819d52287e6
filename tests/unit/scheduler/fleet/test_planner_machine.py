"""Whatever happens to a fleet, plans keep their promises: a state machine over model agents."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs
import pytest
from fleet_model import Agent, Fleet, Model
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from effort import examples
from paddler_trio.scheduler.fleet.admissible import aim_of
from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    Assign,
    Goal,
    Instance,
    Plan,
    Prefetch,
    Queue,
    Replicas,
    RolloutPhase,
    RolloutRules,
    Unload,
)
from paddler_trio.scheduler.fleet.instance_state import is_available, is_moving, loads_beside
from paddler_trio.scheduler.fleet.rollout_orders import (
    GOING_BACK,
    GOING_ON,
    aborted,
    paused,
    resumed,
)

MODELS = {
    "first": Model(gib=2, weights="a"),
    "template": Model(gib=2, weights="a"),
    "second": Model(gib=2, weights="b", fetches=True),
    "third": Model(gib=1, weights="c"),
    "missing": Model(gib=2, weights="d", fetches=True, cannot_fetch=True),
    "broken": Model(gib=2, weights="e", cannot_load=True),
    "crashing": Model(gib=1, weights="f", crashes=True),
    "hanging": Model(gib=2, weights="g", hangs=True),
    "chat v1": Model(gib=2, weights="h"),
    "chat v2": Model(gib=1, weights="i", fetches=True),
    "code v1": Model(gib=3, weights="j"),
}
OF_DEFAULT = [n for n in MODELS if " " not in n] + ["first", "second", "third", "template"]
OF_CHAT = ["chat v1", "chat v2", "chat v2", "broken"]
NAMES = [DEFAULT, "chat", "code"]
IN_PLACE = {("first", "template"), ("template", "first")}
DEADLINE_S = 120.0
RULES = st.builds(
    RolloutRules,
    max_unavailable=st.integers(1, 2),
    max_unavailable_percent=st.sampled_from([None, 50]),
    min_capacity=st.sampled_from([0, 0, 4]),
    canary=st.integers(0, 2),
    min_ready_s=st.sampled_from([0.0, 10.0]),
    progress_deadline_s=st.just(DEADLINE_S),
    on_failure=st.sampled_from(["rollback", "rollback", "pause"]),
    mixed=st.sampled_from(["allow", "allow", "hold"]),
    prefetch=st.booleans(),
)


class PlannedFleet(RuleBasedStateMachine):
    """Four hosts, the default deployment everywhere, one with fixed replicas, one on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: Iterator[float] = iter(())
        self.fleet = Fleet(models=MODELS, delay_s=lambda: next(self.delays))
        self.done: dict[tuple[str, str, str], int] = {}
        self.failures = 0

    @initialize(
        rules=RULES,
        gib=st.lists(st.integers(3, 8), min_size=1, max_size=4),
        seed=st.integers(0, 999),
        first=st.sampled_from(["first", "third"]),
        replicas=st.sampled_from([Replicas(least=1, most=1), Replicas(least=1, most=3)]),
    )
    def start(
        self, rules: RolloutRules, gib: list[int], seed: int, first: str, replicas: Replicas
    ) -> None:
        dice = random.Random(seed)
        self.delays = iter(lambda: dice.choice((0.5, 2.0, 7.0, 20.0)), None)
        for n, size in enumerate(gib):
            labels = {"gpu": "yes"} if n % 2 == 0 else {}
            self.fleet.join(Agent(id=f"h{n}", gib=size, labels=labels, is_ours=n != 3))
        self.fleet.goals = {
            DEFAULT: Goal(deployment=DEFAULT, target=first, rules=rules, priority=1),
            "chat": Goal(deployment="chat", target="chat v1", replicas=replicas, rules=rules),
            "code": Goal(
                deployment="code",
                target="code v1",
                replicas=Replicas(least=0, most=2),
                where=("gpu=yes",),
                idle_ttl_s=60.0,
            ),
        }
        self.event()
        self.run(60.0)

    def event(self) -> None:
        """Something new has happened: steps may be undone."""
        self.done = {}

    def run(self, seconds: float) -> None:
        """Plan as the caller does: until there is nothing to do, and when something happens."""
        fleet, end_s = self.fleet, self.fleet.now_s + seconds
        while True:
            for _ in range(6):
                if not self.plan().steps:
                    break
            else:
                pytest.fail("there is always something to do")
            times = [fleet.next_due_s(), fleet.last.look_again_s, end_s]
            next_s = min(at for at in times if at is not None)
            if next_s >= end_s:
                break
            fleet.advance(max(0.0, next_s - fleet.now_s))
            self.see_failures()
        fleet.advance(end_s - fleet.now_s)
        self.see_failures()

    def hosts(self) -> list[Agent]:
        return [a for a in self.fleet.agents.values() if not a.is_away]

    @rule(digest=st.sampled_from(OF_DEFAULT))
    def a_new_target(self, digest: str) -> None:
        goals = self.fleet.goals
        goals[DEFAULT] = attrs.evolve(goals[DEFAULT], target=digest)
        self.event()

    @rule(digest=st.sampled_from(OF_CHAT))
    def a_new_target_of_another_deployment(self, digest: str) -> None:
        goals = self.fleet.goals
        goals["chat"] = attrs.evolve(goals["chat"], target=digest)
        self.event()

    @rule(n=st.integers(0, 3), with_engines=st.booleans())
    def a_host_is_lost(self, n: int, with_engines: bool) -> None:
        agent = self.fleet.agents.get(f"h{n}")
        if agent is not None and not agent.is_away:
            self.fleet.lose(agent, with_engines=with_engines)
            self.event()

    @rule()
    def hosts_return(self) -> None:
        for agent in self.fleet.agents.values():
            agent.is_away = False
        self.event()

    @rule(n=st.integers(0, 3))
    def a_host_is_drained_or_not_any_more(self, n: int) -> None:
        agent = self.fleet.agents.get(f"h{n}")
        if agent is not None:
            agent.is_drained = not agent.is_drained
            self.event()

    @rule()
    def the_balancer_restarts(self) -> None:
        self.fleet.restart_balancer()
        self.event()

    @rule(waiting=st.integers(0, 5), wait_s=st.sampled_from([0.0, 6.0, 40.0, 500.0]))
    def requests_wait(self, waiting: int, wait_s: float) -> None:
        queue = Queue(waiting=waiting, oldest_wait_s=wait_s if waiting else 0.0)
        self.fleet.queues = {"code": queue}
        self.event()

    @rule(
        n=st.integers(0, 3), name=st.sampled_from([DEFAULT, "chat", "code"]), busy=st.integers(0, 4)
    )
    def requests_run(self, n: int, name: str, busy: int) -> None:
        agent = self.fleet.agents.get(f"h{n}")
        if agent is not None and name in agent.engines and agent.engines[name].serving:
            self.fleet.set_busy(agent, name, busy)
            self.event()

    @rule(order=st.sampled_from([paused, resumed, aborted]), name=st.sampled_from(NAMES[:2]))
    def the_operator_orders(self, order: object, name: str) -> None:
        rollout = self.fleet.rollouts.get(name)
        if rollout is None:
            return
        changed = order(rollout, now_s=self.fleet.now_s)  # type: ignore[operator]
        if changed is not None:
            self.fleet.rollouts = {**self.fleet.rollouts, name: changed}
            self.event()

    @rule(name=st.sampled_from(NAMES[:2]))
    def the_caller_makes_the_good_state_its_goal(self, name: str) -> None:
        """As it does after every rollback, sooner or later."""
        rollout = self.fleet.rollouts.get(name)
        if rollout is not None and rollout.phase in GOING_BACK and rollout.good is not None:
            goals = self.fleet.goals
            goals[name] = attrs.evolve(goals[name], target=rollout.good)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 11.0, 30.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(seconds)

    @rule(seconds=st.sampled_from([0.5, 11.0]))
    def time_passes_without_a_plan(self, seconds: float) -> None:
        self.fleet.advance(seconds)
        self.see_failures()

    def see_failures(self) -> None:
        """A failure is an event too: it undoes steps."""
        failures = sum(
            (e.phase == "failed") + e.crashes
            for a in self.fleet.agents.values()
            for e in a.engines.values()
        ) + sum(len(a.fetch_failed) for a in self.fleet.agents.values())
        if failures != self.failures:
            self.failures = failures
            self.event()

    def plan(self) -> Plan:
        before = self.fleet.view()
        rollouts = dict(self.fleet.rollouts)
        instances = {h.id: dict(h.instances) for h in before.hosts}
        planned = self.fleet.plan()
        for name, rollout in planned.rollouts.items():
            old = rollouts.get(name)
            if old is None or (old.phase, old.target) != (rollout.phase, rollout.target):
                self.event()  # another part of the rollout begins
        self.steps_are_one_a_host_and_none_disturbs_another(planned, instances)
        self.slots_stay_above_the_bound(planned, instances)
        self.only_the_good_state_and_the_target_are_served(planned)
        self.no_step_is_undone(planned)
        return planned

    def steps_are_one_a_host_and_none_disturbs_another(
        self, planned: Plan, instances: dict[str, dict[str, Instance]]
    ) -> None:
        hosts = [step.host for step in planned.steps]
        assert len(hosts) == len(set(hosts))
        for step in planned.steps:
            agent = self.fleet.agents[step.host]
            assert not agent.is_away
            if isinstance(step, Prefetch):
                assert agent.is_ours
                assert not agent.is_drained
                continue
            if isinstance(step, Assign):
                assert not agent.is_drained
            for name, instance in instances[step.host].items():
                is_old = self.fleet.now_s - instance.assigned_s >= DEADLINE_S
                if is_moving(instance) and not is_old:
                    assert name == step.deployment, "two steps on one host"
                    if isinstance(step, Assign):
                        assert step.digest != instance.assigned
                        assert not instance.is_unloading

    def slots_stay_above_the_bound(
        self, planned: Plan, instances: dict[str, dict[str, Instance]]
    ) -> None:
        for name, rollout in planned.rollouts.items():
            goal = self.fleet.goals[name]
            rules = goal.rules
            runs = rollout.phase in GOING_ON or rollout.phase in GOING_BACK
            if not runs or rollout.good is None:
                continue
            if (rollout.good, rollout.target) in IN_PLACE and goal.target != rollout.good:
                continue
            allowed = planned.admissible[name] or frozenset((aim_of(rollout),))
            counted = [
                (host, found[name])
                for host, found in instances.items()
                if name in found
                and not found[name].is_unloading
                and not self.fleet.agents[host].is_drained
                and (found[name].assigned or found[name].serving or name != DEFAULT)
            ]
            serving = {host for host, i in counted if is_available(i, allowed)}
            taken = {
                s.host
                for s in planned.steps
                if isinstance(s, Assign)
                and s.deployment == name
                and s.host in serving
                and instances[s.host][name].serving != s.digest
                and not loads_beside(instances[s.host][name])
            }
            if not taken:
                continue
            limit = rules.max_unavailable
            if rules.max_unavailable_percent is not None:
                limit = max(1, rules.max_unavailable_percent * len(counted) // 100)
            assert len(counted) - len(serving) + len(taken) <= limit
            left = sum(i.slots for host, i in counted if host in serving - taken)
            assert left >= rules.min_capacity

    def only_the_good_state_and_the_target_are_served(self, planned: Plan) -> None:
        for name, digests in planned.admissible.items():
            rollout = planned.rollouts[name]
            assert digests <= {rollout.good, rollout.target, *rollout.others}
            if rollout.phase is RolloutPhase.COMPLETE and digests:
                assert digests == {rollout.target}
            if rollout.phase is RolloutPhase.ROLLED_BACK and digests:
                assert digests == {rollout.good}

    def no_step_is_undone(self, planned: Plan) -> None:
        for step in planned.steps:
            match step:
                case Assign(host, name, digest) | Prefetch(host, name, digest):
                    key = (type(step).__name__ + host, name, digest)
                case Unload(host, name):
                    key = ("Unload" + host, name, "")
            self.done[key] = self.done.get(key, 0) + 1
            assert self.done[key] == 1, f"{step} twice, and nothing has happened"

    @invariant()
    def memory_is_never_over_what_fits(self) -> None:
        for agent in self.fleet.agents.values():
            if agent.is_ours and len(agent.engines) > 1:
                assert self.fleet.free_gib(agent) >= 0, agent

    @invariant()
    def the_same_view_gives_the_same_plan(self) -> None:
        view = self.fleet.view()
        assert plan(view) == plan(view)

    def teardown(self) -> None:
        """No more events: everything comes to rest, and every host serves what it should."""
        if not self.fleet.goals:
            return
        fleet = self.fleet
        for agent in fleet.agents.values():
            agent.is_away = False
            agent.is_drained = False
            for name in agent.engines:
                fleet.set_busy(agent, name, 0)
        fleet.queues = {}
        fleet.goals = {
            n: attrs.evolve(g, rules=attrs.evolve(g.rules, min_capacity=0))
            for n, g in fleet.goals.items()
        }
        self.event()
        quiet_s = 0.0
        for _ in range(3000):
            for name, rollout in fleet.rollouts.items():
                if rollout.phase is RolloutPhase.PAUSED and rollout.good is not None:
                    order = aborted(rollout, now_s=fleet.now_s)
                    assert order is not None
                    fleet.rollouts = {**fleet.rollouts, name: order}
                    self.event()
            steps = self.plan().steps
            fleet.advance(0.0 if steps else 2.0)
            self.see_failures()
            self.memory_is_never_over_what_fits()
            quiet_s = 0.0 if steps else quiet_s + 2.0
            if quiet_s > 2 * DEADLINE_S:
                break
        else:
            pytest.fail("it never comes to rest")
        for name, rollout in fleet.rollouts.items():
            note(f"{name}: {rollout}")
            self.it_has_ended(name)

    def it_has_ended(self, name: str) -> None:
        fleet, rollout, goal = self.fleet, self.fleet.rollouts[name], self.fleet.goals[name]
        aim = aim_of(rollout)
        engines = [a.engines[name] for a in fleet.agents.values() if name in a.engines]
        if name == "chat" and not engines:
            assert name in fleet.last.problems
        if goal.replicas.most is not None:
            assert len(engines) <= goal.replicas.most
        if name == "code":
            assert not engines  # idle for longer than its time to live
        if not MODELS[aim].is_good or not engines or name in fleet.last.problems:
            return  # the problem says where the memory is not enough
        assert {e.serving for e in engines} <= {aim, None}
        if rollout.good is not None:
            assert rollout.phase in (
                RolloutPhase.COMPLETE,
                RolloutPhase.ROLLED_BACK,
                RolloutPhase.ABORTED,
            )
        if name == DEFAULT:
            for agent in fleet.agents.values():
                alone = len(agent.engines) == 1
                assert agent.engines[name].serving == aim or not alone, agent


@pytest.mark.thorough
def test_plans_keep_their_promises_whatever_happens() -> None:
    run_state_machine_as_test(
        PlannedFleet, settings=settings(max_examples=examples(200), stateful_step_count=25)
    )


def walk(seed: int, *, steps: int) -> None:
    """The same fleet and the same events, evenly mixed: Hypothesis prefers few kinds at a time."""
    dice = random.Random(seed)
    machine = PlannedFleet()
    machine.start(
        rules=RolloutRules(
            max_unavailable=dice.choice((1, 2)),
            max_unavailable_percent=dice.choice((None, 50)),
            min_capacity=dice.choice((0, 0, 4)),
            canary=dice.choice((0, 1, 1, 2)),
            min_ready_s=dice.choice((0.0, 10.0)),
            progress_deadline_s=DEADLINE_S,
            on_failure=dice.choice(("rollback", "rollback", "pause")),
            mixed=dice.choice(("allow", "allow", "hold")),
            prefetch=dice.choice((True, False)),
        ),
        gib=[dice.randint(3, 8) for _ in range(dice.randint(1, 4))],
        seed=seed,
        first=dice.choice(("first", "third")),
        replicas=dice.choice((Replicas(least=1, most=1), Replicas(least=1, most=3))),
    )
    for _ in range(steps):
        match dice.randrange(14):
            case 0 | 1:
                machine.a_new_target(digest=dice.choice(OF_DEFAULT))
            case 2:
                machine.a_new_target_of_another_deployment(digest=dice.choice(OF_CHAT))
            case 3:
                machine.a_host_is_lost(n=dice.randrange(4), with_engines=dice.random() < 0.5)
            case 4:
                machine.hosts_return()
            case 5:
                machine.a_host_is_drained_or_not_any_more(n=dice.randrange(4))
            case 6:
                machine.the_balancer_restarts()
            case 7:
                machine.requests_wait(
                    waiting=dice.randrange(3), wait_s=dice.choice((0.0, 6.0, 500.0))
                )
            case 8:
                machine.requests_run(
                    n=dice.randrange(4), name=dice.choice(NAMES), busy=dice.randrange(3)
                )
            case 9:
                machine.the_operator_orders(
                    order=dice.choice((paused, resumed, aborted)), name=dice.choice(NAMES[:2])
                )
            case 10:
                machine.the_caller_makes_the_good_state_its_goal(name=dice.choice(NAMES[:2]))
            case _:
                machine.time_passes(seconds=dice.choice((0.0, 0.5, 3.0, 11.0, 30.0, 130.0)))
        machine.memory_is_never_over_what_fits()
        machine.the_same_view_gives_the_same_plan()
    machine.teardown()


@pytest.mark.thorough
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(200))
def test_plans_keep_their_promises_on_random_walks(seed: int) -> None:
    walk(seed, steps=30)
