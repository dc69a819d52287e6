"""Choose the places in a prompt where a checkpoint is worth its copy.

A memory that cannot be cut anywhere serves another prompt only as it was at some moment: a turn of
a conversation goes on after the last message, not after the answer that a template may show in a
different way, and requests with a common system prompt go on after that. So the state is copied
shortly before a prompt ends, and where a prompt was seen to part from another one.
"""

from __future__ import annotations

from paddler_trio.scheduler.batching.image_tokens import is_image

BEFORE_END = 16
"""Tokens before the end of a prompt: what templates write to open an answer is shorter."""
WORTH_KEEPING = 64
"""Fewer tokens than this are computed as quickly as a state is put back."""


def checkpoint_places(tokens: list[int], prompt: int, *, start: int, parted: int) -> list[int]:
    """Return lengths at which computing pauses to keep what is in the cache.

    Args:
      tokens: of the sequence; the first ``prompt`` of them are its prompt.
      start: how many are in the cache already.
      parted: how many of them another prompt begins with too.

    Returns:
      Ascending, each at least ``WORTH_KEEPING`` beyond the start, none at or in an image.
    """
    places = {parted, prompt - BEFORE_END}
    return sorted(
        place
        for place in places
        if start + WORTH_KEEPING <= place < prompt
        and not is_image(tokens[place - 1])
        and not is_image(tokens[place])
    )
