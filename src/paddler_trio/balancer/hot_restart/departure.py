"""A dispatcher lets go of its agents while another process takes over.

First every agent is told, and dials the other process while this one uses all of its slots. Then
slots are let go: those that are free at once, the others with the requests in them; a request that
waits keeps slots as long as it does. A link that nothing is left on is closed.

The order matters: the ledger first knows of fewer slots, and only then the agent, which offers them
to the other process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.nursery_tree.request import Buffered
from paddler_trio.nursery_tree.request_endings import MOVED
from paddler_trio.scheduler.dispatch.slots_kept import slots_kept

log = structlog.get_logger("handover")

FOLLOW_S: Final = 5.0
"""Agents that have not dialled the other process by then do so while it serves already."""
TUNNELS_S: Final = 2.0
MAX_SPARE_TUNNELS: Final = 64
SPARE_BESIDE: Final = 8
"""Idle tunnels of each agent in front of a server, for what takes no slot."""
LOOK_S: Final = 1.0
SOON_S: Final = 0.05


@attrs.define(eq=False)
class Departure:
    """See the module docstring."""

    dispatcher: Dispatcher
    _num_expected: Callable[[], int] | None = attrs.field(default=None, init=False)
    """While slots are let go: how many requests may be on their way here."""

    def __repr__(self) -> str:
        kept = sum(agent.kept_slots or 0 for agent in self.dispatcher.agents.values())
        return f"<Departure: {len(self.dispatcher.agents)} agents, {kept} slots kept>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell agents, those that come too; let go when :meth:`let_go` says so. Until cancelled.

        Started means: all that are here have been told.
        """
        changes = self.dispatcher.agents_changed
        self._look()
        task_status.started()
        while True:
            expected = self._num_expected is not None and self._num_expected()
            # neither a question that was answered nor a client that asked nothing is a change
            with trio.move_on_after(SOON_S if expected else LOOK_S):
                await changes.wait_beyond(changes.ordinal)
            self._look()

    async def dial_tunnels(self) -> None:
        """Have agents in front of servers dial what may be needed here, and what requests have
        asked for. It is the last moment: what they dial from now on, they dial at the other
        process."""
        tunnels = [(each, each.tunnels) for each in self._agents() if each.tunnels is not None]
        with trio.move_on_after(TUNNELS_S):
            async with trio.open_nursery() as dials:
                for agent, each in tunnels:
                    free = max(0, agent.status.slots_total - agent.slots_processing)
                    spare = min(free + SPARE_BESIDE, MAX_SPARE_TUNNELS)
                    dials.start_soon(each.dial_spare, spare)
            for _, each in tunnels:
                each.dial_no_more()
            for _, each in tunnels:
                await each.wait_asked()
        for _, each in tunnels:
            each.dial_no_more()
            each.give_up_asked()

    async def wait_followed(self) -> None:
        """Until every agent that can is registered with the other process, ``FOLLOW_S`` at most."""
        changes = self.dispatcher.fleet_changed
        with trio.move_on_after(FOLLOW_S) as patience:
            while behind := [each for each in self._agents() if not self._has_followed(each)]:
                await changes.wait_beyond(changes.ordinal)
        if patience.cancelled_caught:
            log.warning("agents have not followed yet", agents=[each.label for each in behind])

    def let_go(self, num_expected: Callable[[], int] = lambda: 0) -> None:
        """Let go of slots from now on, but for those that requests need that are on their way: as
        many as ``num_expected`` returns."""
        self._num_expected = num_expected
        self._look()

    # ---------------------------------------------------------------- within

    def _agents(self) -> list[AgentConnection]:
        return list(self.dispatcher.agents.values())

    def _has_followed(self, agent: AgentConnection) -> bool:
        return agent.has_followed or Feature.FOLLOWS not in agent.features

    def _look(self) -> None:
        expected = None if self._num_expected is None else self._num_expected()
        for agent in self._agents():
            pool = self.dispatcher.pools.of(agent)
            held, status = agent.slots_processing, agent.status
            if agent.kept_slots is None:
                self._keep(agent, max(held, status.desired_slots_total, status.slots_total))
            if expected is None:
                continue
            assert agent.kept_slots is not None
            waiting = pool.num_buffered + len(pool.asking_since_s) + expected
            kept = slots_kept(agent.kept_slots, held=held, waiting=waiting)
            if kept != agent.kept_slots:
                self._keep(agent, kept)
            if kept == 0 and not agent.has_work_beside:
                agent.part()
        if expected is not None:
            for pool in self.dispatcher.pools.all():
                self._give_up(pool)

    def _keep(self, agent: AgentConnection, slots: int) -> None:
        agent.kept_slots = slots
        agent.refresh_readiness()
        self.dispatcher.update(agent)  # the ledger grants no more than these from here on
        agent.say_kept()

    def _give_up(self, pool: Pool) -> None:
        """Tell what waits for slots that all have been let go, or for an answer of their agents, to
        come again."""
        if any(agent.kept_slots for agent in pool.agents.values()):
            return
        if not pool.has_moved:
            pool.has_moved = True
            self.dispatcher.agents_changed.notify()
        for request in list(pool.requests.values()):
            if isinstance(request.phase, Buffered):
                request.end(MOVED)
