"""Decide how many prompt tokens may be in a pass while other sequences wait for their next token.

Every generating sequence waits for the whole pass, so the prefill budget is sized from measured
speed: what a pass of so many generating sequences takes by itself, and what a prompt token adds.

Source: chunked prefill with a bounded time between tokens, Sarathi-Serve (OSDI '24).
"""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.batching.batch_plan import PrefillBudget

SMALLEST_CHUNK = 64
"""Fewer tokens a pass are computed much slower each (measured on a CPU: 64 cost 1.15 times as much
a token as 512 do, 32 up to 1.6 times)."""
FIRST_CHUNK = 128
"""The first chunk, before anything was measured."""
_AUTO_MULTIPLE = 5.5
"""A pass with prompts in it may take so many times the pass without: a prompt then loses at most
two elevenths of its speed to generating sequences."""
_AUTO_FLOOR_MS = 80.0
"""Twelve tokens a second still read fluently; shorter passes only cost throughput."""
_AUTO_IDLE_MS = 400.0
"""A pass with many prompts, if nothing generates: what arrives meanwhile waits for all of it."""
_AUTO_IN_STEP_MS = 2000.0
"""The time that first tokens may wait for those of others, if nothing generates yet; and about the
longest pass then."""
_PAUSE_MS = 150.0
"""The longest pause after a first token for the sake of the others that began in the same pass."""
_FRESH = 0.25
"""Weight of the newest measurement."""


@attrs.define
class PrefillController:
    """Args: ``target_ms`` is the pass time to stay under; None chooses it from measured speed."""

    target_ms: float | None = None
    _alone_ms: dict[int, float] = attrs.field(factory=dict, init=False)
    """A pass of so many generating sequences and nothing else."""
    _prompt_token_ms: float | None = attrs.field(default=None, init=False)

    def prefill_budget(
        self, generating: int, *, limit: int, ingesting: int = 1, missing: int = 0, unit: int = 512
    ) -> PrefillBudget:
        """Return the prompt tokens of the next pass, at most ``limit``.

        If nothing generates, prompts that are there together come to their ends together, unless
        that takes long: a stream that began early would only stop again for the others.

        Args:
          missing: tokens of all prompts.
          unit: tokens llama.cpp computes together. Parts of that size cost a prompt nothing, and
            what arrives meanwhile does not wait for all of it.
        """
        alone_ms = 0.0 if generating == 0 else self.alone_ms(generating)
        if self._prompt_token_ms is None or alone_ms is None:
            return PrefillBudget(min(limit, FIRST_CHUNK if generating else unit))
        if generating == 0:
            if ingesting <= 1:
                return PrefillBudget(self._tokens(_AUTO_IN_STEP_MS, min(limit, unit)))
            if missing * self._prompt_token_ms <= _AUTO_IN_STEP_MS:
                return PrefillBudget(limit, in_step=True)
            return PrefillBudget(self._tokens(_AUTO_IDLE_MS, limit))
        return PrefillBudget(self._tokens(self.pass_target_ms(generating) - alone_ms, limit))

    def call_tokens(self) -> int:
        """Return how many prompt tokens are worth computing in one call: more of them would only
        keep the shortest prompt among them waiting."""
        if self._prompt_token_ms is None:
            return FIRST_CHUNK
        return max(FIRST_CHUNK, int(_AUTO_FLOOR_MS / max(1e-6, self._prompt_token_ms)))

    def is_short(self, tokens: int) -> bool:
        """Return whether a stream may pause for as long as so many prompt tokens take."""
        return tokens * (self._prompt_token_ms or 0.0) <= _PAUSE_MS

    def pass_target_ms(self, generating: int) -> float:
        """Return how long a pass may take beside so many that generate."""
        if self.target_ms is not None:
            return self.target_ms
        return max(_AUTO_FLOOR_MS, _AUTO_MULTIPLE * (self.alone_ms(generating) or 0.0))

    @property
    def prompt_token_ms(self) -> float | None:
        """Milliseconds that a prompt token takes; None before one was measured."""
        return self._prompt_token_ms

    def measured(self, *, generating: int, prompt_tokens: int, pass_ms: float) -> None:
        """Note that a pass of this shape took so long."""
        if prompt_tokens == 0:
            if generating:
                before = self._alone_ms.get(generating, pass_ms)
                self._alone_ms[generating] = before + _FRESH * (pass_ms - before)
            return
        alone_ms = self.alone_ms(generating) or 0.0
        # a pass is never free: what remains of a mixed one is at least a tenth of it
        token_ms = max(pass_ms - alone_ms, 0.1 * pass_ms) / prompt_tokens
        if prompt_tokens >= SMALLEST_CHUNK:
            before = self._prompt_token_ms or token_ms
            self._prompt_token_ms = before + _FRESH * (token_ms - before)

    def _tokens(self, ms: float, limit: int) -> int:
        """Return as many tokens as take so long, at most ``limit``, but not too few to be worth a
        call."""
        assert self._prompt_token_ms is not None
        tokens = int(ms / max(1e-6, self._prompt_token_ms))
        return min(limit, max(SMALLEST_CHUNK, tokens))

    def alone_ms(self, generating: int) -> float | None:
        """Return how long a pass of so many that generate takes by itself; None before one was
        measured."""
        if generating == 0 or not self._alone_ms:
            return None
        measured_ms = self._alone_ms.get(generating)
        if measured_ms is not None:
            return measured_ms
        nearest = min(self._alone_ms, key=lambda size: (abs(size - generating), size))
        return self._alone_ms[nearest]
