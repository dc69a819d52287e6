"""Texts that end an answer and are not part of it.

The text is examined character by character, whatever pieces it arrives in: the answer ends where
the first stop text is complete; of several that end there, the one that began first counts. So what
comes out does not depend on how the text was cut. Only what may still become a stop text is held
back.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from paddler_trio.language.answers.text_source import MarkerSet


@attrs.define(eq=False)
class StopTexts:
    """Looks for stop texts in one answer; never raises."""

    _texts: Sequence[str]
    """None of them is empty."""
    _markers: MarkerSet = attrs.field(init=False)
    held_back: str = attrs.field(default="", init=False)
    """Text that may still become a stop text."""
    found: str | None = attrs.field(default=None, init=False)
    """The stop text that ended the answer; nothing is let through after it."""

    def __attrs_post_init__(self) -> None:
        self._markers = MarkerSet(self._texts)

    def feed(self, text: str) -> str:
        """Return what of the text so far is decided and was not passed on before; may be empty."""
        if self.found is not None:
            return ""
        rest = self.held_back + text
        first = self._first_complete(rest)
        if first is not None:
            start, self.found = first
            self.held_back = ""
            return rest[:start]
        undecided = self._markers.undecided_from(rest)
        self.held_back = rest[undecided:]
        return rest[:undecided]

    def flush(self) -> str:
        """The text ends here, or goes on as another kind: what was held back was no stop text."""
        rest, self.held_back = self.held_back, ""
        return rest

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        """Return where the stop text starts that is complete first."""
        found = ((text.find(stop), stop) for stop in self._texts)
        complete = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(complete)[1:] if complete else None
