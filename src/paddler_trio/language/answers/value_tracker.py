"""A section of calls that is still being written ends inside a value, or not.

What looks like the end of the section inside a value is text. But models forget quotes and end
tags, and such a value must not swallow what follows.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import attrs

from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.known_slips import ends_of_call, misspelt_ends
from paddler_trio.language.answers.text_source import stops_of

_TELLING = re.compile(r'\\.|\\\Z|"|\n', re.DOTALL)


@attrs.define(eq=False)
class StringTracker:
    """Follows the quotes of JSON, in whatever pieces the text comes.

    A string that a line break runs through looks like none from there on, and the next quote ends
    it. One whose last character is a closing bracket has probably lost its closing quote.
    """

    _is_open: bool = attrs.field(default=False, init=False)
    _is_broken: bool = attrs.field(default=False, init=False)
    _is_escaping: bool = attrs.field(default=False, init=False)
    _ends_in_bracket: bool = attrs.field(default=False, init=False)

    @property
    def is_inside(self) -> bool:
        """The text so far ends inside a string that looks like one."""
        return self._is_open and not self._ends_in_bracket

    def feed(self, text: str) -> None:
        """More of the text."""
        start = 1 if self._is_escaping and text else 0
        self._is_escaping = self._is_escaping and not text
        for match in _TELLING.finditer(text, start):
            found = match.group()
            if found == '"':
                self._is_open = not (self._is_open or self._is_broken)
                self._is_broken = False
            elif found == "\n":
                self._is_broken = self._is_broken or self._is_open
                self._is_open = False
            elif len(found) == 1:
                self._is_escaping = True
        stripped = text.rstrip()
        if stripped:
            self._ends_in_bracket = stripped[-1] in "}]"


@attrs.define(eq=False)
class ValueTracker:
    """Follows the tags around arguments, in whatever pieces the text comes.

    Values are bare text that may contain tags: a tag ends a value only where an argument or the
    call's end follows. Right behind the end of a call nothing is a value.
    """

    _syntax: TaggedCalls
    _is_open: bool = attrs.field(default=False, init=False)
    _undecided: str = attrs.field(default="", init=False)
    _last: str = attrs.field(default="", init=False)

    @property
    def _ends(self) -> tuple[str, ...]:
        """Return what a value is not gone on with behind, though its own end was forgotten or
        misspelt."""
        return (*ends_of_call(self._syntax), *misspelt_ends(self._syntax.value_end))

    @property
    def is_inside(self) -> bool:
        """The text so far ends inside a value."""
        if not self._is_open or self._undecided.startswith(self._syntax.value_end):
            return False
        return not self._last.rstrip().endswith(self._ends)

    def feed(self, text: str) -> None:
        """More of the text."""
        syntax = self._syntax
        if self._ends:
            last = self._last + text
            solid = last.rstrip()
            # One of the blanks at the end stays: more text may follow them.
            self._last = solid[-max(map(len, self._ends)) :] + last[len(solid) :][:1]
        text = self._undecided + text
        start = 0
        while True:
            # the key between the first tag and the value is short, and has no tags
            tags = stops_of(syntax.value_end if self._is_open else syntax.before_key)
            found = tags.search(text, start)
            if found is None:
                self._undecided = text[tags.undecided_from(text, start) :]
                return
            start = found.end()
            if not self._is_open or not syntax.call_end:
                self._is_open = not self._is_open
                continue
            while text[start : start + 1].isspace():
                start += 1
            may_follow = (syntax.before_key, *ends_of_call(syntax))
            if text.startswith(may_follow, start):
                self._is_open = False
            elif any(tag.startswith(text[start : start + len(tag)]) for tag in may_follow):
                self._undecided = syntax.value_end + text[start:]  # blanks decide nothing
                return


Tracker: TypeAlias = StringTracker | ValueTracker
"""Follows the values of a section of calls while it is written."""
