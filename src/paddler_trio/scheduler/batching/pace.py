"""How many prompt tokens may ride in a pass while others wait for their next token.

Everybody who generates waits for the whole pass, so its prompt share is sized from measured speed:
what a pass of so many generating sequences takes by itself, and what a prompt token adds to it.

Source: chunked prefill with a bounded time between tokens, Sarathi-Serve (OSDI '24).
"""

from __future__ import annotations

import attrs

SMALLEST_SHARE = 64
"""Fewer tokens a pass are computed much slower each (measured on a CPU: 64 cost 1.15 times as much
a token as 512 do, 32 up to 1.6 times)."""
FIRST_SHARE = 128
"""Before anything was measured."""
_AUTO_MULTIPLE = 8.0
"""A pass with prompts in it may take so many times the pass without: a prompt then loses at most
an eighth of its speed to those who generate."""
_AUTO_FLOOR_MS = 80.0
"""Twelve tokens a second still read fluently; shorter passes only cost throughput."""
_AUTO_CROWD_MS = 400.0
"""The longest pass for the sake of many who wait for their first token, or twice the target."""
_FRESH = 0.25
"""Weight of the newest measurement."""


@attrs.define
class Pace:
    """Args: ``target_ms`` is the pass time to stay under; None chooses it from measured speed."""

    target_ms: float | None = None
    _alone_ms: dict[int, float] = attrs.field(factory=dict, init=False)
    """A pass of so many generating sequences and nothing else."""
    _prompt_token_ms: float | None = attrs.field(default=None, init=False)

    def prompt_share(self, generating: int, *, limit: int, ingesting: int = 1) -> int:
        """The prompt tokens of the next pass, at most ``limit``; all of it if nobody generates.

        A target of our own choosing grows with those who wait for their first token, where they
        are more than those who wait for their next.
        """
        if generating == 0:
            return limit
        alone_ms = self._alone(generating)
        if alone_ms is None or self._prompt_token_ms is None:
            return min(limit, FIRST_SHARE)
        target_ms = self.target_ms
        if target_ms is None:
            target_ms = max(_AUTO_FLOOR_MS, _AUTO_MULTIPLE * alone_ms)
            crowd_ms = min(max(_AUTO_CROWD_MS, 2 * target_ms), target_ms * ingesting / generating)
            target_ms = max(target_ms, crowd_ms)
        share = (target_ms - alone_ms) / max(1e-6, self._prompt_token_ms)
        return max(min(limit, SMALLEST_SHARE), min(limit, int(share)))

    def measured(self, *, generating: int, prompt_tokens: int, pass_ms: float) -> None:
        """A pass of this shape took so long."""
        if prompt_tokens == 0:
            if generating:
                before = self._alone_ms.get(generating, pass_ms)
                self._alone_ms[generating] = before + _FRESH * (pass_ms - before)
            return
        alone_ms = self._alone(generating) or 0.0
        # a pass is never free: what remains of a mixed one is at least a tenth of it
        token_ms = max(pass_ms - alone_ms, 0.1 * pass_ms) / prompt_tokens
        if prompt_tokens >= SMALLEST_SHARE:
            before = self._prompt_token_ms or token_ms
            self._prompt_token_ms = before + _FRESH * (token_ms - before)

    def _alone(self, generating: int) -> float | None:
        """The pass of the nearest size that was measured."""
        if generating == 0 or not self._alone_ms:
            return None
        nearest = min(self._alone_ms, key=lambda size: (abs(size - generating), size))
        return self._alone_ms[nearest]
