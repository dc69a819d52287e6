"""The dispatcher under observation: after every decision, is what it decided allowed?

It only looks. What it compares with are the agents' own words and the requests themselves, so that
ledger and shell are checked together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import trio
from second_deployment import introduce
from sim_wire import CURRENT, Wire
from world import SLACK_S, Story, World, prompt_in

from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.nursery_tree.request import SLOW_READER, Buffered, Lease, Phase, Request, Stopping
from paddler_trio.nursery_tree.request_endings import DISPLACED, Failure
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Granted
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.wire.trio.request_frame import EncodedWork


class WatchedDispatcher(Dispatcher):
    """Fails the simulation when a slot is given, kept or taken against the rules."""

    def __init__(self, limits: DispatchLimits, world: World) -> None:
        placement = WarmPlacement(trio.current_time)
        super().__init__(limits, Observers((PlacementObserver(placement),)), placement)
        self.world = world
        self.submitted: list[Request] = []
        self.wires: dict[AgentKey, Wire] = {}
        self._classes: dict[RequestKey, object] = {}
        """What was said at submission: among those alike in it, the first come is served first."""

    # ------------------------------------------------------------------ requests

    def submit(self, request_id: str, work: EncodedWork, **options: Any) -> Request:
        story = self.world.story_of(work.body)
        story.submitted_s = trio.current_time()
        pool = self.pools.find(options.get("deployment", "default"))
        assert pool is not None
        story.was_buffer_full |= pool.num_buffered >= self.limits.max_buffered
        key = RequestKey(self._arrivals + 1)
        self.world.note("balancer", f"submit {prompt_in(work.body)} as {key}")
        self._classes[key] = sorted(each for each in options.items() if each[0] != "route")
        request = super().submit(request_id, work, **options)
        assert request.key == key
        self.submitted.append(request)
        return request

    def _grant(self, granted: Granted) -> None:
        request, agent = self._requests[granted.request], self.agents[granted.agent]
        prompt = prompt_in(request.work.body)
        held, total = self.slots_processing(agent.key), agent.usable_slots
        self.world.note("balancer", f"grant {prompt} -> {agent.id} ({held}/{total})")
        if not agent.is_accepting or agent.id in self.world.drained:
            self.world.fail(f"{prompt} got a slot of {agent.id}, which accepts nothing")
        if agent.deployment != request.deployment:
            self.world.fail(f"{prompt} is for {request.deployment}, {agent.id} is not")
        if held > total:
            self.world.fail(f"{agent.id} has {total} slots and holds {held} requests")
        self._check_may_be_placed(request)
        for other in self._requests.values():
            may_have_any = not (self._kind(other) or other.suspicions or other.pinned_to)
            is_before = other.key < request.key and self._waits(other) and may_have_any
            if is_before and self._classes[other.key] == self._classes[request.key]:
                self.world.fail(f"{prompt} overtook {prompt_in(other.work.body)}")
        self._story(request).grants += 1
        self.world.heard_of(request.key)
        super()._grant(granted)

    def _apply(self, pool: Pool, decisions: Iterable[Any]) -> None:
        super()._apply(pool, decisions)
        for request in self._requests.values():
            if self._waits(request):
                self._check_nothing_is_free_for(request)

    def _moved(self, request: Request, left: Phase) -> None:
        story = self._story(request)
        if isinstance(left, Buffered):
            waited_s = trio.current_time() - left.since_s
            story.longest_wait_s = max(story.longest_wait_s, waited_s)
        if request.is_over and not isinstance(left, Stopping):
            self._check_ending(request, story)
        super()._moved(request, left)

    def _note_stranded(self, pool: Pool) -> None:
        models = {agent.model for agent in pool.agents.values() if agent.kind.reports_state}
        revisions = {agent.revision for agent in pool.agents.values() if agent.is_accepting}
        for request in pool.requests.values():
            if not self._waits(request):
                continue
            is_lost = request.tokens and not models & {None, request.model}
            if is_lost or (request.pinned_to and request.pinned_to not in revisions):
                self._story(request).was_stranded = True
        super()._note_stranded(pool)

    def _check_ending(self, request: Request, story: Story) -> None:
        """It is over for its client, in this step."""
        prompt = prompt_in(request.work.body)
        self.world.note("balancer", f"{prompt} ends: {request.ending}")
        match request.ending:
            case Failure(502, words) if "malformed frame" in words:
                if not story.was_named_by_broken_frame:
                    self.world.fail(f"{prompt} is blamed for a frame that was not broken")
            case Failure(504, words) if words.startswith("Inference timed out"):
                story.was_silent_too_long = True
                if request.lease is None or request.lease.agent.key not in self.agents:
                    self.world.fail(f"{prompt} waited for a token of an agent that is gone")
                silent_s = self.world.silent_s(request.key)
                if silent_s < self.limits.item_timeout_s - SLACK_S:
                    self.world.fail(f"{prompt}: {silent_s:.3f} s without a token were too long")
            case failure if failure == SLOW_READER and story.client.reading.is_quick:
                self.world.fail(f"{prompt}: its client reads at once and is called slow")
            case failure if failure == DISPLACED:
                story.was_buffer_full = True
                if request.agents:
                    self.world.fail(f"{prompt} had a slot and made room for another")

    def hand_back(self, lease: Lease, reason: str, *, suspects: int) -> None:
        if lease.request.lease is lease:
            self._story(lease.request).suspicions += suspects > 0
        super().hand_back(lease, reason, suspects=suspects)

    # -------------------------------------------------------------------- agents

    def join(self, agent: AgentConnection) -> None:
        if any(other.id == agent.id for other in self.agents.values()):
            self.world.fail(f"{agent.id} is registered twice")
        self.wires[agent.key] = CURRENT.get()
        introduce(agent)
        super().join(agent)

    def leave(self, agent: AgentConnection) -> None:
        wire = self.wires[agent.key]
        if agent.key in self.agents:
            self.world.note("balancer", f"{agent.id} is gone: {wire.doom}")
            if wire.doom is None and not wire.gone and not self.world.is_ending:
                self.world.fail(f"{agent.id} was thrown out for nothing")
            for lease in agent._leases.values():
                words = 1 if lease.isolated == "agent" else 0
                was_prepared = lease.num_deliveries != words or agent.said_goodbye
                self._story(lease.request).suspicions += not was_prepared
        super().leave(agent)

    def check_nobody_lingers(self) -> None:
        """An agent that said goodbye, or nothing for too long, has no slots any more."""
        now_s = trio.current_time()
        for agent in self.agents.values():
            wire = self.wires[agent.key]
            silent_s = now_s - wire.last_delivered_s
            if wire.told_disconnect_at_s is not None and wire.told_disconnect_at_s < now_s:
                self.world.fail(f"{agent.id} has disconnected and still offers its slots")
            if silent_s > self.world.scenario.silence_s + SLACK_S:
                self.world.fail(
                    f"{agent.id} is silent for {silent_s:.3f} s, still offers its slots"
                )

    # ------------------------------------------------------------------- private

    def _story(self, request: Request) -> Story:
        return self.world.story_of(request.work.body)

    def _waits(self, request: Request) -> bool:
        return isinstance(request.phase, Buffered)

    def _kind(self, request: Request) -> str | None:
        return request.model if request.tokens else None

    def _check_may_be_placed(self, request: Request) -> None:
        """Never anew while draining, and only so often, so that it cannot bring down everybody."""
        story, prompt = self._story(request), prompt_in(request.work.body)
        if not self._waits(request):
            return  # its task is about to end it
        limits = self.limits.continuation
        if self.world.draining_since_s is not None and not request.agents:
            self.world.fail(f"{prompt} begins although the balancer is shutting down")
        if len(request.agents) > limits.max_continuations:
            self.world.fail(f"{prompt} was placed {len(request.agents)} times already")
        is_only_poisoned = self.world.scenario.temper == "poisoned"
        if is_only_poisoned and story.kills >= limits.max_suspicions:
            # else a connection may have been lost together with what the agent had to say of it
            self.world.fail(f"{prompt} goes on although it killed {story.kills} times")

    def _check_nothing_is_free_for(self, request: Request) -> None:
        kind = self._kind(request)
        for agent in self.agents.values():
            if agent.deployment != request.deployment:
                continue
            if request.suspicions and not agent.kind.isolates:
                continue  # it could not be kept apart there
            free = agent.usable_slots - self.slots_processing(agent.key)
            if request.pinned_to not in (None, agent.revision):
                continue  # the rest of its call has another model's answer
            if agent.is_accepting and free > 0 and kind in (None, agent.model):
                prompt = prompt_in(request.work.body)
                self.world.fail(f"{prompt} waits although {agent.id} has {free} free slots")
