"""All pools by the names of their deployments: which there are, and what they hold together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.pool import Demand, Hold, Pool, PoolSettings
from paddler_trio.nursery_tree.request import Buffered, Request
from paddler_trio.nursery_tree.request_endings import no_such_deployment
from paddler_trio.scheduler.dispatch.slot_ledger import LedgerStatistics, SlotLedger
from paddler_trio.scheduler.truth.request_truth import obstacle_words
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

MAX_UPSTREAM_POOLS: Final = 64


@attrs.define(eq=False, repr=False)
class Pools:
    """See the module docstring. There always is a pool ``default``, to which Paddler's requests go
    whether or not it has a model.

    Args:
      new_ledger: makes the ledger of each.
      changed: notified when a queue is empty, or not empty any more.
    """

    new_ledger: Callable[[], SlotLedger]
    changed: Changes
    _by_name: dict[str, Pool] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        settings = PoolSettings(name=DEFAULT_DEPLOYMENT)
        self._by_name[DEFAULT_DEPLOYMENT] = Pool(settings, self.new_ledger())

    def __repr__(self) -> str:
        return f"<Pools {', '.join(self._by_name)}>"

    def known(self) -> list[Pool]:
        """Return those of all deployments that there are, ``default`` first."""
        return [pool for pool in self._by_name.values() if pool.is_known]

    def all(self) -> list[Pool]:
        """Return them all, also those that are left of deployments that were removed."""
        return list(self._by_name.values())

    def find(self, deployment: str) -> Pool | None:
        """Return the pool of a deployment that there is."""
        pool = self._by_name.get(deployment)
        return pool if pool is not None and pool.is_known else None

    def of(self, owner: AgentConnection | Request) -> Pool:
        """Return the pool of a connected agent, or of a request that has not ended."""
        return self._by_name[owner.deployment]

    def joined_by(self, agent: AgentConnection) -> Pool:
        """Return the pool for a new agent; it need not be that of a deployment that there is."""
        if agent.kind.forwards:
            return self.open_upstream(agent.deployment)
        return self._with(agent.deployment)

    def replace(self, deployments: Sequence[PoolSettings]) -> Iterator[tuple[Pool, PoolSettings]]:
        """These are the deployments now. Yields those with other settings, to be admitted again;
        then those that are left end what they cannot answer."""
        missing = PoolSettings(name=DEFAULT_DEPLOYMENT, admissible=frozenset(), empty=True)
        wanted = {
            DEFAULT_DEPLOYMENT: missing,
            **{settings.name: settings for settings in deployments},
        }
        for name, settings in wanted.items():
            pool = self.find(name)
            if pool is not None and pool.is_upstream:
                continue  # servers took the name first; the fleet's owner is told when it is stored
            if pool is None or pool.settings != settings:
                yield self.open(name), settings
        for pool in list(self._by_name.values()):
            if pool.is_known and not pool.is_upstream and pool.name not in wanted:
                pool.is_known = False
                self.end_if_left(pool)

    def open(self, name: str) -> Pool:
        """There is a deployment of this name."""
        pool = self._with(name)
        pool.is_known = True
        return pool

    def open_upstream(self, name: str) -> Pool:
        """The pool of the servers of this name, which there is from now on: requests wait in it
        also while no agent stands in front of one. The name is no other deployment's."""
        pool = self._by_name.get(name)
        if pool is None:
            settings = PoolSettings(name=name)
            pool = self._by_name[name] = Pool(settings, self.new_ledger(), is_upstream=True)
        assert pool.is_upstream, f"{name!r} is a deployment of models"
        return pool

    def upstreams(self) -> list[Pool]:
        """Return those of servers."""
        return [pool for pool in self._by_name.values() if pool.is_upstream]

    def upstream_problem(self, name: str) -> str | None:
        """Return why there can be no servers of this name; None if there can."""
        pool = self._by_name.get(name)
        if pool is not None and not pool.is_upstream:
            return f"{name!r} is a deployment of models: choose another --deployment"
        if pool is None and len(self.upstreams()) >= MAX_UPSTREAM_POOLS:
            return f"there are {MAX_UPSTREAM_POOLS} deployments of servers already"
        return None

    def end_if_left(self, pool: Pool) -> None:
        """A pool that is no deployment any more, and has no agent, answers nothing any more."""
        if not pool.is_known and not pool.agents:
            for request in list(pool.requests.values()):
                if isinstance(request.phase, Buffered):
                    request.end(no_such_deployment(pool.name))
        self.forget_if_unused(pool)

    def forget_if_unused(self, pool: Pool) -> None:
        """Something of this pool has ended: there may be nothing left of it."""
        if pool.is_unused:
            self._by_name.pop(pool.name, None)

    def _with(self, name: str) -> Pool:
        if name not in self._by_name:
            settings = PoolSettings(name=name, admissible=frozenset())
            self._by_name[name] = Pool(settings, self.new_ledger(), is_known=False)
        return self._by_name[name]

    # ------------------------------------------------------- what they hold

    def statistics(self) -> LedgerStatistics:
        counts = [pool.ledger.statistics() for pool in self._by_name.values()]
        return LedgerStatistics(
            slots_processing=sum(each.slots_processing for each in counts),
            slots_total=sum(each.slots_total for each in counts),
            requests_buffered=sum(each.requests_buffered for each in counts),
        )

    def demand(self) -> Mapping[str, Demand]:
        """Return what waits and what runs, of each deployment."""
        now_s = trio.current_time()
        return {pool.name: pool.demand(now_s) for pool in self.known()}

    def retry_after_s(self, deployment: str = DEFAULT_DEPLOYMENT) -> int:
        """Return when a request that was refused now should come again, in seconds."""
        pool = self._by_name.get(deployment) or self._by_name[DEFAULT_DEPLOYMENT]
        return pool.retry_after_s(trio.current_time())

    def position(self, request: Request) -> int | None:
        """Return how many stand before this request in its queue; None if it does not wait."""
        pool = self._by_name.get(request.deployment)
        return None if pool is None else pool.ledger.position(request.key)

    def hold_of(self, request: Request) -> Hold | None:
        """Return why a request waits, if its pool is held."""
        pool = self._by_name.get(request.deployment)
        return None if pool is None or pool.serves else pool.held

    def serves(self, deployment: str) -> bool:
        """Return whether an agent of this deployment has slots and gets work."""
        pool = self.find(deployment)
        return pool is not None and pool.serves

    def obstacle(self, deployment: str) -> str:
        """Return why its requests wait, if they do not only wait for their turn; else an empty
        text."""
        pool = self._by_name.get(deployment)
        if pool is None or pool.serves:
            return ""
        if pool.held is not None:
            return pool.held.reason
        drained = sum(agent.is_drained for agent in pool.agents.values())
        return obstacle_words(len(pool.agents), drained)

    def note_buffered(self, pool: Pool) -> bool:
        """Requests came into its queue or left it; False if their number is the same."""
        buffered = pool.ledger.num_waiting
        if buffered == pool.num_buffered:
            return False
        had_waiting = pool.has_waiting
        pool.num_buffered = buffered
        if pool.has_waiting != had_waiting:
            self.changed.notify()
        return True

    @contextmanager
    def asking(self, pool: Pool) -> Iterator[None]:
        """A question waits for an agent of this pool, which is a demand like a request."""
        since_s = trio.current_time()
        had_waiting = pool.has_waiting
        pool.asking_since_s.append(since_s)
        if not had_waiting:
            self.changed.notify()
        try:
            yield
        finally:
            pool.asking_since_s.remove(since_s)
            if not pool.has_waiting:
                self.changed.notify()
            self.end_if_left(pool)
