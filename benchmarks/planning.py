"""What one plan costs, for a fleet of 500 hosts and 40 deployments.

The planner runs on the balancer's event loop, so a plan must be short: 10 ms is the limit. Each
situation is a fleet in a certain state; the time is that of one call of ``plan``: the median of
``--rounds``, the median of processor time (which a busy machine leaves almost alone) and the
longest. Exit status 1 if the median of processor time is over the limit.
Usage: ``python benchmarks/planning.py [--rounds 30] [--hosts 500] [--deployments 40]``.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.scheduler.fleet.fleet_plan import plan
from paddler_trio.scheduler.fleet.fleet_values import (
    DEFAULT,
    Assign,
    FleetView,
    Goal,
    Host,
    Instance,
    Prefetch,
    Queue,
    Replicas,
    Rollout,
    RolloutPhase,
)

LIMIT_S = 0.010
GIB = 1024**3
NOW_S = 10_000.0


def on_all(hosts: Iterable[str], gib: int) -> dict[str, dict[str, int]]:
    return {host: {"CUDA0": gib * GIB, "host": 2 * GIB} for host in hosts}


def goals_of(number: int, hosts: int, dice: random.Random) -> tuple[Goal, ...]:
    """The default on every host, a third of the others fixed, the rest on demand."""
    ids = [f"h{n}" for n in range(hosts)]
    goals = [Goal(deployment=DEFAULT, target="default v1", needs=on_all(ids, 8))]
    for n in range(1, number):
        fixed = n % 3 == 0
        goals.append(
            Goal(
                deployment=f"d{n}",
                target=f"d{n} v1",
                replicas=Replicas(least=25, most=25) if fixed else Replicas(least=0, most=40),
                where=("gpu=yes",) if n % 4 == 0 else (),
                priority=n % 3,
                idle_ttl_s=600.0,
                fetches=True,
                needs=on_all(ids, dice.choice((4, 8, 16, 24))),
            )
        )
    return tuple(goals)


def serving(name: str, dice: random.Random, **fields: object) -> Instance:
    busy = dice.choice((0, 0, 1, 3))
    usual: dict[str, object] = {
        "assigned": f"{name} v1",
        "serving": f"{name} v1",
        "phase": "serving",
        "slots": 4,
        "busy": busy,
        "served_s": NOW_S - dice.randrange(100, 5000),
        "idle_s": None if busy else NOW_S - dice.randrange(1, 500),
    }
    return Instance(deployment=name, **{**usual, **fields})  # type: ignore[arg-type]


def fleet(goals: tuple[Goal, ...], hosts: int, dice: random.Random, *, spare: int) -> list[Host]:
    """Each host serves the default and a few others; each file is on a tenth of the hosts."""
    names = [g.deployment for g in goals[1:]]
    sizes = {g.deployment: g.needs["h0"] for g in goals}
    found = []
    for n in range(hosts):
        here = dice.sample(names, dice.randrange(2, 5))
        here = [h for h in here if int(h[1:]) % 4 or n % 2]
        instances = {name: serving(name, dice) for name in (DEFAULT, *here)}
        held = {name: dict(sizes[name] or {}) for name in instances}
        used = sum(h.get("CUDA0", 0) for h in held.values())
        found.append(
            Host(
                id=f"h{n}",
                name=f"host-{n}",
                labels={"gpu": "yes" if n % 2 else "no", "site": f"s{n % 7}"},
                memory={"CUDA0": used + spare * GIB, "host": 256 * GIB},
                held=held,
                on_disk=frozenset(f"{x} v1" for x in (*here, *dice.sample(names, 3))),
                load_s={f"{x} v1": dice.uniform(5, 60) for x in here},
                instances=instances,
            )
        )
    return found


def complete(goals: tuple[Goal, ...]) -> dict[str, Rollout]:
    return {
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


def situations(hosts: int, deployments: int) -> Mapping[str, FleetView]:
    """The fleets that are planned for, by what is the matter with them."""
    dice = random.Random(14)
    goals = goals_of(deployments, hosts, dice)
    some = [g for g in goals if not g.replicas.is_all and g.replicas.least == 0]
    rich = fleet(goals, hosts, dice, spare=64)
    poor = fleet(goals, hosts, dice, spare=2)
    flat = tuple(attrs.evolve(g, replicas=Replicas(least=0, most=500)) for g in goals[1:])
    flat = (goals[0], *flat)
    queues = {g.deployment: Queue(waiting=5, oldest_wait_s=8.0) for g in some}
    late = {g.deployment: Queue(waiting=50, oldest_wait_s=900.0) for g in some}
    newer = tuple(attrs.evolve(g, target=f"{g.deployment} v2") for g in goals)
    gone = tuple(attrs.evolve(h, instances={DEFAULT: h.instances[DEFAULT]}, held={}) for h in poor)
    busy = tuple(
        attrs.evolve(
            h,
            instances={
                name: attrs.evolve(i, busy=2, idle_s=None, served_s=0.0)
                for name, i in h.instances.items()
                if name == DEFAULT or int(name[1:]) % 2
            },
        )
        for h in poor
    )
    empty = tuple(
        Host(id=h.id, name=h.name, labels=h.labels, memory=h.memory, on_disk=h.on_disk)
        for h in rich
    )
    rolling = _middle_of_a_rollout(newer, rich)

    def view(hosts: Iterable[Host], goals: tuple[Goal, ...], **more: object) -> FleetView:
        fields: dict[str, object] = {"rollouts": complete(goals), **more}
        return FleetView(now_s=NOW_S, goals=goals, hosts=tuple(hosts), **fields)  # type: ignore[arg-type]

    old = complete(goals)
    return {
        "nothing to do": view(rich, flat),
        "replicas too many and too few": view(rich, goals),
        "the first plan, nothing is loaded": view(empty, goals, rollouts={}),
        "new targets for all deployments": view(rich, newer, rollouts=old),
        "all deployments in the middle of a rollout": view(rolling[0], newer, rollouts=rolling[1]),
        "requests wait for every model, memory is free": view(gone, goals, queues=queues),
        "requests wait, idle models must go": view(poor, goals, queues=queues),
        "requests wait too long, all are busy": view(busy, goals, queues=late),
        "requests wait for what fits nowhere": view(
            gone,
            tuple(attrs.evolve(g, needs=on_all(g.needs, 999)) if g in some else g for g in goals),
            queues=late,
        ),
    }


def _middle_of_a_rollout(
    goals: tuple[Goal, ...], hosts: list[Host]
) -> tuple[list[Host], dict[str, Rollout]]:
    """Half of the hosts have gone over."""
    halfway = []
    for n, host in enumerate(hosts):
        instances = host.instances
        if n % 2:
            instances = {
                name: attrs.evolve(i, assigned=f"{name} v2", serving=f"{name} v2")
                for name, i in instances.items()
            }
        files = host.on_disk | {f"{name} v2" for name in instances}
        halfway.append(attrs.evolve(host, instances=instances, on_disk=files))
    rollouts = {
        g.deployment: Rollout(
            deployment=g.deployment,
            good=f"{g.deployment} v1",
            target=g.target,
            phase=RolloutPhase.ROLLING,
            started_s=NOW_S - 100,
            advanced_s=NOW_S - 1,
            is_proven=True,
        )
        for g in goals
    }
    return halfway, rollouts


def measure(view: FleetView, rounds: int) -> tuple[list[float], list[float], str]:
    """Seconds and seconds of processor time of each call, and how many steps it decided."""
    times, worked = [], []
    steps: tuple[object, ...] = ()
    for _ in range(rounds):
        gc.collect()
        began, processor_began = time.perf_counter(), time.thread_time()
        steps = plan(view).steps
        times.append(time.perf_counter() - began)
        worked.append(time.thread_time() - processor_began)
    loads = sum(isinstance(s, Assign) for s in steps)
    fetches = sum(isinstance(s, Prefetch) for s in steps)
    return (
        times,
        worked,
        f"{loads} loads, {fetches} fetches, {len(steps) - loads - fetches} unloads",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--hosts", type=int, default=500)
    parser.add_argument("--deployments", type=int, default=40)
    options = parser.parse_args()
    print(f"{options.hosts} hosts, {options.deployments} deployments")
    print(f"{'situation':<48}{'median ms':>10}{'processor':>11}{'longest':>9}   steps")
    slow = []
    for name, view in situations(options.hosts, options.deployments).items():
        times, worked, steps = measure(view, options.rounds)
        median_s, worked_s = statistics.median(times), statistics.median(worked)
        print(
            f"{name:<48}{median_s * 1e3:>10.2f}{worked_s * 1e3:>11.2f}"
            f"{max(times) * 1e3:>9.2f}   {steps}"
        )
        if worked_s > LIMIT_S:
            slow.append(name)
    if slow:
        print(f"over {LIMIT_S * 1e3:.0f} ms: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
