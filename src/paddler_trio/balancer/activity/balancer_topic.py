"""The feed's topic ``balancer``: what the process itself is and does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from paddler_trio import __version__
from paddler_trio.balancer.activity.moments import ms, utc_ms
from paddler_trio.balancer.agents.agent_snapshot import capacity
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.loop_lag import LoopLag


@attrs.define(eq=False)
class BalancerStatus:
    """The one value of this topic.

    Args:
      addresses: where each service listens, ``host:port`` each.
    """

    dispatcher: Dispatcher
    states: FleetKeeper
    lag: LoopLag
    addresses: Mapping[str, Sequence[str]]
    captures: bool = False
    """The texts of requests are kept."""
    started: str = attrs.field(factory=utc_ms, init=False)

    def values(self, now_s: float) -> Mapping[str, object]:
        """Return the values by key."""
        counts, limits = self.dispatcher.statistics(), self.dispatcher.limits
        status = {
            "version": __version__,
            "started": self.started,
            "draining": self.dispatcher.is_draining,
            "addresses": {
                service: self.addresses.get(service, [])
                for service in ("inference", "management", "openai", "ollama", "panel", "statsd")
            },
            "buffer": {
                "waiting": counts.requests_buffered,
                "limit": limits.max_buffered,
                "timeout_ms": ms(limits.buffered_timeout_s),
            },
            "slots": {
                "busy": counts.slots_processing,
                "total": capacity(self.dispatcher.agents.values()),
            },
            "loop_lag_ms": ms(self.lag.worst_s),
            "capture": self.captures,
            "revision": self.states.current.revision,
        }
        return {"status": status}
