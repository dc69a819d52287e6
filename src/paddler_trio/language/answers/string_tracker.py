"""Whether a JSON text that is still being written has got into a string.

Models forget quotes. A string that a line break runs through is none, and one whose last character
is a closing bracket has probably lost its closing quote: neither may swallow what follows.
"""

from __future__ import annotations

import re

_TELLING = re.compile(r'\\.|\\\Z|"|\n', re.DOTALL)


class StringTracker:
    """Follows the quotes of a text, in whatever pieces it comes."""

    __slots__ = ("_ends_in_bracket", "_is_escaping", "_is_open")

    def __init__(self) -> None:
        self._is_open = False
        self._is_escaping = False
        self._ends_in_bracket = False

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
                self._is_open = not self._is_open
            elif found == "\n":
                self._is_open = False
            elif len(found) == 1:
                self._is_escaping = True
        stripped = text.rstrip()
        if stripped:
            self._ends_in_bracket = stripped[-1] in "}]"
