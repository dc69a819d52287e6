"""Reading a text that is still being written, with code that looks as if all of it were there.

A reader is a generator: it takes what it can from a :class:`Source` and yields when it needs more.
Its owner feeds the source and resumes it. What was taken is forgotten at once, so reading a text of
any length, however it is cut, costs time in proportion to its length. A :class:`MarkerSet` finds
fixed texts, whatever pieces the text comes in.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeAlias, TypeVar

import attrs

from paddler_trio.language.answers.call_events import NotACallError


class MarkerSet:
    """Some texts to look for. Immutable; none of them is empty.

    Of two texts that start at the same place the shorter one counts, the moment it is complete:
    so it does not matter how the text was cut.
    """

    __slots__ = ("_beginnings", "_firsts", "_longest", "_pattern", "_sorted", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(texts)
        alternatives = "|".join(re.escape(text) for text in sorted(self.texts, key=len))
        self._pattern = re.compile(alternatives) if alternatives else None
        self._sorted = sorted(text for text in self.texts if len(text) > 1)
        self._firsts = frozenset(text[0] for text in self._sorted)
        self._beginnings = frozenset(text[0] for text in self.texts)
        self._longest = max(map(len, self._sorted), default=1) - 1

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        """The first of the texts at or after ``start``."""
        return None if self._pattern is None else self._pattern.search(text, start)

    def cannot_begin_in(self, text: str) -> bool:
        """None of the texts begins with a character of ``text``."""
        return self._beginnings.isdisjoint(text)

    def undecided_from(self, text: str, start: int = 0) -> int:
        """Return where the longest end of ``text`` starts that may still become one of the
        texts."""
        for begin in range(max(start, len(text) - self._longest), len(text)):
            if text[begin] in self._firsts and self._is_beginning(text[begin:]):
                return begin
        return len(text)

    def _is_beginning(self, text: str) -> bool:
        """Return whether one of the texts begins with this and goes on."""
        place = bisect_right(self._sorted, text)  # what goes on sorts right behind it
        return place < len(self._sorted) and self._sorted[place].startswith(text)


T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""A reader under way; each ``yield`` asks for more text."""

Sink: TypeAlias = Callable[[str], object]

MAX_NAME_CHARS = 1024
_BLANK = re.compile(r"\s*")


@attrs.define(eq=False)
class Source:
    """The text that is there and not taken yet."""

    _text: str = ""
    ended: bool = False
    is_cut_off: bool = False
    """The end is not where the writer meant it to be."""
    taken: int = 0
    """How many characters were taken since the beginning."""
    _start: int = attrs.field(default=0, init=False)
    _tapes: list[list[str]] = attrs.field(factory=list, init=False)

    def feed(self, text: str) -> None:
        """More text; only while not ended."""
        self._text = self._text[self._start :] + text
        self._start = 0

    @property
    def rest(self) -> str:
        """Return what is there and not taken."""
        return self._text[self._start :]

    def ahead(self, count: int) -> str:
        """Up to ``count`` characters of what is there, not taken."""
        return self._text[self._start : self._start + count]

    @property
    def is_spent(self) -> bool:
        """Nothing is there now."""
        return self._start == len(self._text)

    def take(self, count: int) -> str:
        """The next ``count`` characters, which are there."""
        text = self._text[self._start : self._start + count]
        self._start += len(text)
        self.taken += len(text)
        for tape in self._tapes:
            tape.append(text)
        return text

    def give_back(self, count: int) -> None:
        """Untake the last ``count`` characters taken; not while recording."""
        assert count <= self._start
        self._start -= count
        self.taken -= count

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Everything that is taken meanwhile, in pieces."""
        tape: list[str] = []
        self._tapes.append(tape)
        try:
            yield tape
        finally:
            self._tapes.pop()  # tapes end in the order opposite to their beginning

    def take_match(self, pattern: re.Pattern[str]) -> str:
        """Take as much as ``pattern`` matches of what is there; maybe nothing."""
        match = pattern.match(self._text, self._start)
        return self.take(match.end() - self._start) if match is not None else ""

    def peek(self) -> Reading[str]:
        """The next character, not taken; "" at the end."""
        while self._start == len(self._text) and not self.ended:
            yield
        return self._text[self._start : self._start + 1]

    def has(self, count: int) -> Reading[bool]:
        """Return whether the text goes on for ``count`` characters."""
        while len(self._text) - self._start < count:
            if self.ended:
                return False
            yield
        return True

    def skip_blank(self) -> Reading[str]:
        """Take blanks; the character after them, not taken."""
        while True:
            self.take_match(_BLANK)
            if self._start < len(self._text) or self.ended:
                return self._text[self._start : self._start + 1]
            yield

    def starts_with(self, *texts: str) -> Reading[str | None]:
        """Return which of ``texts`` comes next, the longest that does; not taken."""
        longest = max(map(len, texts))
        while True:
            there = self._text[self._start : self._start + longest]
            if self.ended or len(there) == longest:
                break
            if not any(text.startswith(there) and text != there for text in texts):
                break
            yield
        return max((text for text in texts if there.startswith(text)), key=len, default=None)

    def take_text(self, text: str) -> Reading[bool]:
        """Take ``text`` if it comes next."""
        found = yield from self.starts_with(text)
        if found is None:
            return False
        self.take(len(text))
        return True

    def next_member(
        self, closing: str, *, whole: str = "the call", separators: str = ",", may_end: bool = False
    ) -> Reading[str]:
        """Take blanks and separators; the character that the next member begins with, not taken.

        Args:
          whole: what the members are of, for the error.
          may_end: the text may end where ``closing`` was forgotten.

        Returns:
          "" if ``closing`` comes instead, which is taken.

        Raises:
          NotACallError: the text ends before.
        """
        while (char := (yield from self.skip_blank())) and char in separators:
            self.take(1)
        if not char and not may_end:
            raise NotACallError(f"{whole} does not end")
        if char == closing:
            self.take(1)
            return ""
        return char

    def take_word(self, *ends: str) -> Reading[tuple[str, str]]:
        """A short text up to one of ``ends``, which is taken, and that end.

        Raises:
          NotACallError: none comes within ``MAX_NAME_CHARS``.
        """
        parts: list[str] = []
        end = yield from self.take_until(stops_of(*ends), parts.append)
        text = "".join(parts)
        if end is None or len(text) > MAX_NAME_CHARS:
            raise NotACallError(f"{text[:80]!r} is not followed by {ends[0]!r}")
        return text, end

    def take_until(self, stops: MarkerSet, sink: Sink) -> Reading[str | None]:
        """Give everything before the first stop to ``sink`` as it comes, and take the stop.

        Returns:
          The stop; None if the text ended without one.
        """
        while True:
            found = stops.search(self._text, self._start)
            undecided = stops.undecided_from(self._text, self._start)
            if self.ended:
                undecided = len(self._text)
            before = undecided
            if found is not None and found.start() <= undecided:
                before = found.start()
            if before > self._start:
                sink(self.take(before - self._start))
            if found is not None and found.start() == before:
                return self.take(len(found.group()))
            if self.ended:
                return None
            yield


@lru_cache(maxsize=256)
def stops_of(*texts: str) -> MarkerSet:
    """A set to stop at; the same for the same texts."""
    return MarkerSet(texts)
