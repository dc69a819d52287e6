"""One request inside the engine, as lengths: what is in the cache, what is still to be computed.

There are no prefill and decode modes. A sequence has ``num_tokens`` tokens of which
``num_computed`` are in the KV cache; the difference is what the next passes must compute. While
the prompt goes in, the difference is large; afterwards it is exactly one, the token drawn last.
"""

from __future__ import annotations

import attrs


@attrs.define
class Sequence:
    """Lengths of one running sequence.

    Args:
      key: the request's number, chosen by the agent.
      stream: llama.cpp's sequence id, 0 <= stream < slots.
      num_prompt_tokens: tokens of the prompt, >= 1.
      max_tokens: how many tokens may be drawn, >= 1.
      num_drawn: tokens drawn so far; a continued sequence begins with some.
    """

    key: int
    stream: int
    num_prompt_tokens: int
    max_tokens: int
    num_computed: int = 0
    num_drawn: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_drawn

    @property
    def num_missing(self) -> int:
        """Tokens that must be computed before the next one can be drawn."""
        return self.num_tokens - self.num_computed

    @property
    def is_generating(self) -> bool:
        """All that is missing is the token drawn last."""
        return self.num_drawn > 0 and self.num_missing == 1

    def drawn_out(self, cells: int) -> bool:
        """No further token may be drawn: the limit is reached, or the cells are.

        The token drawn last needs a cell only if another one follows it.
        """
        return self.num_drawn >= self.max_tokens or self.num_tokens >= cells + 1
