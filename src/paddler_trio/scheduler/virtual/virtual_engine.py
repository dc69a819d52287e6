"""An engine that computes nothing and takes the time of one that does: pass after pass, a token for
each answer and as many prompt tokens as its budget allows, the shortest prompt first."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Final

import attrs

from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.dispatch.fair_order import RequestKey

MOST_IN_A_PASS: Final = 2048
"""Tokens that an engine takes at once, as ours do by default."""
MOST_TOGETHER: Final = 64
"""So many answers in a pass have a time of their own in the controller of a virtual engine."""
MOST_PASSES: Final = 16
"""An engine that others slow computes so many at a time."""
BLOCK_TOKENS: Final = 64
"""What a block of a prompt is, as in ``wire/prompt_blocks.py`` at four bytes a token."""


@attrs.frozen
class EngineSpeed:
    """The times that an engine takes, and what it keeps.

    Args:
      tokens_per_s: of prompts, while it computes nothing else.
      pass_s: of a pass, whatever is in it.
      token_s: of each answer's token in a pass, in addition.
      budget: prompt tokens of a pass at most, while there are answers; None for what our engines
        would choose at this speed.
      cache_tokens: what it keeps of prompts and answers, those of running requests included.
      lag_s: from when it is given a request until its engine has it, and from a first token until
        that is at the balancer, together.
      slowing: the part by which each other engine slows it that is busy and has a slowing, too.
    """

    tokens_per_s: float = 2000.0
    pass_s: float = 0.02
    token_s: float = 0.0005
    budget: int | None = 256
    cache_tokens: int = 65_536
    lag_s: float = 0.0
    slowing: float = 0.0

    def slowed(self, factor: float) -> EngineSpeed:
        """Return the speed of an engine that takes so many times as long."""
        return attrs.evolve(
            self,
            tokens_per_s=self.tokens_per_s / factor,
            pass_s=self.pass_s * factor,
            token_s=self.token_s * factor,
        )


@attrs.frozen
class VirtualPrompt:
    """A prompt of so many whole blocks and some tokens; ``size_bytes`` at four bytes a token."""

    hashes: tuple[int, ...]
    tokens: int

    @property
    def size_bytes(self) -> int:
        return 4 * self.tokens

    def covered_bytes(self, num_blocks: int) -> int:
        """Return how much of it so many blocks are."""
        return 4 * BLOCK_TOKENS * num_blocks


@attrs.define
class Running:
    """A request in a slot; ``then``: the blocks of prompt and answer together."""

    key: RequestKey
    prompt: VirtualPrompt
    then: Sequence[int]
    missing: int
    to_draw: int
    cached: int
    began_s: float


@attrs.frozen
class Passes:
    """Passes of one shape, one after the other: ``count`` of them, each of ``pass_s``."""

    began_s: float
    pass_s: float
    count: int
    answering: Sequence[Running]
    firsts: Sequence[Running]

    @property
    def end_s(self) -> float:
        return self.began_s + self.count * self.pass_s


@attrs.define(eq=False)
class VirtualEngine:
    """See the module docstring."""

    speed: EngineSpeed
    running: dict[RequestKey, Running] = attrs.field(factory=dict, init=False)
    computed_tokens: int = attrs.field(default=0, init=False)
    passes: Passes | None = attrs.field(default=None, init=False)
    """The passes that it computes now."""
    _cache: OrderedDict[int, None] = attrs.field(factory=OrderedDict, init=False)

    def depth(self, hashes: Sequence[int]) -> int:
        """Return how many blocks of a prompt are there."""
        for depth, each in enumerate(hashes):
            if each not in self._cache:
                return depth
        return len(hashes)

    def start(
        self,
        key: RequestKey,
        prompt: VirtualPrompt,
        then: Sequence[int],
        answer_tokens: int,
        began_s: float,
    ) -> None:
        """Take a request in. Another one that computes the same beginning is waited for, so what
        was taken in before counts as there."""
        depth = self.depth(prompt.hashes)
        cached = min(depth * BLOCK_TOKENS, prompt.tokens - 1)
        missing = prompt.tokens - cached
        self.running[key] = Running(key, prompt, then, missing, answer_tokens, cached, began_s)
        self.computed_tokens += missing
        self._keep(prompt.hashes)

    def begin(self, now_s: float, others: int = 0) -> float:
        """Begin what is next, up to where something changes: a pass with parts of prompts, or as
        many as the shortest answer takes; return when it ends.

        Args:
          others: engines that are busy and slow it.
        """
        answering = [each for each in self.running.values() if not each.missing]
        prompts = sorted(
            (each for each in self.running.values() if each.missing), key=lambda each: each.missing
        )
        room = self._room(len(answering), prompts) if prompts else 0
        firsts = list[Running]()
        took = 0
        for each in prompts:
            part = min(each.missing, room - took)
            each.missing -= part
            took += part
            if not each.missing:
                firsts.append(each)
        speed = self.speed
        pass_s = speed.pass_s + took / speed.tokens_per_s + speed.token_s * len(answering)
        count = 1 if prompts else max(1, min(each.to_draw for each in answering))
        if speed.slowing:  # others begin and end meanwhile
            pass_s *= 1 + speed.slowing * others
            count = min(count, MOST_PASSES)
        self.passes = Passes(now_s, pass_s, count, answering, firsts)
        return self.passes.end_s

    def cut(self, now_s: float) -> float | None:
        """Let what it computes end with the pass of this moment, since something has come; return
        when that is if it was to take longer."""
        passes = self.passes
        if passes is None or passes.count == 1:
            return None
        done = max(1, math.ceil((now_s - passes.began_s) / passes.pass_s))
        if done >= passes.count:
            return None
        self.passes = attrs.evolve(passes, count=done)
        return self.passes.end_s

    def end(self) -> tuple[Sequence[Running], list[Running]]:
        """Return who has its first token after what was computed, and who is done after it."""
        passes = self.passes
        assert passes is not None, "it computes nothing"
        self.passes = None
        for each in passes.answering:
            each.to_draw -= passes.count
        for each in passes.firsts:
            each.to_draw -= 1
        done = [each for each in (*passes.answering, *passes.firsts) if each.to_draw <= 0]
        return passes.firsts, done

    def finish(self, request: Running) -> None:
        """Let a request go; what it computed stays for a while."""
        del self.running[request.key]
        self._keep(request.then)

    def _room(self, answering: int, prompts: Sequence[Running]) -> int:
        if self.speed.budget is not None:
            return self.speed.budget if answering else 8 * self.speed.budget
        budget = controller_of(self.speed).prefill_budget(
            answering,
            limit=MOST_IN_A_PASS,
            ingesting=len(prompts),
            missing=sum(each.missing for each in prompts),
        )
        return budget.tokens

    def _keep(self, hashes: Sequence[int]) -> None:
        for each in reversed(hashes):
            self._cache[each] = None
            self._cache.move_to_end(each)
        while len(self._cache) * BLOCK_TOKENS > self.speed.cache_tokens:
            self._cache.popitem(last=False)


@cache
def controller_of(speed: EngineSpeed) -> PrefillController:
    """Return the controller of an engine that has measured this speed."""
    controller = PrefillController()
    for number in range(1, MOST_TOGETHER + 1):
        alone_ms = 1000 * (speed.pass_s + number * speed.token_s)
        controller.measured(generating=number, prompt_tokens=0, pass_ms=alone_ms)
    prompt_ms = 1000 * MOST_IN_A_PASS / speed.tokens_per_s
    controller.measured(generating=0, prompt_tokens=MOST_IN_A_PASS, pass_ms=prompt_ms)
    return controller
