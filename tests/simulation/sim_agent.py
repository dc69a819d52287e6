"""A simulated agent: a process with an engine, and a link to the balancer when it has one.

Frames take ``latency_s`` in each direction and keep their order. The agent checks that what it is
given is what it may expect (``expectations``), and that a continuation goes on from tokens that its
own weights would have drawn.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

import attrs
import trio
from agent_words import AgentSwapState, pass_frame, response_frame, summary
from expectations import Expectations
from language import tokens_of
from scenario import AgentPlan, Poison
from second_deployment import placement
from sim_engine import CRASH_S, Produced, Running, SimEngine
from sim_wire import Wire
from world import World, documents_in, prompt_in

from paddler_trio.wire.codec import dumps, structure
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, LocalToAgent, state_digest
from paddler_trio.wire.paddler.messages import DeregisterAgent, RegisterAgent, render
from paddler_trio.wire.trio.trio_link import HandBack, Tree, render_extension

HEARTBEAT_S = 1.0
OUTGOING_FRAMES = 4096
"""More than any run has under way: the balancer's reader never waits, which is checked."""


@attrs.frozen
class Frame:
    """What goes out, and which requests it speaks of."""

    text: str
    queued_s: float
    speaks_of: tuple[Running, ...] = ()
    is_acknowledgement: bool = False
    """It says only that they are worked on."""
    is_last: bool = False
    """The connection is lost with it."""


@attrs.define(eq=False)
class SimAgent:
    """See the module docstring."""

    plan: AgentPlan
    world: World
    rng: random.Random
    engine: SimEngine = attrs.field(init=False)
    expectations: Expectations = attrs.field(init=False)
    wire: Wire | None = attrs.field(default=None, init=False)
    connection: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    is_leaving: bool = attrs.field(default=False, init=False)
    slots_withheld: int = attrs.field(default=0, init=False)
    frozen_until_s: float = attrs.field(default=0.0, init=False)
    away_until_s: float = attrs.field(default=0.0, init=False)
    frames_before_reset: int | None = attrs.field(default=None, init=False)
    """Of the next pass, before the connection is lost."""
    is_dead: bool = attrs.field(default=False, init=False)
    """A request killed it; the connection does not know yet."""
    turns: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Of requests that may have killed an agent, one is prepared at a time."""
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _version: int = attrs.field(default=0, init=False)
    _frames: trio.MemorySendChannel[Frame] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.engine = SimEngine(self.plan, self.world, self)

    # ---------------------------------------------------------------------- its tasks

    async def run(self) -> None:
        """Dial, serve, redial, until the balancer's listeners are closed."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.engine.follow)
            nursery.start_soon(self.engine.draw)
            await trio.sleep(self.plan.joins_at_s)
            while await self._connect():
                pause_s = self.rng.uniform(0.1, 0.6)
                await trio.sleep_until(max(trio.current_time() + pause_s, self.away_until_s))
            nursery.cancel_scope.cancel()

    async def wait_thawed(self) -> None:
        while trio.current_time() < self.frozen_until_s:
            await trio.sleep_until(self.frozen_until_s)

    async def _connect(self) -> bool:
        """One connection; False when there is nobody to connect to any more."""
        wire = self.world.dial_agent(self.plan, kernel_messages=self.rng.choice([2, 16]))
        if wire is None:
            return False
        self.is_leaving = self.is_dead = False
        self.expectations = Expectations(self.plan, self.world)
        frames, outgoing = trio.open_memory_channel[Frame](OUTGOING_FRAMES)
        self.wire, self._frames = wire, frames
        with frames, outgoing, trio.CancelScope() as self.connection:
            if self.plan.deployment != "default":
                self._send(dumps({"Trio": {"Placement": placement(self.plan)}}))
            self._send(render(RegisterAgent(self.plan.name, self.standing().snapshot())))
            self.publish()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, wire, outgoing)
                nursery.start_soon(self._beat)
                await self._read(wire)
                nursery.cancel_scope.cancel()
        self.wire = self._frames = None
        if wire.doom != "vanished":
            wire.hang_up()
        self.engine.forget_all()
        return True

    async def _write(self, wire: Wire, outgoing: trio.MemoryReceiveChannel[Frame]) -> None:
        async for frame in outgoing:
            await self._wait_travel(frame.queued_s)
            if frame.is_last:
                wire.doom = "reset in a burst"
                wire.hang_up()
                return
            began_s = trio.current_time()
            await wire.say(frame.text)
            if trio.current_time() > began_s and not wire.finished:
                self.world.fail(f"{self.plan.id} had to wait for the balancer's reader")
            for running in frame.speaks_of:
                self.world.heard_of(int(running.wire_id.partition(".")[0]))
                running.story.spoke_without_tokens |= not frame.is_acknowledgement and (
                    self.plan.is_paddler or running.documents is not None
                )

    async def _beat(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT_S)
            await self.wait_thawed()
            self.publish()

    async def _read(self, wire: Wire) -> None:
        while (heard := await wire.hear()) is not None:
            await self._wait_travel(heard.sent_s)
            message = heard.message
            if message["type"] == "websocket.close":
                self._on_close(wire, message["code"], heard.sent_s)
                return
            if message["type"] == "websocket.send":
                self._handle(json.loads(message["text"]), heard.sent_s)

    async def _wait_travel(self, sent_s: float) -> None:
        """Until what was sent then has arrived, and this process is awake."""
        if self.plan.latency_s:
            await trio.sleep_until(sent_s + self.plan.latency_s)
        await self.wait_thawed()

    # ------------------------------------------------------------------ what it says

    def publish(self) -> None:
        """The status, and to a balancer of ours the report."""
        self._version += 1
        standing = self.standing()
        self._send(standing.status_frame())
        if not self.plan.is_paddler:
            self._send(standing.report_frame())
        if self.wire is not None:
            self.expectations.said(standing)

    def say_step(self, produced: list[Produced]) -> None:
        """What a pass produced: to Paddler's balancers and of embeddings, one frame a result."""
        for one in produced:
            self.expectations.check_wanted(one, stood_still_s=self.frozen_until_s)
        self._note(f"step {summary(produced)}")
        whole = [
            one for one in produced if one.family == "GeneratedToken" and not self.plan.is_paddler
        ]
        frames: list[tuple[bytes, tuple[Running, ...]]] = [
            (response_frame(one.running.wire_id, one.family, result), (one.running,))
            for one in produced
            if one not in whole
            for result in one.results
        ]
        if whole and self.frames_before_reset is None:
            frames.append((pass_frame(whole), tuple(one.running for one in whole)))
        else:
            frames += [(pass_frame([one]), (one.running,)) for one in whole]
        for text, about in frames[: self.frames_before_reset]:
            self._send(text, about)
        if self.frames_before_reset is not None:
            self._send(b"", is_last=True)
            self.frames_before_reset = None

    def say_hand_back(self, running: Running, reason: str, *, suspects: int | None) -> None:
        self._note(f"hand back {running.wire_id}: {reason}, {suspects} suspects")
        died = suspects is not None
        frame = render_extension(HandBack(running.wire_id, reason, died, suspects))
        self._send(frame, (running,))

    def acknowledge(self, running: Running) -> None:
        """Its preparation goes on."""
        self._note(f"acknowledges {running.wire_id}")
        self._send(pass_frame([Produced(running, [], [])]), (running,), is_acknowledgement=True)

    def die(self, of: Running) -> None:
        """The whole process, after everything it said is out."""
        self._note(f"dies of {of.wire_id}")
        self.is_dead = True
        self.away_until_s = trio.current_time() + CRASH_S
        self.engine.forget_all()
        self._send(b"", is_last=True)

    def say_raw(self, text: str) -> None:
        self._note(f"says {text[:120]}")
        self._send(text.encode())

    def say_goodbye(self) -> None:
        self._send(render(DeregisterAgent()))

    def standing(self) -> AgentSwapState:
        engine, slots = self.engine, self.plan.slots
        is_serving = engine.is_up and not self.is_leaving
        return AgentSwapState(
            slots=slots,
            slots_offered=slots - self.slots_withheld if is_serving else 0,
            slots_running=len(engine.running),
            is_loaded=engine.wanted == engine.served,
            is_leaving=self.is_leaving,
            wanted=engine.wanted,
            served=engine.served,
            weights=engine.weights,
            version=self._version,
        )

    # ---------------------------------------------------------------- what it is told

    def _handle(self, frame: Any, sent_s: float) -> None:
        if self.is_dead:
            return
        match frame:
            case {"Notification": {"SetState": {"desired_state": state}}}:
                self._on_state(structure(state, AgentDesiredState), sent_s)
            case {"Notification": {"StopRespondingTo": str(wire_id)}}:
                self._note(f"told to stop {wire_id}")
                running = self.engine.running.get(wire_id)
                if running is not None and not running.is_stopped:
                    running.stop_sent_s = sent_s
            case {"Notification": {"Version": _}}:
                pass
            case {"Request": {"id": str(wire_id), "request": "GetModelMetadata"}}:
                self._send(response_frame(wire_id, "ModelMetadata", None))
            case {"Trio": {"GetTree": {"id": str(wire_id)}}}:
                self._send(render_extension(Tree(wire_id, {"name": self.plan.id})))
            case {"Request": {"id": str(wire_id), "request": work}}:
                self._on_start(wire_id, work, sent_s, seed=0, sampled=[])
            case {"Trio": {"Start": start}}:
                seed, sampled = start["seed"], list(start["tokens"])
                isolated = start.get("isolated")
                self._on_start(
                    start["id"],
                    start["request"],
                    sent_s,
                    seed=seed,
                    sampled=sampled,
                    isolated=isolated,
                )
            case _:
                self.world.fail(f"{self.plan.id} was told {json.dumps(frame)[:100]}")

    def _on_state(self, state: AgentDesiredState, sent_s: float) -> None:
        digest = state_digest(state)
        path = state.model.path if isinstance(state.model, LocalToAgent) else None
        self._note(f"wants {path}")
        self.expectations.heard_state(digest, sent_s)
        if self.engine.want(digest, path):
            self.publish()

    def _on_start(
        self,
        wire_id: str,
        work: Any,
        sent_s: float,
        *,
        seed: int,
        sampled: list[int],
        isolated: str | None = None,
    ) -> None:
        engine = self.engine
        story = self.world.story_of(work)
        self._note(f"gets {prompt_in(work)} as {wire_id} after {len(sampled)} tokens")
        self.expectations.check_start(
            story,
            engine.running.values(),
            sent_s=sent_s,
            stood_still_s=max(self.frozen_until_s, engine.stalled_until_s),
        )
        running = Running(wire_id, story, seed, sampled, documents_in(work), math.inf, isolated)
        if not self.plan.is_paddler and (self.is_leaving or engine.served is None):
            self.say_hand_back(running, "no model here now", suspects=None)
            return
        if wire_id in engine.running:
            self.world.fail(f"{self.plan.id} was given {wire_id} twice")
        if sampled and sampled != tokens_of(
            story.ask.prompt, seed, str(engine.weights), len(sampled)
        ):
            self.world.fail(f"{self.plan.id} must continue what {engine.weights} did not begin")
        if (
            seed
            and running.documents is None
            and any(earlier.seed not in (seed, 0) for earlier in story.beginnings)
        ):
            self.world.fail(f"{story.ask.prompt} got another seed")
        engine.take(running)
        assert self._nursery is not None
        self._nursery.start_soon(self._prepare, running)

    async def _prepare(self, running: Running) -> None:
        """Half of what passes before its first token."""
        if running.isolated == "agent":
            async with self.turns:
                if self._has(running):
                    self.acknowledge(running)
                await self._render(running)
        else:
            await self._render(running)
        if self._has(running):
            running.ready_s = trio.current_time() + self.plan.prefill_s / 2
            if not self.plan.is_paddler:
                self.acknowledge(running)

    async def _render(self, running: Running) -> None:
        await trio.sleep(self.plan.prefill_s / 2)
        await self.wait_thawed()
        if self._has(running) and running.story.ask.poison is Poison.AGENT:
            running.story.kills += 1
            self.die(running)

    def _has(self, running: Running) -> bool:
        return self.engine.running.get(running.wire_id) is running and not running.is_stopped

    def _on_close(self, wire: Wire, code: int, sent_s: float) -> None:
        self._note(f"closed with {code}")
        others = [other for other in self.world.wires if other.scope["path"] == wire.scope["path"]]
        self.expectations.check_close(
            is_own_fault=wire.doom is not None,
            is_id_free=all(
                other is wire or (other.finished_at_s < sent_s and other.doom != "twin")
                for other in others
            ),
            code=code,
        )

    # ----------------------------------------------------------------------- private

    def _send(
        self,
        text: bytes,
        about: tuple[Running, ...] = (),
        *,
        is_acknowledgement: bool = False,
        is_last: bool = False,
    ) -> None:
        if self._frames is not None:
            now_s = trio.current_time()
            self._frames.send_nowait(
                Frame(text.decode(), now_s, about, is_acknowledgement, is_last)
            )

    def _note(self, what: str) -> None:
        self.world.note(self.plan.id, what)
