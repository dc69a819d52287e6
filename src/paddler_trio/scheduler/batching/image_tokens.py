"""Images in a list of tokens: each embedding of an image stands there as a negative number.

The number is made of what the image shows and the place in it, so two prompts with the same image
share a prefix as two prompts with the same words do, and nothing that compares tokens has to know
about images. Tokens of a vocabulary are never negative.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

MAX_TOKENS = 2**32
"""The limit for one image; far more than any context holds."""


def image_tokens(digest: bytes, count: int, *, advance: int | None = None) -> list[int]:
    """Return the tokens of an image.

    Args:
      digest: a hash of what it shows: equal ones must mean equal embeddings.
      count: its embeddings, 1 to ``MAX_TOKENS``.
      advance: by how many positions what follows it is further on, less than ``count`` where a
        model numbers an image in two dimensions; None for ``count``.
    """
    assert 1 <= count <= MAX_TOKENS, f"an image of {count} tokens"
    advance = count if advance is None else advance
    image = int.from_bytes(digest, "big") * MAX_TOKENS + advance
    first = -1 - image * MAX_TOKENS
    return list(range(first, first - count, -1))


def is_image(token: int) -> bool:
    """Return whether this token is a place in an image."""
    return token < 0


def place_of(token: int) -> int:
    """Return the place of this token in its image, from 0."""
    assert token < 0, f"{token} is a token of the vocabulary"
    return (-1 - token) % MAX_TOKENS


def image_of(token: int) -> int:
    """Return the number of an image: equal for all of its tokens, and for no other image's."""
    assert token < 0, f"{token} is a token of the vocabulary"
    return (-1 - token) // MAX_TOKENS


class Positions:
    """Positions that tokens of a prompt, and of what is sampled after it, have for the model."""

    __slots__ = ("_ends", "_shifts")

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ends: list[int] = []
        self._shifts: list[int] = []
        """After each image: how many tokens more than positions there were up to its end."""
        if not prompt or min(prompt) >= 0:
            return
        start = shift = 0
        while start < len(prompt):
            count = run_length(prompt, start, len(prompt))
            token = prompt[start]
            start += count
            if token < 0:
                shift += count - image_of(token) % MAX_TOKENS
                self._ends.append(start)
                self._shifts.append(shift)

    def at(self, index: int) -> int:
        """Return the position of token ``index``, which is the first of its image or in none."""
        passed = bisect_right(self._ends, index)
        return index - (self._shifts[passed - 1] if passed else 0)


def run_length(tokens: Sequence[int], start: int, limit: int) -> int:
    """Return how many tokens from ``start`` on, at most ``limit``, llama.cpp can take in one batch:
    words only, or embeddings of one image only."""
    end = min(len(tokens), start + limit)
    if start >= end:
        return 0
    if tokens[start] >= 0:
        if end - start > 1 and min(tokens[start:end]) < 0:
            return next(i for i in range(start, end) if tokens[i] < 0) - start
        return end - start
    stop = start + 1
    while stop < end and tokens[stop] == tokens[stop - 1] - 1:
        stop += 1
    return stop - start


def whole_images(tokens: Sequence[int], length: int) -> int:
    """Return ``length``, or less: no image is cut by taking so many tokens."""
    if length >= len(tokens) or tokens[length] >= 0:
        return length
    return max(0, length - place_of(tokens[length]))


def words_of(tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens that are in the vocabulary; without images at the speed of ``min``."""
    if not tokens or min(tokens) >= 0:
        return tokens
    return [token for token in tokens if token >= 0]


def num_words(tokens: Sequence[int]) -> int:
    """Return how many of these are tokens of the vocabulary."""
    return len(words_of(tokens))
