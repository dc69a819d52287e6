"""The cheapest host is chosen: compared with every other one, the plain way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.scheduler.fleet.eviction import GRACE_LOADS, MAX_GRACE_S
from paddler_trio.scheduler.fleet.fleet_index import LOAD_S
from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
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

NOW_S = 1000.0
ON_DEMAND = Replicas(least=0, most=9)


@st.composite
def hosts(draw: st.DrawFn, number: int) -> Host:
    """A host with a file or without, and with another model that is busy, idle or not there."""
    busy = draw(st.integers(0, 3))
    idle_s = draw(st.sampled_from([999.5, 990.0, 500.0]))
    runs = Instance(
        deployment="other",
        assigned="O",
        serving="O",
        phase="serving",
        slots=4,
        busy=busy,
        served_s=0.0,
        idle_s=None if busy else idle_s,
    )
    has_other = draw(st.booleans())
    return Host(
        id=f"h{number}",
        name=f"h{number}",
        memory={"gpu": draw(st.integers(1, 3))},
        held={"other": {"gpu": 1}} if has_other else {},
        on_disk=frozenset({"W"}) if draw(st.booleans()) else frozenset(),
        load_s=draw(st.sampled_from([{}, {"O": 5.0}, {"W": 9.0}, {"O": 100.0, "W": 2.0}])),
        instances={"other": runs} if has_other else {},
    )


def cost(host: Host, need: int, fetches: bool) -> tuple[bool, bool, float] | None:
    """File on disk, then memory free, then least busy; None if it cannot be loaded there now."""
    other = host.instances.get("other")
    used = 0 if other is None else 1
    no_file = fetches and "W" not in host.on_disk
    if need + used <= host.memory["gpu"]:
        return no_file, False, 0 if other is None else other.busy
    if other is None or need > host.memory["gpu"] or other.idle_s is None:
        return None
    grace_s = min(MAX_GRACE_S, GRACE_LOADS * host.load_s.get("O", LOAD_S))
    return None if NOW_S - other.idle_s < grace_s else (no_file, True, 0)


@given(st.data(), st.integers(1, 6), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(300))
def test_the_cheapest_swap_is_chosen(
    data: st.DataObject, number: int, need: int, fetches: bool
) -> None:
    fleet = tuple(data.draw(hosts(n)) for n in range(number))
    loads = [h.load_s["O"] for h in fleet if "O" in h.load_s]
    fleet = tuple(h if "O" in h.load_s or not loads else _with_load(h, min(loads)) for h in fleet)
    goals = (
        Goal(
            deployment="wanted",
            target="W",
            replicas=ON_DEMAND,
            fetches=fetches,
            needs={h.id: {"gpu": need} for h in fleet},
        ),
        Goal(deployment="other", target="O", replicas=ON_DEMAND),
    )
    rollouts = {
        g.deployment: Rollout(
            deployment=g.deployment,
            good=g.target,
            target=g.target,
            phase=RolloutPhase.COMPLETE,
            started_s=0.0,
            advanced_s=0.0,
        )
        for g in goals
    }
    view = FleetView(
        now_s=NOW_S,
        goals=goals,
        hosts=fleet,
        queues={"wanted": Queue(waiting=1, oldest_wait_s=1.0)},
        rollouts=rollouts,
    )
    steps = plan(view).steps
    costs = {h.id: c for h in fleet if (c := cost(h, need, fetches)) is not None}
    if not costs:
        assert steps == ()
        return
    (step,) = steps
    assert costs[step.host] == min(costs.values())
    evicts = costs[step.host][1]
    assert step == (Unload(step.host, "other") if evicts else Assign(step.host, "wanted", "W"))


def _with_load(host: Host, length_s: float) -> Host:
    """Where nothing was measured, the shortest load of others counts; said here in plain words."""
    return Host(
        id=host.id,
        name=host.name,
        memory=host.memory,
        held=host.held,
        on_disk=host.on_disk,
        load_s={**host.load_s, "O": length_s},
        instances=host.instances,
    )
