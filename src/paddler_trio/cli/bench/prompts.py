"""Prompts made here, from a seed: plain English words, a little more than one token each. Pure.

No two prompts begin alike unless that is what is measured: each text starts with a number of its
own, so that no server can answer it with what it has computed for another one.
"""

from __future__ import annotations

from random import Random
from typing import Final

WORDS: Final = tuple(
    """
    river lamp stone garden seven paper window morning bridge silver winter apple letter summer
    north train ocean candle market forest yellow engine island copper valley music harbour pencil
    cloud basket thunder corner table story under before water light small house with from into
    after green other never always people water road field sound early night under every thing
    """.split()  # noqa: SIM905  # sixty quoted words would be harder to read
)
SENTENCE_WORDS: Final = 12
_OPENING_DIGITS: Final = 8


def text_of(words: int, random: Random) -> str:
    """A text of so many words, its number among them."""
    opening = str(random.randrange(10 ** (_OPENING_DIGITS - 1), 10**_OPENING_DIGITS))
    chosen = [opening, *random.choices(WORDS, k=max(0, words - 1))]
    sentences = (
        " ".join(chosen[start : start + SENTENCE_WORDS])
        for start in range(0, len(chosen), SENTENCE_WORDS)
    )
    return ". ".join(sentences) + "."
