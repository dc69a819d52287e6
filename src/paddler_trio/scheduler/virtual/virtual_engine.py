"""An engine that computes nothing and takes the time of one that does: pass after pass, a token for
each answer and as many prompt tokens as its budget allows, the shortest prompt first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import attrs

from paddler_trio.scheduler.dispatch.fair_order import RequestKey

BLOCK_TOKENS: Final = 64
"""What a block of a prompt is, as in ``wire/prompt_blocks.py`` at four bytes a token."""


@attrs.frozen
class EngineSpeed:
    """The times that an engine takes, and what it keeps.

    Args:
      tokens_per_s: of prompts, while it computes nothing else.
      pass_s: of a pass, whatever is in it.
      token_s: of each answer's token in a pass, in addition.
      budget: prompt tokens of a pass at most, while there are answers.
      cache_tokens: what it keeps of prompts and answers, those of running requests included.
    """

    tokens_per_s: float = 2000.0
    pass_s: float = 0.02
    token_s: float = 0.0005
    budget: int = 256
    cache_tokens: int = 65_536

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


@attrs.define(eq=False)
class VirtualEngine:
    """See the module docstring."""

    speed: EngineSpeed
    running: dict[RequestKey, Running] = attrs.field(factory=dict, init=False)
    computed_tokens: int = attrs.field(default=0, init=False)
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
        now_s: float,
    ) -> None:
        """Take a request in. Another one that computes the same beginning is waited for, so what
        was taken in before counts as there."""
        depth = self.depth(prompt.hashes)
        cached = min(depth * BLOCK_TOKENS, prompt.tokens - 1)
        missing = prompt.tokens - cached
        self.running[key] = Running(key, prompt, then, missing, answer_tokens, cached, now_s)
        self.computed_tokens += missing
        self._keep(prompt.hashes)

    def next_pass(self) -> tuple[float, list[Running], list[Running]]:
        """Compute a pass; return how long it takes, who has its first token after it, and who is
        done after it."""
        answering = [each for each in self.running.values() if not each.missing]
        prompts = sorted(
            (each for each in self.running.values() if each.missing), key=lambda each: each.missing
        )
        room = self.speed.budget if answering else 8 * self.speed.budget
        firsts, done = list[Running](), list[Running]()
        took = 0
        for each in prompts:
            part = min(each.missing, room - took)
            each.missing -= part
            took += part
            if not each.missing:
                firsts.append(each)
        for each in answering + firsts:
            each.to_draw -= 1
            if each.to_draw <= 0:
                done.append(each)
        speed = self.speed
        took_s = speed.pass_s + took / speed.tokens_per_s + speed.token_s * len(answering)
        return took_s, firsts, done

    def finish(self, request: Running) -> None:
        """Let a request go; what it computed stays for a while."""
        del self.running[request.key]
        self._keep(request.then)

    def _keep(self, hashes: Sequence[int]) -> None:
        for each in reversed(hashes):
            self._cache[each] = None
            self._cache.move_to_end(each)
        while len(self._cache) * BLOCK_TOKENS > self.speed.cache_tokens:
            self._cache.popitem(last=False)
