"""Guesses at what a model writes next, found in what it has read and written already.

When an answer repeats part of its prompt (code that is edited, a text that is quoted) the last few
tokens have stood there before, and what followed then is likely to follow now. Guesses are checked
in the pass that computes the next token, so a wrong one costs a little computing and never
changes the answer.

Source: prompt lookup decoding (Saxena, 2023), a form of speculative decoding (Leviathan et al.,
ICML '23).
"""

from __future__ import annotations

import attrs

LONGEST_MATCH = 4
SHORTEST_MATCH = 2
LOOK_BACK = 4096
_LONGEST_PAUSE_LOG2 = 6


def guess_next(tokens: list[int], *, count: int) -> list[int]:
    """Return up to ``count`` tokens that followed the latest earlier occurrence of the last few.

    Longer occurrences are trusted first; nothing earlier than ``LOOK_BACK`` tokens is looked at.
    """
    if count < 1:
        return []
    start = max(0, len(tokens) - LOOK_BACK)
    for size in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
        if len(tokens) - start <= size:
            continue
        tail = tokens[-size:]
        last = tail[-1]
        position = len(tokens) - 2
        while position - size + 1 >= start:
            if tokens[position] == last and tokens[position - size + 1 : position + 1] == tail:
                return tokens[position + 1 : position + 1 + count]
            position -= 1
    return []


@attrs.define
class Drafting:
    """Adapts how much is guessed for one sequence: less and less while the guesses are wrong.

    Args:
      max_drafts: tokens guessed at a time, 0 for none.
    """

    max_drafts: int
    num_drafted: int = attrs.field(default=0, init=False)
    num_accepted: int = attrs.field(default=0, init=False)
    _wrong_in_a_row: int = attrs.field(default=0, init=False)
    _pause: int = attrs.field(default=0, init=False)

    def guess(self, tokens: list[int]) -> list[int]:
        """Return tokens that may follow ``tokens``; none for a while after wrong guesses."""
        return guess_next(tokens, count=self.max_drafts) if self.may_guess() else []

    def may_guess(self) -> bool:
        """Ask once a pass: whether to guess in this one."""
        if self._pause > 0:
            self._pause -= 1
            return False
        return self.max_drafts > 0

    def judged(self, drafted: int, accepted: int) -> None:
        """Note that so many of the tokens guessed last were right."""
        self.num_drafted += drafted
        self.num_accepted += accepted
        if accepted:
            self._wrong_in_a_row = 0
        else:
            self._wrong_in_a_row = min(self._wrong_in_a_row + 1, _LONGEST_PAUSE_LOG2)
            self._pause = 2**self._wrong_in_a_row - 2
