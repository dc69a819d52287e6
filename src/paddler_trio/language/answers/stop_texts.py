"""Texts that end an answer and are not part of it.

The text is examined character by character, whatever pieces it arrives in: the answer ends where
the first stop text is complete; of several that end there, the one that began first counts. So what
comes out does not depend on how the text was cut. Only what may still become a stop text is held
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.language.answers.text_source import MarkerSet


class StopTexts:
    """Looks for stop texts in one answer; never raises."""

    __slots__ = ("_held_back", "_markers", "_texts", "found")

    def __init__(self, texts: Sequence[str]) -> None:
        """``texts``: none of them empty."""
        self._texts = tuple(dict.fromkeys(texts))
        self._markers = MarkerSet(self._texts)
        self._held_back = ""
        self.found: str | None = None
        """The stop text that ended the answer; nothing is let through after it."""

    @property
    def held_back(self) -> str:
        """Text that may still become a stop text."""
        return self._held_back

    def feed(self, text: str) -> str:
        """What of the text so far is decided and was not passed on before; may be empty."""
        if self.found is not None:
            return ""
        rest = self._held_back + text
        first = self._first_complete(rest)
        if first is not None:
            start, self.found = first
            self._held_back = ""
            return rest[:start]
        undecided = self._markers.undecided_from(rest)
        self._held_back = rest[undecided:]
        return rest[:undecided]

    def flush(self) -> str:
        """The text ends here, or goes on as another kind: what was held back was no stop text."""
        rest, self._held_back = self._held_back, ""
        return rest

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        """Where the stop text starts that is complete first."""
        found = ((text.find(stop), stop) for stop in self._texts)
        complete = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(complete)[1:] if complete else None
