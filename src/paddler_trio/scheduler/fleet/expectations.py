"""Tell what the waiting requests of a deployment may expect: a reason, and when it will be over.

Measured load times make the estimate. A load that takes longer than it should is expected
``LATE_S`` from now, again and again: the wait of a request is extended as long as something is
under way, and a step that takes longer than the progress deadline is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from paddler_trio.scheduler.fleet.eviction import wait_left_s
from paddler_trio.scheduler.fleet.fleet_index import FleetIndex
from paddler_trio.scheduler.fleet.fleet_values import (
    Assign,
    Change,
    Expectation,
    Host,
    Instance,
    Unload,
)
from paddler_trio.scheduler.fleet.instance_state import is_available, is_moving
from paddler_trio.scheduler.fleet.replica_placement import Deployment

LATE_S: Final = 5.0
IN_PLACE_S: Final = 1.0
"""For other settings of an engine that runs, once its answers have ended."""


def expectations(deployments: Sequence[Deployment], index: FleetIndex) -> dict[str, Expectation]:
    """Return expectations by deployment, for those with a step under way, and those that wait for
    room."""
    begun: dict[str, list[tuple[str, str]]] = {}
    for step in index.steps:
        if isinstance(step, Assign):
            begun.setdefault(step.deployment, []).append((step.host, step.digest))
    hosts = {state.host.id: state for state in index.states} if begun else {}
    found: dict[str, Expectation] = {}
    for d in deployments:
        if d.goal.is_empty:
            continue
        ready: list[tuple[float, str]] = []
        broken: list[tuple[float, str]] = []
        for p in d.placed:
            instance = p.instance
            if instance.assigned is None or instance.assigned == instance.serving:
                continue  # the usual case, and there are many
            host = p.state.host
            if host.back_until_s is not None:
                words = f"the connection to {host.name or host.id} broke, and may be up again"
                broken.append((host.back_until_s, words))
            elif is_moving(instance):
                ready.append(_under_way(d, instance, p.state.host, index))
        for host_id, digest in begun.get(d.name, ()):
            state = hosts[host_id]
            here = state.host.instances.get(d.name)
            if here is None or here.serving != digest:
                load_s = _load_s(d, here, digest, state.host, index)
                ready.append((index.now_s + load_s, f"{_verb(load_s)} on {state.name}"))
        if ready:
            first_s, words = min(ready)
            found[d.name] = Expectation(f"the model {words}", first_s)
        elif broken and not _serves(d):
            last_s, words = max(broken)
            found[d.name] = Expectation(words, last_s)
        elif index.queue(d.name).waiting and not _serves(d):
            waiting = _waits_for_room(d, index)
            if waiting is not None:
                found[d.name] = waiting
    return found


def _serves(d: Deployment) -> bool:
    return any(is_available(p.instance, d.admissible) for p in d.placed)


def _load_s(
    d: Deployment, instance: Instance | None, digest: str, host: Host, index: FleetIndex
) -> float:
    """Return what it takes to have ``digest`` served: an engine that serves the good state takes
    other settings without a load."""
    is_in_place = digest == d.goal.target and d.goal.change in (Change.NONE, Change.IN_PLACE)
    if is_in_place and instance is not None and instance.serving == d.rollout.good:
        return IN_PLACE_S
    return index.load_s(digest, host)


def _verb(load_s: float) -> str:
    return "takes other settings" if load_s == IN_PLACE_S else "is being loaded"


def _under_way(
    d: Deployment, instance: Instance, host: Host, index: FleetIndex
) -> tuple[float, str]:
    assert instance.assigned is not None
    load_s = _load_s(d, instance, instance.assigned, host, index)
    due_s = instance.assigned_s + load_s
    words = {"downloading": "is being downloaded to", "draining": "waits for the old one to end on"}
    if instance.assigned in host.on_disk:  # it only looks whether the files are still right
        words["downloading"] = "is being loaded on"
    return (
        max(due_s, index.now_s + LATE_S) if due_s <= index.now_s else due_s,
        f"{words.get(instance.phase, f'{_verb(load_s)} on')} {host.name or host.id}",
    )


def _waits_for_room(d: Deployment, index: FleetIndex) -> Expectation | None:
    """Return what a deployment without an instance may expect: other models are in its place."""
    goal, load_s = d.goal, index.load_s(d.goal.target)
    most = goal.replicas.most
    if goal.replicas.is_all or (most is not None and most < 1) or d.name in index.hopeless:
        return None
    eligible = index.eligible(goal)
    if not eligible:
        return None
    if any(s.is_claimed or isinstance(s.step, Unload) for s in eligible):
        return Expectation("another model makes room", index.now_s + load_s)
    left_s = max(0.0, wait_left_s(goal, index))
    return Expectation("other models are busy in its place", index.now_s + left_s + load_s)
