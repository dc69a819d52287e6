"""What an agent may expect of its balancer, whatever befalls them.

Never more requests than it has slots; none after a new state until it serves that; no work for long
after its client left. Of a stopped request the balancer may assume that it is over when the agent
said so, or ``stop_confirmation_s`` after it asked.

Messages cross: an agent of Paddler's that was still loading when a state was sent to it cannot be
told from one that had just finished, and one that stood still heard of nothing. What could not be
known is not held against the balancer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import trio
from agent_words import AgentSwapState
from scenario import AgentPlan
from sim_engine import Produced, Running
from world import SLACK_S, Story, World

EXCUSED_S = 12.0
"""So long after an agent stood still its messages and the balancer's may have crossed."""
STOP_GRACE_S = 0.4
"""How long after its client left an agent may work on a request before it must know."""


@attrs.define(eq=False)
class Expectations:
    """Of one connection; a new one begins with nothing heard and nothing said."""

    plan: AgentPlan
    world: World
    _reported: set[str] = attrs.field(factory=set, init=False)
    """States it said it serves."""
    _heard: str | None = attrs.field(default=None, init=False)
    """The newest state."""
    _owes_reload: bool = attrs.field(default=False, init=False)
    """Paddler's: a state was sent to it when it was known as settled, and is not loaded yet."""
    _settled_since_s: float = attrs.field(default=math.inf, init=False)

    def said(self, standing: AgentSwapState) -> None:
        """The agent published this of itself."""
        if standing.served is not None and not standing.is_leaving:
            self._reported.add(standing.served)
        if standing.is_loaded and self._settled_since_s == math.inf:
            self._owes_reload = False
            self._settled_since_s = trio.current_time()

    def heard_state(self, digest: str, sent_s: float) -> None:
        """A state has arrived that was sent then."""
        self._heard = digest
        self._owes_reload = self._settled_since_s + self.plan.latency_s < sent_s
        self._settled_since_s = math.inf

    def check_start(
        self, story: Story, running: Iterable[Running], *, sent_s: float, stood_still_s: float
    ) -> None:
        """A request arrives; the agent stood still until then, if it ever did."""
        name, prompt = self.plan.id, story.ask.prompt
        is_excused = stood_still_s > 0 and trio.current_time() < stood_still_s + EXCUSED_S
        if self.plan.is_paddler:
            if self._owes_reload and not is_excused:
                self.world.fail(f"{name} gets {prompt} before its new model")
        elif self._heard not in self._reported:
            self.world.fail(f"{name} gets {prompt} before it serves the state")
        patience_s = self.world.scenario.stop_confirmation_s
        held = [other for other in running if other.stop_sent_s + patience_s > sent_s + SLACK_S]
        if len(held) >= self.plan.slots and not is_excused:
            self.world.fail(f"{name} has {self.plan.slots} slots and gets {prompt} beyond them")

    def check_wanted(self, one: Produced, *, stood_still_s: float) -> None:
        """The engine has worked on this request: somebody must want it."""
        story, plan = one.running.story, self.plan
        gone_s = story.nobody_wants_it_since_s
        if gone_s is None or one.running.is_stopped or not (one.tokens or one.results):
            return
        if story.left_at_s is None and not story.client.reading.is_quick:
            return  # what its client says is not read either, until it reads its answers
        knows_s = max(gone_s, stood_still_s) + STOP_GRACE_S + 2 * plan.latency_s + plan.pass_s
        if trio.current_time() > knows_s:
            self.world.fail(f"{plan.id} works on {story.ask.prompt} for nobody")

    def check_close(self, *, is_own_fault: bool, is_id_free: bool, code: int) -> None:
        """Turned away only for a fault of its own, or while its id is taken."""
        if code == 1008 and is_id_free and not is_own_fault:
            self.world.fail(f"{self.plan.id} was turned away for nothing")
