"""The topics of the feed, each over the part of the balancer that it shows."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.agents_topic import AgentsTopic
from paddler_trio.balancer.activity.balancer_topic import BalancerStatus
from paddler_trio.balancer.activity.deployments_topic import DeploymentsTopic
from paddler_trio.balancer.activity.event_feed import EventFeed
from paddler_trio.balancer.activity.feed_topic import WholeTopic
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.activity.request_lanes import RequestLanes
from paddler_trio.balancer.activity.requests_topic import RequestsTopic
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.rollout_routes import RolloutControl
from paddler_trio.balancer.status.problem_list import ProblemList
from paddler_trio.net.server.listening import bound_address
from paddler_trio.system.logs.log_ring import RECENT

_SHOWN: Final = {
    "compat openai": "openai",
    "compat ollama": "ollama",
    "web admin panel": "panel",
}
"""Names of services in the feed, where they have another one."""


def event_feed(
    activity: RequestActivity,
    states: FleetKeeper,
    rollouts: RolloutControl,
    metrics: MetricsHistory,
    addresses: Mapping[str, Sequence[str]],
    problems: ProblemList,
) -> EventFeed:
    """Return all topics, in the order in which events have them.

    Args:
      addresses: where each service listens.
    """
    activity.revision_of = states.revision_of
    dispatcher, captures = problems.dispatcher, activity.captures is not None
    status = BalancerStatus(dispatcher, states, problems.lag, addresses, captures)

    def rollouts_now(now_s: float) -> Mapping[str, object]:
        entries = rollouts.view()["rollouts"]
        assert isinstance(entries, Sequence)
        return {entry["deployment"]: entry for entry in entries}

    def logs_now(now_s: float) -> Mapping[str, object]:
        counts = {"seq": RECENT.seq, "warnings": RECENT.warnings, "errors": RECENT.errors}
        return {"last": counts}

    return EventFeed(
        (
            WholeTopic("balancer", status.values),
            AgentsTopic(dispatcher, RequestLanes(activity), states.revision_of),
            DeploymentsTopic(
                dispatcher, lambda: states.current.state.deployments, problems.progress
            ),
            WholeTopic("problems", lambda now_s: {each.id: each.view() for each in problems.now()}),
            WholeTopic(
                "gone",
                lambda now_s: {each.name: attrs.asdict(each) for each in problems.known.shown()},
                lambda: problems.known.changed.ordinal,
            ),
            RequestsTopic(activity),
            WholeTopic("rollouts", rollouts_now, lambda: rollouts.changes.ordinal),
            WholeTopic(
                "metrics",
                lambda now_s: {"current": metrics.current()},
                lambda: int(trio.current_time()),  # once a second
            ),
            WholeTopic("logs", logs_now, lambda: RECENT.seq),
        )
    )


def addresses_of(listeners: Mapping[str, Sequence[socket.socket]]) -> Mapping[str, Sequence[str]]:
    """Return where the sockets of each service listen, ``host:port`` each."""
    return {
        _SHOWN.get(name, name): [bound_address(each) for each in bound]
        for name, bound in listeners.items()
    }
