"""Which hosts get what: replicas, labels, memory, models on demand, eviction, turns."""

from __future__ import annotations

import attrs
import pytest
from fleet_model import Agent, Engine, Fleet, Model

from paddler_trio.balancer.fleet.rollout_control import phase_of
from paddler_trio.scheduler.fleet.eviction import MAX_WAIT_S, TURN_S
from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    Assign,
    FleetView,
    Goal,
    Host,
    Instance,
    Queue,
    Replicas,
    Rollout,
    RolloutPhase,
    Unload,
)

NAMES = ("a", "b", "c")


def goal(name: str, **fields: object) -> Goal:
    """On demand unless told otherwise; one unit of memory on every host."""
    usual: dict[str, object] = {
        "target": name.upper(),
        "replicas": Replicas(least=0, most=1),
        "needs": {f"h{n}": {"gpu": 1} for n in range(9)},
    }
    return Goal(deployment=name, **{**usual, **fields})  # type: ignore[arg-type]


def runs(name: str, **fields: object) -> Instance:
    """An instance that serves and was last used at 0 s."""
    usual: dict[str, object] = {
        "assigned": name.upper(),
        "serving": name.upper(),
        "phase": "serving",
        "slots": 4,
        "served_s": 0.0,
        "idle_s": 0.0,
    }
    return Instance(deployment=name, **{**usual, **fields})  # type: ignore[arg-type]


def host(number: int, *instances: Instance, room: int = 1, **fields: object) -> Host:
    """One with ``room`` units of memory; each model takes one of them."""
    return Host(
        id=f"h{number}",
        name=f"h{number}",
        memory={"gpu": room},
        held={i.deployment: {"gpu": 1} for i in instances if i.serving},
        instances={i.deployment: i for i in instances},
        **fields,  # type: ignore[arg-type]
    )


def done(*goals: Goal) -> dict[str, Rollout]:
    """No rollout runs."""
    return {
        g.deployment: Rollout(
            deployment=g.deployment,
            good=g.target,
            target=g.target,
            phase=RolloutPhase.COMPLETE,
            started_s=0,
            advanced_s=0,
        )
        for g in goals
    }


def view(
    *hosts: Host, goals: tuple[Goal, ...], waiting: dict[str, float] | None = None
) -> FleetView:
    """At 1000 s; ``waiting``: how long the oldest request of each deployment has."""
    queues = {name: Queue(waiting=1, oldest_wait_s=s) for name, s in (waiting or {}).items()}
    return FleetView(now_s=1000, goals=goals, hosts=hosts, queues=queues, rollouts=done(*goals))


def test_nothing_to_do_is_an_empty_plan() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=1)),)
    planned = plan(view(host(0, runs("a")), host(1), goals=goals))
    assert planned.steps == ()
    assert planned.rollouts == done(*goals)
    assert planned.look_again_s is None
    assert planned.expected == {}
    assert planned.problems == {}


def test_a_model_on_demand_is_loaded_at_the_first_waiting_request() -> None:
    goals = (goal("a"),)
    assert plan(view(host(0), goals=goals)).steps == ()
    planned = plan(view(host(0, load_s={"A": 12.0}), goals=goals, waiting={"a": 0.0}))
    assert planned.steps == (Assign("h0", "a", "A"),)
    assert planned.expected["a"].reason == "the model is being loaded on h0"
    assert planned.expected["a"].ready_s == 1012.0


@pytest.mark.parametrize(
    ("on_disk", "words"),
    [
        (frozenset(), "the model is being downloaded to h0"),
        (frozenset({"A"}), "the model is being loaded on h0"),
    ],
)
def test_files_that_are_there_are_not_said_to_be_downloaded(
    on_disk: frozenset[str], words: str
) -> None:
    """An agent looks whether they are still right, in the phase in which it would fetch them."""
    begun = runs("a", serving=None, phase="downloading", assigned_s=999.0)
    planned = plan(view(host(0, begun, on_disk=on_disk), goals=(goal("a"),)))
    assert planned.expected["a"].reason == words
    rollout, here = done(goal("a"))["a"], host(0, begun, on_disk=on_disk)
    for phase in ("resolving", "downloading"):
        looking = attrs.evolve(begun, phase=phase)
        shown = "loading" if on_disk else "prefetching"
        assert phase_of(rollout, here, looking) == shown


def test_it_is_not_loaded_twice_while_it_loads() -> None:
    loading = runs("a", serving=None, phase="loading", assigned_s=995.0)
    planned = plan(view(host(0, loading), host(1), goals=(goal("a"),), waiting={"a": 5.0}))
    assert planned.steps == ()
    assert planned.expected["a"].ready_s == 995.0 + 30.0


def test_a_load_that_is_late_is_still_expected() -> None:
    loading = runs("a", serving=None, phase="loading", assigned_s=900.0)
    planned = plan(view(host(0, loading), goals=(goal("a"),), waiting={"a": 100.0}))
    assert planned.expected["a"].ready_s == 1005.0


def test_an_idle_model_is_unloaded_after_its_time_to_live() -> None:
    idle = runs("a", idle_s=900.0)
    goals = (goal("a", idle_ttl_s=100.0),)
    assert plan(view(host(0, idle), goals=goals)).steps == (Unload("h0", "a"),)
    goals = (goal("a", idle_ttl_s=101.0),)
    planned = plan(view(host(0, idle), goals=goals))
    assert planned.steps == ()
    assert planned.look_again_s == 1001.0


def test_fixed_replicas_stay_however_idle_they_are() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=2), idle_ttl_s=1.0),)
    planned = plan(view(host(0, runs("a")), host(1, runs("a")), goals=goals))
    assert len(planned.steps) == 1
    assert isinstance(planned.steps[0], Unload)


def test_a_queue_that_stays_gets_one_more_replica() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=3)),)
    busy = runs("a", busy=4, idle_s=None)
    fleet = view(host(0, busy), host(1), host(2), goals=goals, waiting={"a": 4.0})
    assert plan(fleet).steps == ()
    assert plan(fleet).look_again_s == 1001.0
    fleet = view(host(0, busy), host(1), host(2), goals=goals, waiting={"a": 5.0})
    assert plan(fleet).steps == (Assign("h1", "a", "A"),)


def test_a_replica_that_has_just_begun_is_given_time() -> None:
    goals = (goal("a", replicas=Replicas(least=0, most=3)),)
    fresh = runs("a", busy=4, idle_s=None, served_s=999.0)
    assert plan(view(host(0, fresh), host(1), goals=goals, waiting={"a": 40.0})).steps == ()


def test_one_more_replica_never_evicts() -> None:
    goals = (goal("a", replicas=Replicas(least=0, most=2)), goal("b"))
    busy = runs("a", busy=4, idle_s=None)
    fleet = view(host(0, busy), host(1, runs("b")), goals=goals, waiting={"a": 50.0})
    assert plan(fleet).steps == ()


def test_labels_and_names_choose_hosts() -> None:
    hosts = (host(0), host(1, labels={"gpu": "yes"}), host(2, labels={"gpu": "yes"}))
    two = Replicas(least=2, most=2)
    goals = (goal("a", where=("gpu=yes",), replicas=two),)
    assert {s.host for s in plan(view(*hosts, goals=goals)).steps} == {"h1", "h2"}
    goals = (goal("a", where=("gpu=yes", "agent=h2"), replicas=two),)
    planned = plan(view(*hosts, goals=goals))
    assert {s.host for s in planned.steps} == {"h2"}
    assert planned.problems["a"] == "no host has the memory for it" or planned.problems
    goals = (goal("a", where=("site=attic",), replicas=two),)
    assert plan(view(*hosts, goals=goals)).problems == {"a": "no host matches site=attic"}


def test_a_deployment_leaves_hosts_that_no_longer_match_when_others_serve_it() -> None:
    goals = (goal("a", where=("gpu=yes",), replicas=Replicas(least=1, most=1)),)
    gpu = {"gpu": "yes"}
    old = host(0, runs("a"))
    assert plan(view(old, host(1, labels=gpu), goals=goals)).steps == (Assign("h1", "a", "A"),)
    loading = runs("a", serving=None, phase="loading", assigned_s=990.0)
    assert plan(view(old, host(1, loading, labels=gpu), goals=goals)).steps == ()
    moved = view(old, host(1, runs("a"), labels=gpu), goals=goals)
    assert plan(moved).steps == (Unload("h0", "a"),)


def test_paddlers_agents_only_have_the_default_deployment() -> None:
    paddler = attrs.evolve(host(0), is_ours=False)
    goals = (goal("a", replicas=Replicas(least=1, most=1)),)
    assert plan(view(paddler, goals=goals)).steps == ()
    everywhere = (goal(DEFAULT, target="D", replicas=Replicas(is_all=True)),)
    assert plan(view(paddler, goals=everywhere)).steps == (Assign("h0", DEFAULT, "D"),)


def test_the_host_with_the_file_comes_first_even_if_it_is_busier() -> None:
    goals = (goal("a", fetches=True), goal("b"))
    busy = host(0, runs("b", busy=3, idle_s=None), room=2, on_disk=frozenset({"A"}))
    planned = plan(view(busy, host(1), goals=goals, waiting={"a": 0.0}))
    assert planned.steps == (Assign("h0", "a", "A"),)


def test_then_the_one_with_memory_free_then_the_least_busy() -> None:
    goals = (goal("a"), goal("b", replicas=Replicas(least=0, most=2)), goal("c"))
    full = host(0, runs("b"))
    busy = host(1, runs("c", busy=2, idle_s=None), room=2)
    quiet = host(2, runs("b", busy=1, idle_s=None), room=2)
    planned = plan(view(full, busy, quiet, goals=goals, waiting={"a": 0.0}))
    assert planned.steps == (Assign("h2", "a", "A"),)
    planned = plan(view(full, busy, goals=goals, waiting={"a": 0.0}))
    assert planned.steps == (Assign("h1", "a", "A"),)


def test_several_deployments_share_a_host_as_long_as_they_fit() -> None:
    three = tuple(goal(n, replicas=Replicas(least=1, most=1)) for n in NAMES)
    fleet = Fleet(models={n.upper(): Model() for n in NAMES}, delay_s=lambda: 1.0)
    fleet.join(Agent(id="h0", gib=2))
    fleet.goals = {g.deployment: g for g in three}
    for _ in range(20):
        fleet.plan()
        fleet.advance(1)
    assert {n for n, e in fleet.agents["h0"].engines.items() if e.serving} == {"a", "b"}
    assert fleet.last.problems == {"c": "no host has the memory for it"}


def test_a_model_of_unknown_size_gets_a_host_for_itself() -> None:
    one = Replicas(least=1, most=1)
    goals = (goal("a", replicas=one, needs={}), goal("b", replicas=one))
    planned = plan(view(host(0, runs("b"), room=9), host(1, room=9), goals=goals))
    assert planned.steps == (Assign("h1", "a", "A"),)
    unknown = attrs.evolve(host(0, runs("a"), room=9), held={})
    assert plan(view(unknown, goals=goals)).steps == ()


def test_a_replica_that_failed_is_loaded_elsewhere_and_goes_when_others_serve() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=1)),)
    failed = runs("a", serving=None, phase="failed", problem="out of memory")
    assert plan(view(host(0, failed), host(1), goals=goals)).steps == (Assign("h1", "a", "A"),)
    replaced = view(host(0, failed), host(1, runs("a")), goals=goals)
    assert plan(replaced).steps == (Unload("h0", "a"),)


def test_replicas_of_a_drained_host_are_moved() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=1)),)
    drained = host(0, runs("a"), is_drained=True)
    assert plan(view(drained, host(1), goals=goals)).steps == (Assign("h1", "a", "A"),)


def test_a_removed_deployment_is_unloaded_everywhere() -> None:
    planned = plan(view(host(0, runs("a")), host(1, runs("a", busy=2)), goals=()))
    assert planned.steps == (Unload("h0", "a"), Unload("h1", "a"))
    assert planned.rollouts == {}
    assert planned.admissible == {}


def test_too_many_replicas_go_the_idle_ones_first() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=1)),)
    fleet = view(host(0, runs("a", busy=1, idle_s=None)), host(1, runs("a")), goals=goals)
    assert plan(fleet).steps == (Unload("h1", "a"),)


def test_an_idle_model_makes_room_and_the_other_is_loaded_when_it_has_gone() -> None:
    goals = (goal("a"), goal("b"))
    planned = plan(view(host(0, runs("a")), goals=goals, waiting={"b": 0.0}))
    assert planned.steps == (Unload("h0", "a"),)
    assert planned.expected["b"].reason == "another model makes room"
    going = runs("a", assigned=None, phase="draining", is_unloading=True)
    planned = plan(
        view(host(0, going), host(1, runs("c")), goals=(*goals, goal("c")), waiting={"b": 1.0})
    )
    assert planned.steps == ()  # not another one elsewhere
    assert plan(view(host(0), goals=goals, waiting={"b": 1.0})).steps == (Assign("h0", "b", "B"),)


@pytest.mark.parametrize(
    "state",
    [
        {"busy": 1, "idle_s": None},
        {"serving": None, "phase": "loading", "assigned_s": 995.0, "idle_s": None},
    ],
    ids=["busy", "loading"],
)
def test_a_busy_or_loading_model_is_never_evicted(state: dict[str, object]) -> None:
    goals = (goal("a"), goal("b", priority=9))
    for wait_s in (0.0, MAX_WAIT_S, 10 * MAX_WAIT_S):
        planned = plan(view(host(0, runs("a", **state)), goals=goals, waiting={"b": wait_s}))
        assert planned.steps == ()


def test_a_model_whose_own_requests_wait_is_not_evicted() -> None:
    goals = (goal("a"), goal("b"))
    planned = plan(view(host(0, runs("a")), goals=goals, waiting={"a": 0.0, "b": 5.0}))
    assert planned.steps == ()


def test_moments_of_grace_after_the_last_request() -> None:
    goals = (goal("a"), goal("b"))
    just_idle = host(0, runs("a", idle_s=999.0), load_s={"A": 20.0})
    planned = plan(view(just_idle, goals=goals, waiting={"b": 0.0}))
    assert planned.steps == ()
    assert planned.look_again_s == 1001.0  # a tenth of what it takes to load it again
    assert planned.expected["b"].reason == "other models are busy in its place"


def test_the_least_recently_used_of_equals_goes() -> None:
    goals = (goal("a"), goal("b"), goal("c"))
    hosts = (host(0, runs("a", idle_s=800.0)), host(1, runs("b", idle_s=100.0)))
    assert plan(view(*hosts, goals=goals, waiting={"c": 0.0})).steps == (Unload("h1", "b"),)


def test_what_takes_long_to_load_again_is_kept() -> None:
    goals = (goal("a"), goal("b"), goal("c"))
    slow, fast = {"B": 300.0}, {"A": 5.0}
    hosts = (
        host(0, runs("a", idle_s=800.0), load_s=fast),
        host(1, runs("b", idle_s=700.0), load_s=slow),
    )
    assert plan(view(*hosts, goals=goals, waiting={"c": 0.0})).steps == (Unload("h0", "a"),)


def test_a_lower_priority_goes_first_and_a_higher_one_only_for_who_waited_too_long() -> None:
    goals = (goal("a", priority=1), goal("b", priority=2), goal("c", priority=1))
    hosts = (host(0, runs("a", idle_s=900.0)), host(1, runs("b", idle_s=100.0)))
    assert plan(view(*hosts, goals=goals, waiting={"c": 0.0})).steps == (Unload("h0", "a"),)
    high = (host(1, runs("b", idle_s=100.0)),)
    assert plan(view(*high, goals=goals, waiting={"c": 1.0})).steps == ()
    late = 4 * 30.0  # four loads of the default length
    assert plan(view(*high, goals=goals, waiting={"c": late})).steps == (Unload("h1", "b"),)


def test_fixed_replicas_are_never_evicted() -> None:
    goals = (goal("a", replicas=Replicas(least=1, most=1)), goal("b", priority=5))
    planned = plan(view(host(0, runs("a")), goals=goals, waiting={"b": 1000.0}))
    assert planned.steps == ()
    assert planned.problems == {"b": "no host has the memory for it"}


def test_who_waited_too_long_makes_a_busy_model_yield_without_touching_it() -> None:
    goals = (goal("a"), goal("b"))
    busy = host(0, runs("a", busy=2, idle_s=None), load_s={"A": 1.0, "B": 1.0})
    early = plan(view(busy, goals=goals, waiting={"a": 9.0, "b": MAX_WAIT_S - 1}))
    assert early.admissible["a"] == frozenset({"A"})
    assert early.look_again_s == 1001.0
    planned = plan(view(busy, goals=goals, waiting={"a": 9.0, "b": MAX_WAIT_S}))
    assert planned.steps == ()
    assert planned.admissible == {"a": frozenset(), "b": frozenset({"B"})}
    idle = host(0, runs("a", idle_s=1000.0), load_s={"A": 1.0, "B": 1.0})
    planned = plan(view(idle, goals=goals, waiting={"a": 9.0, "b": MAX_WAIT_S}))
    assert planned.steps == (Unload("h0", "a"),)


def test_a_model_that_was_just_loaded_has_its_turn_first() -> None:
    goals = (goal("a"), goal("b"))
    fresh = host(0, runs("a", busy=2, idle_s=None, served_s=995.0), load_s={"A": 1.0, "B": 1.0})
    planned = plan(view(fresh, goals=goals, waiting={"a": 9.0, "b": 500.0}))
    assert planned.admissible["a"] == frozenset({"A"})
    assert planned.look_again_s == 995.0 + TURN_S


def test_requests_for_a_model_too_large_for_every_host_are_not_held() -> None:
    goals = (goal("a", needs={"h0": {"gpu": 9}}),)
    planned = plan(view(host(0), goals=goals, waiting={"a": 3.0}))
    assert planned.expected == {}
    assert planned.problems == {"a": "no host has the memory for it"}


class OneHost:
    """A fleet in which one model fits at a time, and clients that send requests to it."""

    def __init__(self, *, load_s: float, work_s: float, slots: int = 1) -> None:
        self.fleet = Fleet(models={n.upper(): Model(gib=1) for n in NAMES}, delay_s=lambda: load_s)
        self.fleet.load_s = {n.upper(): load_s for n in NAMES}
        self.agent = Agent(id="h0", gib=1, engines={DEFAULT: Engine(deployment=DEFAULT)})
        self.fleet.join(self.agent)
        self.fleet.goals = {n: goal(n) for n in NAMES}
        self.work_s, self.slots = work_s, slots
        self.waiting: list[tuple[str, float]] = []
        self.running: list[tuple[str, float]] = []
        self.served: list[str] = []
        self.waits: list[tuple[str, float]] = []
        self.loads: list[str] = []

    def send(self, order: str) -> None:
        self.waiting += [(name.lower(), self.fleet.now_s) for name in order.split()]

    def tick(self, seconds: float) -> None:
        fleet, now_s = self.fleet, self.fleet.now_s
        for name, ends_s in list(self.running):
            if ends_s <= now_s:
                self.running.remove((name, ends_s))
                self.served.append(name.upper())
                self._busy(name)
        for _ in range(8):
            fleet.queues = {}
            for name in NAMES:
                waits = [now_s - at for n, at in self.waiting if n == name]
                fleet.queues[name] = Queue(waiting=len(waits), oldest_wait_s=max(waits, default=0))
            planned = fleet.plan()
            self.loads += [s.deployment.upper() for s in planned.steps if isinstance(s, Assign)]
            if not self._dispatch() and not planned.steps:
                break
            fleet.advance(0)
        fleet.advance(seconds)

    def _dispatch(self) -> bool:
        before = len(self.waiting)
        for name, at in list(self.waiting):
            engine = self.agent.engines.get(name)
            if engine is None or engine.is_unloading or len(self.running) >= self.slots:
                continue
            if engine.serving in self.fleet.last.admissible[name]:
                self.waiting.remove((name, at))
                self.running.append((name, self.fleet.now_s + self.work_s))
                self.waits.append((name, self.fleet.now_s - at))
                self._busy(name)
        return len(self.waiting) < before

    def _busy(self, name: str) -> None:
        if name in self.agent.engines:
            self.fleet.set_busy(self.agent, name, sum(n == name for n, _ in self.running))


def test_a_mixed_order_of_requests_is_grouped_by_model() -> None:
    world = OneHost(load_s=2.0, work_s=1.0)
    world.send("A B A A C A B C")
    for _ in range(200):
        world.tick(0.25)
    assert world.loads == ["A", "B", "C"]
    assert "".join(world.served) == "AAAABBCC"


def test_no_model_starves_while_another_one_is_in_constant_use() -> None:
    world = OneHost(load_s=2.0, work_s=1.0)
    world.send("A B")
    for n in range(1200):
        if n % 2 == 0:
            world.send("A")  # two a second: more than it can do
        if n in (100, 600):
            world.send("C")
        world.tick(0.25)
    assert {"B", "C"} <= set(world.served)
    longest_s = max(wait_s for name, wait_s in world.waits if name != "a")
    assert longest_s <= 2 * (MAX_WAIT_S + TURN_S)
    assert len(world.loads) <= 8  # in five minutes


def test_models_in_equal_demand_take_turns_that_are_longer_than_their_loads() -> None:
    world = OneHost(load_s=10.0, work_s=1.0)
    for n in range(600):
        if n % 3 == 0:
            world.send("A B C")
        world.tick(1.0)
    assert len(world.loads) * 10.0 <= 600 / 2
    assert {world.served.count(n) > 10 for n in "ABC"} == {True}


def test_a_long_request_is_finished_before_another_model_is_loaded() -> None:
    world = OneHost(load_s=2.0, work_s=1200.0)
    world.send("A A B")
    for _ in range(130):
        world.tick(10.0)
    assert world.served[:1] == ["A"]
    assert world.loads == ["A", "B"]
