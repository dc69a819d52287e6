"""Whether a call that is still being written between tags has got into one of its values.

Values are bare text, and code may speak about tags: what looks like the end of the section inside
a value is text, and so is a tag that ends a value where neither an argument nor the call's end
follows. A value whose end tag the model forgot must not swallow what follows, so right behind the
end of a call nothing counts as a value.
"""

from __future__ import annotations

from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.text_source import stops_of


class ValueTracker:
    """Follows the tags around arguments, in whatever pieces the text comes."""

    __slots__ = ("_is_open", "_last", "_syntax", "_undecided")

    def __init__(self, syntax: TaggedCalls) -> None:
        self._syntax = syntax
        self._is_open = False
        self._undecided = ""
        self._last = ""

    @property
    def is_inside(self) -> bool:
        """The text so far ends inside a value."""
        call_end, value_end = self._syntax.call_end, self._syntax.value_end
        ends_call = bool(call_end) and self._last.rstrip() == call_end
        return self._is_open and not ends_call and not self._undecided.startswith(value_end)

    def feed(self, text: str) -> None:
        """More of the text."""
        syntax = self._syntax
        if syntax.call_end:
            last = self._last + text
            solid = last.rstrip()
            # One of the blanks at the end stays: more text may follow them.
            self._last = solid[-len(syntax.call_end) :] + last[len(solid) :][:1]
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
            may_follow = (syntax.before_key, syntax.call_end)
            if text.startswith(may_follow, start):
                self._is_open = False
            elif any(tag.startswith(text[start : start + len(tag)]) for tag in may_follow):
                self._undecided = syntax.value_end + text[start:]  # blanks decide nothing
                return
