"""Keys of a terminal, one by one: the terminal is made to send them at once, and put back.

Ctrl-C still interrupts. Ctrl-Z is left to the terminal too; whoever holds the screen has to give it
back then.
"""

from __future__ import annotations

import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import attrs

ESCAPE: Final = "\x1b"
ESCAPE_WAIT_S: Final = 0.05
"""A sequence of an arrow arrives as a whole; the key Esc comes alone."""
MAX_PENDING: Final = 16
_SEQUENCES: Final = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[Z": "back tab",
}
_INTRODUCERS: Final = "[O"
_NAMES: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
}


@attrs.define
class KeyDecoder:
    """Characters as they arrive become names of keys; a printable character is its own name."""

    _pending: str = attrs.field(default="", init=False)

    @property
    def is_waiting(self) -> bool:
        """An Esc has arrived that may be the beginning of a sequence."""
        return bool(self._pending)

    def feed(self, text: str) -> list[str]:
        """The keys that are complete now."""
        keys = []
        for character in text:
            if self._pending == ESCAPE and character not in _INTRODUCERS:
                keys += self.flush()  # the key Esc, and another one soon after it
            if self._pending:
                self._pending += character
                if (key := self._sequence()) is not None:
                    self._pending = ""
                    keys += [key] if key else []
            elif character == ESCAPE:
                self._pending = ESCAPE
            elif character in _NAMES:
                keys.append(_NAMES[character])
            elif character.isprintable():
                keys.append(character)
        return keys

    def flush(self) -> list[str]:
        """Nothing followed: what was pending was the key Esc, or is no sequence at all."""
        was, self._pending = self._pending, ""
        return ["escape"] if was == ESCAPE else []

    def _sequence(self) -> str | None:
        """The key that is pending; empty for one that is not known, None if more has to come."""
        body = self._pending[1:]
        if body in _SEQUENCES:
            return _SEQUENCES[body]
        if len(body) > MAX_PENDING:
            return ""
        is_complete = len(body) > 1 and (body[-1].isalpha() or body[-1] == "~")
        return "" if is_complete else None


@contextmanager
def single_keys(terminal: int) -> Iterator[None]:
    """Within the block the terminal of this descriptor sends keys at once and shows none."""
    before = termios.tcgetattr(terminal)
    changed = termios.tcgetattr(terminal)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # a terminal that hung up has nothing to be put back
            termios.tcsetattr(terminal, termios.TCSANOW, before)
