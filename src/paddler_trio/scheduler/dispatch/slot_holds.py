"""The requests that let free slots pass, each for the slot of one agent and for a moment."""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.dispatch.agent_index import Constraint
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Pick
from paddler_trio.scheduler.dispatch.wait_queue import WaitQueue
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement


@attrs.define
class SlotHolds:
    """See the module docstring; such a request asks the queue for its agent alone, and stands where
    it stood.

    Args:
      placement: is told when one waits for no certain agent any more.
    """

    queue: WaitQueue
    placement: WarmPlacement | None
    _new: dict[RequestKey, float] = attrs.field(factory=dict, init=False)
    _held: dict[RequestKey, tuple[Pick, Constraint]] = attrs.field(factory=dict, init=False)

    def __contains__(self, request: RequestKey) -> bool:
        return request in self._held

    def add(self, request: RequestKey, pick: Pick, until_s: float, wanted: Constraint) -> None:
        """Let a request that waits have no slot but that agent's, until it is released."""
        self._held[request] = pick, wanted
        self._new[request] = until_s
        self.queue.regroup(request, attrs.evolve(wanted, agent=pick.agent))

    def take_new(self) -> list[tuple[RequestKey, float]]:
        """Return those that were added since the caller looked and still hold out, and until
        when."""
        new, self._new = self._new, {}
        return [each for each in new.items() if each[0] in self._held]

    def release(self, request: RequestKey) -> bool:
        """Let a request that waits have any slot again; False if it could."""
        held = self._held.get(request)
        if held is None:
            return False
        self.forget(request)
        self.queue.regroup(request, held[1])
        return True

    def release_all(self, agent: AgentKey) -> None:
        """Let those that wait for this agent have any slot again."""
        for request in [key for key, held in self._held.items() if held[0].agent == agent]:
            self.release(request)

    def forget(self, request: RequestKey) -> Pick | None:
        """Return what a request waited for that waits no more; None if it was any slot."""
        held = self._held.pop(request, None)
        if held is None or self.placement is None:
            return None
        self.placement.unheld(request)
        return held[0]
