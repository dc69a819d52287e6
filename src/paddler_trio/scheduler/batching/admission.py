"""Decide which requests the engine admits: what can never fit is refused before it costs anything.

How many cells one sequence can have is known: its own region of a split cache, the whole pool of a
unified one. So the answer is arithmetic, and the refusal names the numbers.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Refused:
    """A request cannot run on this engine; ``reason`` is written for its client."""

    reason: str


def refusal(
    *, num_prompt_tokens: int, max_tokens: int, cells: int, num_sampled: int = 0
) -> Refused | None:
    """Return None if a prompt fits the cells of one sequence with room for at least one token.

    Args:
      num_prompt_tokens: length of the tokenised prompt.
      num_sampled: tokens of another engine that this sequence continues.
      max_tokens: how many tokens the answer may have, 0 for no limit. More than fits is no
        reason to refuse: it is a limit, and the answer ends when the cells do.
      cells: KV cells one sequence can have (context size / slots, as llama.cpp rounded it).
    """
    if num_prompt_tokens < 1:
        return Refused("the prompt is empty: it has no tokens, so there is nothing to continue")
    if max_tokens < 0:
        return Refused(f"max_tokens is {max_tokens}, but it must be at least 1, or 0 for no limit")
    if 0 < max_tokens <= num_sampled:
        return Refused(f"{num_sampled} tokens were sampled already and max_tokens is {max_tokens}")
    if num_prompt_tokens + num_sampled > cells:
        return Refused(
            f"the prompt has {num_prompt_tokens + num_sampled} tokens, but one slot of this agent "
            f"holds {cells} tokens; shorten the prompt, raise context_size, or use fewer slots"
        )
    return None
