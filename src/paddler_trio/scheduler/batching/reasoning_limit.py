"""Ends a model's reasoning after so many tokens by forcing its closing marker.

Bookkeeping over sampled tokens: reasoning begins and ends with sequences of token ids, so no text
is looked at on the decode path.
"""

from __future__ import annotations

import attrs


@attrs.define
class ReasoningLimit:
    """The reasoning of one answer.

    Args:
      max_tokens: of the reasoning, its markers not counted; 0 closes it at once.
      open: tokens of the marker that begins it, empty if it never begins in the answer.
      close: tokens of the marker that ends it, at least one.
      is_open: the prompt left it open.
    """

    max_tokens: int
    open: tuple[int, ...]
    close: tuple[int, ...]
    is_open: bool
    _num_sampled: int = attrs.field(default=0, init=False)
    _recent: list[int] = attrs.field(factory=list, init=False)
    _is_over: bool = attrs.field(default=False, init=False)
    _forced: int = attrs.field(default=0, init=False)
    """Tokens of the closing marker that were forced."""

    def forced(self) -> int | None:
        """Return the token that should come next; None if the model is free. The caller may delay
        it to the end of a character."""
        if self._is_over or not self.is_open or self._num_sampled < self.max_tokens:
            return None
        return self.close[self._forced]

    def sampled(self, token: int) -> None:
        """Note that a token was sampled, by the model or because it was forced."""
        if self._is_over:
            return
        if self.forced() is not None:
            self._forced = self._forced + 1 if token == self.forced() else 0
            self._is_over = self._forced == len(self.close)
            return
        self._recent.append(token)
        del self._recent[: -max(len(self.open), len(self.close))]
        if self.is_open:
            self._num_sampled += 1
            self._is_over = self._ends_with(self.close)
        elif self.open and self._ends_with(self.open):
            self.is_open = True
            self._recent.clear()

    def _ends_with(self, marker: tuple[int, ...]) -> bool:
        return tuple(self._recent[-len(marker) :]) == marker
