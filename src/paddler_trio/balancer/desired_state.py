"""The desired state of the fleet: stored, published, and sent to every agent.

Publishing is one synchronous step: the applicable state changes and every agent is sent it before
anything else runs, so an agent that joins meanwhile cannot get the old one. An identical state is
a no-op: no agent reloads because of it.
"""

from __future__ import annotations

import attrs
import structlog
import trio

from paddler_trio.balancer.state_database import StateDatabase
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.synchronization import Changes
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    applicable_state,
    desired_state_problem,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

log = structlog.get_logger("state")


@attrs.define(eq=False)
class DesiredStateKeeper:
    """The only writer of the desired state. ``load`` must have run before anything reads it."""

    database: StateDatabase
    dispatcher: Dispatcher
    mode_changed: Changes = attrs.field(factory=Changes, init=False)
    published: Changes = attrs.field(factory=Changes, init=False)
    """Before agents are sent the state."""
    _desired: BalancerDesiredState = attrs.field(factory=BalancerDesiredState.default, init=False)
    _extras: Extras = attrs.field(default=NO_EXTRAS, init=False)
    _applicable: AgentDesiredState | None = attrs.field(default=None, init=False)
    _digest: str = attrs.field(default="", init=False)
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def load(self) -> None:
        """Read the stored state and publish it; StateDatabaseError if it cannot be read.

        A state that would be refused today was stored by an older version: it stays in force, and
        the agents report why they cannot serve it.
        """
        desired, extras = await self.database.read()
        problem = desired_state_problem(desired)
        if problem is not None:
            log.warning("the stored desired state cannot be served: store another", reason=problem)
        self._publish(desired, extras)

    async def replace(self, desired: BalancerDesiredState, extras: Extras | None = None) -> str:
        """Store and publish a whole new state; the last of several concurrent ones wins.

        Args:
          extras: settings beside it; None keeps the current ones.

        Returns:
          The digest under which our agents report what they serve.

        Errors:
          StateDatabaseError: it could not be stored; the old state stays in force.

        Cancellation: the state is either stored and published, or neither.
        """
        async with self._writing:
            new_extras = self._extras if extras is None else extras
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
                await self.database.write(desired, new_extras)
            self._publish(desired, new_extras)
        return self._digest

    @property
    def extras(self) -> Extras:
        """The settings beside the desired state."""
        return self._extras

    @property
    def desired(self) -> BalancerDesiredState:
        return self._desired

    @property
    def applicable(self) -> AgentDesiredState | None:
        return self._applicable

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def generates_tokens(self) -> bool:
        """False while the cluster is in embeddings mode."""
        return self._applicable is None or not (
            self._applicable.inference_parameters.enable_embeddings
        )

    def introduce(self, agent: AgentConnection) -> None:
        """Send the state to a new agent."""
        if self._applicable is not None:
            agent.send_state(self._applicable, self._extras)

    def _publish(self, desired: BalancerDesiredState, extras: Extras) -> None:
        generated = self.generates_tokens
        self._desired, self._extras = desired, extras
        self._applicable = applicable_state(desired)
        self._digest = extended_digest(self._applicable, extras)
        self.published.notify()
        log.info("desired state", digest=self._digest[:12], model=str(desired.model))
        for agent in self.dispatcher.agents.values():
            if agent.deployment != DEFAULT_DEPLOYMENT:
                continue
            agent.send_state(self._applicable, extras)
            self.dispatcher.update(agent)
        self.dispatcher.agents_changed.notify()  # the digest is shown, also where there are none
        if self.generates_tokens != generated:
            self.mode_changed.notify()
