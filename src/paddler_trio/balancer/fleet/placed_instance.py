"""One deployment on a host: what it was sent, and what it does."""

from __future__ import annotations

from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.host_knowledge import Digest, HostId
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.fleet.fleet_values import Instance
from paddler_trio.scheduler.truth.agent_truth import UNLOADED
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    applicable_state,
)
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
)

log = structlog.get_logger("fleet")

LOADING: Final = frozenset({"loading", "probing"})
"""Phases in which an engine starts; what is served meanwhile is served beside it."""
ORDERED: Final = UNLOADED | {"restarting"}
"""Phases in which an engine ends because an operator wished so."""
CONNECTING: Final = "connecting"
"""The phase of an instance that is wanted and has no connection yet."""

_STUCK: Final = frozenset(
    {
        AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
        AgentStateApplicationStatus.STUCK,
        AgentStateApplicationStatus.ATTEMPTED_AND_NOT_APPLIABLE,
    }
)


@attrs.frozen
class State:
    """Say what an instance is to serve; ``slots``: None for as many as its host has."""

    digest: Digest
    desired: AgentDesiredState
    extras: Extras
    slots: int | None = None

    @classmethod
    def of(cls, desired: AgentDesiredState, extras: Extras, slots: int | None = None) -> State:
        return cls(extended_digest(desired, extras), desired, extras, slots)


NOTHING: Final = State.of(applicable_state(BalancerDesiredState.default()), NO_EXTRAS)


@attrs.define(eq=False)
class PlacedInstance:
    """A deployment on a host, from its assignment to its unloading.

    Args:
      dispatcher: where its connection gives and takes work.
      state: what it was assigned; None for one that was found and not assigned yet.
    """

    host: HostId
    deployment: str
    dispatcher: Dispatcher
    state: State | None = None
    agent: AgentConnection | None = attrs.field(default=None, init=False)
    is_unloading: bool = attrs.field(default=False, init=False)
    """It shall be gone; what it answers now is finished first."""
    has_moved: bool = attrs.field(default=False, init=False)
    """The agent's requests were given to others since it was assigned its state."""
    nothing: State = attrs.field(default=NOTHING, init=False)
    """The state that it is sent then, on the first connection of a host."""
    assigned_s: float = attrs.field(factory=trio.current_time, init=False)
    crashes: int = attrs.field(default=0, init=False)
    _old_status: SlotAggregatedStatusSnapshot | None = attrs.field(default=None, init=False)
    """Of an agent of Paddler's, which does not say of what state it speaks: the one from before it
    was sent its newest."""
    _serving: Digest | None = attrs.field(default=None, init=False)
    _served_s: float | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<PlacedInstance {self.deployment} on {self.host}: {self.phase}>"

    @property
    def phase(self) -> str:
        """Return a phase of ``Report``, or ``connecting``."""
        agent = self.agent
        if agent is None:
            return CONNECTING
        if agent.kind.reports_state:
            report = agent.report
            if report is None:
                return "resolving"
            was_sent = None if self.state is None else self.state.digest
            has_heard = was_sent in (None, report.wanted_state)
            # what failed before is nothing against what it is about to hear of
            return report.phase if has_heard or report.phase != "failed" else "resolving"
        if agent.status.state_application_status in _STUCK and agent.status is not self._old_status:
            return "failed"
        return "serving" if agent.serves_desired else "loading"

    @property
    def found_state(self) -> Digest | None:
        """Return what it was sent before this balancer sent anything, by its own report."""
        if self.state is not None or self.is_unloading or self.agent is None:
            return None
        return None if self.agent.report is None else self.agent.report.wanted_state

    @property
    def sent_nothing(self) -> Digest | None:
        """Return the state without a model that it was sent last, if it was sent one."""
        return self.nothing.digest if self.is_unloading else None

    @property
    def problem(self) -> str | None:
        """Why it does not serve what it was assigned, where that is known."""
        agent = self.agent
        if agent is None or self.phase != "failed":
            return None
        if agent.report is not None and agent.report.detail:
            return agent.report.detail
        return "; ".join(map(str, agent.status.issues)) or "the agent gives no reason"

    def waits_for(self, digest: Digest, *, slots: int | None) -> bool:
        """It serves another state, and was not sent this one yet. With another number of slots it
        would end and begin anew, whatever it serves."""
        agent, state = self.agent, self.state
        serving = None if agent is None else self._serving_now(agent)
        if self.is_unloading or serving in (None, digest):
            return False
        if state is not None and state.digest != serving:
            return False  # it is on its way to something
        is_first = self.deployment == DEFAULT_DEPLOYMENT
        return is_first or state is None or state.slots == slots

    def assign(self, state: State) -> None:
        """Serve this from now on; sent at once if it is connected."""
        if self.state is None or self.state.digest != state.digest:
            self.assigned_s, self.crashes, self.has_moved = trio.current_time(), 0, False
        self.state, self.is_unloading = state, False
        self._send(state)

    def unload(self, nothing: State = NOTHING) -> None:
        """Serve nothing any more; ``nothing`` is a state without a model."""
        self.state, self.is_unloading, self.nothing = None, True, nothing
        if self.deployment == DEFAULT_DEPLOYMENT:
            self._send(nothing)

    def connected(self, agent: AgentConnection) -> None:
        """Note that its connection is up (again)."""
        self.agent = agent
        self._serving = self._served_s = None
        state = self.nothing if self.is_unloading else self.state
        if state is not None:
            self._send(state)

    def drain_by(self, deadline_s: float) -> float | None:
        """If it still drains ``deadline_s`` after it was assigned its state, others go on with its
        requests, as far as they can; when to look again, None for not at all."""
        agent = self.agent
        if agent is None or self.has_moved or self.phase != "draining":
            return None
        if trio.current_time() < self.assigned_s + deadline_s:
            return self.assigned_s + deadline_s
        self.has_moved = True
        moved = self.dispatcher.move_requests(agent, "the drain deadline has passed")
        log.info("drain deadline", agent=agent.label, moved=moved, left=agent.slots_processing)
        return None

    def _send(self, state: State) -> None:
        """An agent that hears of a state it does not serve gets no work from this very step on."""
        agent = self.agent
        if agent is None:
            return
        sent_before = agent.sent_revision
        agent.send_state(state.desired, state.extras)
        if sent_before not in (None, agent.sent_revision):
            self._old_status = agent.status
        self.dispatcher.update(agent)

    def seen(self, *, can_load_beside: bool | None = None) -> Instance:
        """Return it as the planner sees it now; what it serves, and since when, is noted.

        Args:
          can_load_beside: as it said last; what it does goes before.
        """
        agent = self.agent
        serving = None if agent is None else self._serving_now(agent)
        if serving != self._serving:
            self.crashes += self._has_crashed(serving)
            self._serving = serving
            self._served_s = None if serving is None else trio.current_time()
        return Instance(
            deployment=self.deployment,
            assigned=None if self.state is None else self.state.digest,
            serving=serving,
            phase=self.phase,
            problem=self.problem,
            slots=0 if agent is None else agent.status.slots_total,
            busy=0 if agent is None else agent.slots_processing,
            assigned_s=self.assigned_s,
            served_s=self._served_s,
            idle_s=None if agent is None else agent.idle_since_s,
            crashes=self.crashes,
            can_load_beside=can_load_beside if self.phase not in LOADING else serving is not None,
            is_ours=agent is None or agent.kind.reports_state,
            is_unloading=self.is_unloading
            and (serving is not None or self.deployment != DEFAULT_DEPLOYMENT),
        )

    def _serving_now(self, agent: AgentConnection) -> Digest | None:
        served = agent.revision if agent.kind.reports_state or agent.serves_desired else None
        return None if served == self.nothing.digest else served

    def _has_crashed(self, serving: Digest | None) -> bool:
        """It stopped serving what it was assigned last, while it was connected: its engine died."""
        if self.agent is None or self.state is None or serving is not None:
            return False
        if self.phase in ORDERED:
            return False
        return bool(self._serving == self.state.digest)
