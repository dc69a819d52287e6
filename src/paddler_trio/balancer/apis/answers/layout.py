"""Blanks between the sections of an answer: layout, which no client gets. Pure.

The rules are those of a whole answer (``docs/answers.md``): reasoning has no blanks at its ends;
content has none after reasoning or beside a call, and keeps one where a call stood between two
texts; content that stands alone stays exactly as it is. Blanks at the end of a text are held until
the next piece shows what they are, so that a stream and a whole answer have the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

Logprob = Mapping[str, object]


class _Section(Enum):
    CONTENT = 1
    REASONING = 2
    CALL = 3


@attrs.define
class Layout:
    """One answer. Each method takes the next piece and returns the text that is certain by then.

    Content comes with the log probabilities of its tokens; those of layout are dropped with it.
    """

    _section: _Section | None = None
    """That of the newest text."""
    _other: _Section | None = None
    """The newest section that was no content."""
    _has_content: bool = False
    """Some content was returned."""
    _has_text: bool = False
    """Some text of the newest section was returned."""
    _has_reasoning: bool = False
    _held: str = ""
    """Blanks that may be layout."""
    _held_logprobs: list[Logprob] = attrs.field(factory=list)
    _gap: str = ""
    """The layout around a call, in case that content goes on after it."""

    def content(self, text: str, logprobs: Sequence[Logprob]) -> tuple[str, Sequence[Logprob]]:
        """More content; the text is empty if all of it waits or is layout."""
        if self._section is not _Section.CONTENT:
            self._turn_to(_Section.CONTENT)
        if self._other is not None and not self._has_text:
            begun = text.lstrip()
            if self._other is _Section.CALL:  # blanks behind reasoning stand for nothing
                self._gap = _one_blank(self._gap + text[: len(text) - len(begun)])
            if not begun:
                return "", ()
            is_after_call = self._other is _Section.CALL and self._has_content
            text = self._gap + begun if is_after_call else begun
        whole = self._held + text
        text = whole.rstrip()
        self._held = whole[len(text) :]
        self._held_logprobs += logprobs
        if not text:
            return "", ()
        self._has_text = self._has_content = True
        self._gap = ""
        entries, self._held_logprobs = self._held_logprobs, []
        return text, entries

    def reasoning(self, text: str) -> str:
        """More reasoning; the text is empty if all of it waits or is layout."""
        if self._section is not _Section.REASONING:
            self._turn_to(_Section.REASONING)
        if not self._has_text:
            text = text.lstrip()
            text = "\n" + text if text and self._has_reasoning else text
        whole = self._held + text
        text = whole.rstrip()
        self._held = whole[len(text) :]
        if text:
            self._has_text = self._has_reasoning = True
        return text

    def before_reasoning(self) -> tuple[str, Sequence[Logprob]]:
        """Reasoning comes next: blanks after content that it does not belong to are content."""
        if self._section is _Section.CONTENT and self._has_text:
            return self.end()
        return "", ()

    def call(self) -> None:
        """A call comes next."""
        if self._section is not _Section.CALL:
            self._turn_to(_Section.CALL)

    def end(self) -> tuple[str, Sequence[Logprob]]:
        """The answer is over: blanks at the end of content are content."""
        if self._section is not _Section.CONTENT:
            return "", ()
        text, self._held = self._held, ""
        entries, self._held_logprobs = self._held_logprobs, []
        return text, entries

    def _turn_to(self, section: _Section) -> None:
        """Begin a section: the blanks that are held are layout."""
        if self._section is _Section.CONTENT:
            self._gap = _one_blank(self._gap + self._held)
        self._held = ""
        self._held_logprobs.clear()
        self._section, self._has_text = section, False
        if section is not _Section.CONTENT:
            self._other = section


def _one_blank(blanks: str) -> str:
    """Return the blank that stays of those around a call between two texts."""
    return "\n" if "\n" in blanks else blanks[:1]
