"""The feed's topic ``deployments``: what is desired, and how much of it works and waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from paddler_trio.balancer.activity.feed_document import Change
from paddler_trio.balancer.activity.feed_topic import shown
from paddler_trio.balancer.activity.moments import ms
from paddler_trio.balancer.fleet.fleet_progress import AgentsProgress
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Demand, Hold, Pool
from paddler_trio.wire.trio.fleet_state import DeploymentSpec

NO_DEMAND: Final = Demand(0, 0.0, 0)


@attrs.define(eq=False)
class DeploymentsTopic:
    """A :class:`~paddler_trio.balancer.activity.feed_topic.Topic`.

    Args:
      specs: the deployments that are desired now.
    """

    dispatcher: Dispatcher
    specs: Callable[[], Sequence[DeploymentSpec]]
    progress: AgentsProgress
    name: str = attrs.field(default="deployments", init=False)
    _names: set[str] = attrs.field(factory=set, init=False)

    def open(self) -> None:
        self._names = set()

    def look(self, now_s: float) -> Iterator[Change | None]:
        specs = self.specs()
        for spec, progress in zip(specs, self.progress.progress(specs), strict=True):
            pool = self.dispatcher.pools.find(spec.name)
            yield spec.name, shown(_shown(spec, progress, pool, now_s))
        names = {spec.name for spec in specs}
        for name in self._names - names:
            yield name, None
        self._names = names

    def close(self) -> None:
        self._names = set()


def _shown(
    spec: DeploymentSpec,
    progress: Mapping[str, object],
    pool: Pool | None,
    now_s: float,
) -> Mapping[str, object]:
    demand = NO_DEMAND if pool is None else pool.demand(now_s)
    agents = progress["agents"]
    assert isinstance(agents, Mapping)
    return {
        "aliases": spec.aliases,
        "phase": progress["phase"],
        "state": progress["state"],
        "meets": progress["meets"],
        "waiting": demand.waiting,
        "oldest_wait_ms": max(0, ms(demand.oldest_wait_s)) if demand.waiting else None,
        "running": demand.running,
        "slots": agents["slots"],
        "serving": agents["answering"],
        "offline": agents["offline"],
        "held": None if pool is None or pool.held is None or pool.serves else _held(pool.held),
        "target": spec.digest,
    }


def _held(hold: Hold) -> Mapping[str, object]:
    until_ms = ms(hold.until_s) if math.isfinite(hold.until_s) else None
    return {"reason": hold.reason, "until_ms": until_ms}
