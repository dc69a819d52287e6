"""The engine of a simulated agent: what it serves, what runs on it, one token a pass for each.

It follows the wanted state as a real agent does: offer nothing, let running answers finish for a
while, load, offer again. A crash hands back everything at once and is followed by a reload. A model
whose path begins with ``e`` makes embeddings, one document a pass, and nothing else.
"""

from __future__ import annotations

import math
from typing import Protocol

import attrs
import trio
from language import Result, done, embedding, results_at, token_at
from scenario import AgentPlan, Poison
from world import Beginning, Story, World

CRASH_S = 1 / 8
"""How long an engine that a request killed cannot be loaded again."""


@attrs.define(eq=False)
class Running:
    """One request on this agent; ``documents`` if it is to be embedded."""

    wire_id: str
    story: Story
    seed: int
    tokens: list[int]
    documents: list[str] | None
    ready_s: float
    """When its prompt is computed."""
    isolated: str | None = None
    stop_sent_s: float = math.inf
    has_begun: bool = False

    @property
    def is_stopped(self) -> bool:
        return self.stop_sent_s < math.inf


@attrs.frozen
class Produced:
    """What one pass did for one request."""

    running: Running
    tokens: list[int]
    results: list[Result | str]
    family: str = "GeneratedToken"


class Voice(Protocol):
    """How the engine's doings reach the balancer."""

    def publish(self) -> None: ...

    def say_step(self, produced: list[Produced]) -> None: ...

    def say_hand_back(self, running: Running, reason: str, *, suspects: int | None) -> None: ...

    def die(self, of: Running) -> None: ...

    async def wait_thawed(self) -> None: ...


@attrs.define(eq=False)
class SimEngine:
    """See the module docstring; times are absolute virtual seconds."""

    plan: AgentPlan
    world: World
    voice: Voice
    running: dict[str, Running] = attrs.field(factory=dict, init=False)
    wanted: str | None = attrs.field(default=None, init=False)
    served: str | None = attrs.field(default=None, init=False)
    weights: str | None = attrs.field(default=None, init=False)
    """What is loaded, or was last."""
    is_up: bool = attrs.field(default=False, init=False)
    down_until_s: float = attrs.field(default=0.0, init=False)
    stalled_until_s: float = attrs.field(default=0.0, init=False)
    _wanted_path: str | None = attrs.field(default=None, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)

    def want(self, digest: str, path: str | None) -> bool:
        """The newest state; False if nothing comes of it. Paddler's loads the same state again."""
        if digest == self.wanted and not self.plan.is_paddler:
            return False
        self.wanted, self._wanted_path, self.served = digest, path, None
        self._wake()
        return True

    def take(self, running: Running) -> None:
        self.running[running.wire_id] = running
        self._wake()

    def forget_all(self) -> None:
        """The link is gone: nobody hears of these any more."""
        self.running.clear()
        self._wake()

    def hand_back_all(self, reason: str, *, suspects: list[Running] | None = None) -> None:
        """``suspects``: None if it did not die."""
        for running in list(self.running.values()):
            among = None
            if suspects is not None:
                among = len(suspects) if running in suspects else 0
            self.voice.say_hand_back(running, reason, suspects=among)
        self.forget_all()

    def crash(self, for_s: float, suspects: list[Running]) -> None:
        """Everything on it is lost; it cannot be loaded again for a while."""
        self.is_up, self.served = False, None
        self.down_until_s = trio.current_time() + for_s
        self.voice.publish()
        self.hand_back_all("the engine died", suspects=suspects)

    async def wait_idle(self) -> None:
        while self.running:
            await self._news.wait()

    # ---------------------------------------------------------------------- its tasks

    async def follow(self) -> None:
        """Make the wanted state true, for ever."""
        while True:
            while self.wanted == self.served or self.wanted is None:
                await self._news.wait()
            if self.is_up:
                await self._drain()
            await trio.sleep_until(self.down_until_s)
            await trio.sleep(self.plan.load_s)
            await self.voice.wait_thawed()
            if trio.current_time() >= self.down_until_s:
                self.served, self.is_up = self.wanted, self._wanted_path is not None
                if self.is_up:
                    self.weights = f"{self._wanted_path}#{self.plan.weights}"
                self.voice.publish()

    async def draw(self) -> None:
        """A pass whenever something runs."""
        while True:
            while not self.running:
                await self._news.wait()
            await trio.sleep(self.plan.pass_s)
            await self.voice.wait_thawed()
            now_s = trio.current_time()
            is_loading = self.plan.is_paddler and not self.is_up  # of ours nothing would run now
            if now_s < self.stalled_until_s or is_loading:
                continue
            ready = [
                running
                for running in self.running.values()
                if running.ready_s <= now_s or running.is_stopped
            ]
            if self._dies_of(ready):
                continue
            produced = [self._draw_one(running) for running in ready]
            if produced:
                self.voice.say_step(produced)

    def _dies_of(self, ready: list[Running]) -> bool:
        """One of them kills the engine, in a batch with all that are not isolated or alone."""
        for running in ready:
            if running.is_stopped or running.story.ask.poison is not Poison.ENGINE:
                continue
            running.story.kills += 1
            if self.plan.is_paddler:
                self.voice.die(running)
            else:
                batch = [other for other in ready if not other.isolated]
                self.crash(CRASH_S, [running] if running.isolated else batch)
            return True
        return False

    def _draw_one(self, running: Running) -> Produced:
        ask, tokens = running.story.ask, running.tokens
        weights = self._begin(running)
        embeds = weights.startswith("e")
        if running.documents is not None:
            return self._embed_one(running, running.documents, weights)
        if embeds:
            disabled: Result = {"TokenGenerationDisabled": "the cluster makes embeddings"}
            return self._ended(Produced(running, [], [disabled]))
        stops = running.is_stopped and not self.plan.ignores_stops
        if stops or len(tokens) >= ask.max_tokens:
            return self._ended(Produced(running, [], [done(len(tokens))]))
        position = len(tokens)
        tokens.append(token_at(ask.prompt, running.seed, weights, position))
        results: list[Result | str] = [*results_at(ask.prompt, tokens, position, ask.max_tokens)]
        produced = Produced(running, tokens[position:], results)
        if len(tokens) == ask.max_tokens and running.seed % 4:  # else the ending comes alone
            results.append(done(len(tokens)))
            return self._ended(produced)
        return produced

    def _embed_one(self, running: Running, documents: list[str], weights: str) -> Produced:
        results: list[Result | str] = []
        produced = Produced(running, [], results, family="Embedding")
        if not weights.startswith("e"):
            results.append("EmbeddingsDisabled")
            return self._ended(produced)
        if documents and not running.is_stopped:
            results.append(embedding(documents.pop(0), weights.partition("#")[0]))
        if not documents or running.is_stopped:
            results.append("Done")
            return self._ended(produced)
        return produced

    # ------------------------------------------------------------------------ private

    def _begin(self, running: Running) -> str:
        """Write down, once, whose weights say what follows."""
        plan, weights = self.plan, self.weights
        assert weights is not None
        if not running.has_begun:
            running.has_begun = True
            begun = Beginning(plan.name, weights, running.seed, len(running.tokens))
            running.story.beginnings.append(begun)
        return weights

    def _ended(self, last: Produced) -> Produced:
        del self.running[last.running.wire_id]
        self._wake()
        return last

    async def _drain(self) -> None:
        """Offer nothing and let answers finish; Paddler's offers its slots until it is empty."""
        if self.plan.is_paddler:
            await self.wait_idle()
            self.is_up = False
            self.voice.publish()
            return
        self.is_up = False
        self.voice.publish()
        with trio.move_on_after(self.plan.drain_s):
            await self.wait_idle()
        self.hand_back_all("the engine is being stopped")

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()
