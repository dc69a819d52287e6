"""One request inside the engine: its tokens, and how many of them are in the cache.

There are no prefill and decode modes. A sequence has ``num_tokens`` tokens of which
``num_computed`` are in the KV cache; the difference is what the next passes must compute. While
the prompt is computed, the difference is large; afterwards it is exactly one, the newest token.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

AdapterScales: TypeAlias = tuple[tuple[int, float], ...]
"""The LoRA adapters that a sequence is computed with, by their places, ascending, and how much each
counts; never 0."""


@attrs.define(eq=False)
class Sequence:
    """One request.

    Args:
      key: the request's number, chosen by the agent.
      tokens: the prompt and everything sampled since; grows with every sampled token.
      num_prompt_tokens: tokens of the prompt, >= 1; a continued sequence has more ``tokens``.
      max_tokens: how many tokens may be sampled, 0 for as many as fit.
      salt: only sequences of equal salt share a prefix; None shares none. It tells the adapters
        apart.
      adapters: that it is computed with.
    """

    key: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int = 0
    salt: str | None = ""
    adapters: AdapterScales = ()
    arrival: int = attrs.field(default=0, init=False)
    stream: int | None = attrs.field(default=None, init=False)
    """llama.cpp's sequence id while it runs."""
    num_computed: int = attrs.field(default=0, init=False)
    num_cached: int | None = attrs.field(default=None, init=False)
    """Prompt tokens that were in the cache when it began; None before."""
    num_preemptions: int = attrs.field(default=0, init=False)
    """It gave its cells to others and began anew so often."""
    drafts: list[int] = attrs.field(factory=list, init=False)
    """Guesses at what follows, to be computed in the next pass together with the last token."""
    checkpoints: list[int] = attrs.field(factory=list, init=False)
    """Lengths, ascending, at which a pass ends so that what is in the cache can be kept."""

    def __repr__(self) -> str:
        if self.stream is None:
            phase = "waiting"
        else:
            phase = f"{'generating' if self.is_generating else 'prefill'} in stream {self.stream}"
        return (
            f"<Sequence {self.key}: {phase}, {self.num_computed} of {self.num_tokens} tokens "
            f"computed, {self.num_sampled} sampled>"
        )

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed

    @property
    def is_generating(self) -> bool:
        """Return whether all that is missing is the newest token."""
        num_tokens = len(self.tokens)
        return num_tokens > self.num_prompt_tokens and num_tokens - self.num_computed == 1

    @property
    def num_until_checkpoint(self) -> int:
        """Missing tokens that may be computed in one pass."""
        for place in self.checkpoints:
            if place > self.num_computed:
                return place - self.num_computed
        return self.num_missing

    def is_out_of_cells(self, cells: int) -> bool:
        """Return whether no further token may be sampled: the cells are full.

        The newest token needs a cell only if another one follows it.
        """
        return self.num_tokens > cells
