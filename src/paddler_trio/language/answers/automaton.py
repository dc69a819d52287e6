"""Cuts an answer into sections at its markers, in whatever pieces the text arrives.

A marker counts within one class of text and leads to another. Most are fixed texts. Some carry a
*header*: a short text up to a second marker, which decides where it leads
(``<|channel|>analysis<|message|>``). And where models call tools without any marker, an *opening
probe* looks at how a section, or a line of it, begins.

Three invariants: the pieces joined are the text without its markers, in order; the classes do not
depend on how the text was cut; and what is held back is always the beginning of something that
would count here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import takewhile
from typing import TypeAlias

import attrs

from paddler_trio.language.answers.text_source import MarkerSet
from paddler_trio.language.answers.value_tracker import StringTracker, Tracker


class TokenClass(Enum):
    """The four classes of visible text; the values are in logs and in the names of counters."""

    __hash__ = object.__hash__  # there is one of each, and that of `Enum` runs in Python

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    UNDETERMINABLE = "undeterminable"


@attrs.frozen
class Piece:
    """Some text of one class.

    ``section`` counts the markers passed before it: two tool call pieces belong to the same
    stretch between markers exactly when their sections are equal. ``recipient`` is the tool that
    the marker before a tool call named, in formats that name it there. ``came_from`` is the other
    class that the text before its section was of; None while there was none.
    """

    token_class: TokenClass
    text: str
    section: int
    recipient: str | None = None
    came_from: TokenClass | None = None


MAX_HEADER_CHARS = 256
_PROBED_CHARS = 1024  # no opening probe looks further


@attrs.frozen
class Goal:
    """A goal is where a marker leads; ``recipient`` is the tool it names."""

    token_class: TokenClass
    recipient: str | None = None


ReadHeader: TypeAlias = Callable[[str], Goal | None]
"""Where a header leads; None if it is no header, so that its marker is plain text."""


@attrs.frozen
class Marker:
    """A text and where it leads.

    ``kept`` characters at its end are part of the new section, which is how an opener that is the
    call's own beginning stays readable. ``closes_inside``: the marker is text of the section it
    ends. ``text_was`` is the class of that text, where only its end shows it. With ``until``
    everything up to that text is a header, for ``read_header``. ``spares_values``: inside the
    values of a call, such as JSON's strings, the marker is text. ``repeats``: it counts only right
    behind a call, whose end was written twice; elsewhere it is text.
    """

    text: str
    leads_to: TokenClass
    kept: int = 0
    closes_inside: bool = False
    text_was: TokenClass | None = None
    until: str | None = None
    read_header: ReadHeader | None = None
    spares_values: bool = False
    repeats: bool = False

    def goal(self, header: str) -> Goal | None:
        """Return where the marker leads with what stands behind it; None if it is plain text."""
        if self.until is None or self.read_header is None:
            return Goal(self.leads_to)
        read = self.read_header
        return read(header.removesuffix(self.until)) if header.endswith(self.until) else None


class ProbeResult(Enum):
    """This is what an opening probe makes of the first characters of a section or a line."""

    IS_CALL = 1
    MAY_BECOME_ONE = 2
    IS_NONE = 3


OpeningProbe: TypeAlias = Callable[[str], ProbeResult]


class SectionRules:
    """The markers of every class. Immutable; made once a template, used by all its answers."""

    __slots__ = ("_by_text", "_sets", "new_tracker")

    def __init__(
        self,
        markers: Mapping[TokenClass, tuple[Marker, ...]],
        new_tracker: Callable[[], Tracker] = StringTracker,
    ) -> None:
        """Take the markers of each class; where two have the same text, the later one counts.

        Args:
          new_tracker: follows a section's values, for markers that spare them.
        """
        self.new_tracker = new_tracker
        self._by_text = {
            kind: {marker.text: marker for marker in markers.get(kind, ())} for kind in _KINDS
        }
        self._sets = {kind: MarkerSet(self._by_text[kind]) for kind in _KINDS}

    @property
    def texts(self) -> frozenset[str]:
        """Every marker, of whatever class."""
        return frozenset().union(*self._by_text.values())

    def markers_of(self, kind: TokenClass) -> MarkerSet:
        """Return what to look for in text of this class."""
        return self._sets[kind]

    def marker(self, kind: TokenClass, text: str) -> Marker:
        """Return what the marker ``text`` does."""
        return self._by_text[kind][text]


def _end_of(marker: Marker, text: str, begin: int, *, is_end: bool) -> int | None:
    """Return where a marker ends with its header, which begins at ``begin``.

    It is ``begin`` for a marker without one, or whose header does not end within the limit; None
    while that is open.
    """
    if marker.until is None or marker.read_header is None:
        return begin
    limit = begin + MAX_HEADER_CHARS + len(marker.until)
    end = text.find(marker.until, begin, limit)
    if end >= 0:
        return end + len(marker.until)
    return None if not is_end and len(text) < limit else begin


_KINDS = tuple(TokenClass)
_OPEN_CLASSES = frozenset({TokenClass.UNDETERMINABLE, TokenClass.CONTENT})
"""Where a call may begin without a marker."""


@attrs.define(eq=False)
class Automaton:
    """The sections of one answer; never raises, whatever the model writes.

    ``current`` is the class of the section that the next character falls into, markers passed;
    ``came_from`` the other class that the text before it was of. ``section``: how many markers
    were passed. ``held_back``: text that may still become a marker. ``marks``: the markers passed,
    as far as the answer wrote them and they are no part of a section; the first led to section 1.

    ``shows_reasoning_marks``: markers around reasoning are text of it.
    """

    _rules: SectionRules
    current: TokenClass = TokenClass.UNDETERMINABLE
    _probe: OpeningProbe | None = None
    _shows_reasoning_marks: bool = attrs.field(default=False, kw_only=True)
    came_from: TokenClass | None = attrs.field(default=None, init=False)
    section: int = attrs.field(default=0, init=False)
    held_back: str = attrs.field(default="", init=False)
    marks: list[str] = attrs.field(factory=list, init=False)
    _recipient: str | None = attrs.field(default=None, init=False)
    _hidden: int = attrs.field(default=0, init=False)
    """So much of what is held back belongs to the prompt."""
    _opening: str = attrs.field(default="", init=False)
    """What the prompt has of the reasoning, which is yet to be shown."""
    _is_fresh: bool = attrs.field(default=True, init=False)
    _has_text: bool = attrs.field(default=False, init=False)
    """More than blanks was shown of the section."""
    _shown_section: int = attrs.field(default=-1, init=False)
    _tracker: Tracker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._tracker = self._rules.new_tracker()

    def begin_with(self, prompt_end: str, *, shows_opening: bool = False) -> None:
        """Pass the end of the prompt, where the answer begins: its markers count, its text not.

        A marker that the prompt begins may be completed by the answer. ``shows_opening``: reasoning
        that the prompt opens is shown from its marker on, if markers are.
        """
        pieces = self.feed(prompt_end)
        if shows_opening and self.current is TokenClass.REASONING:
            opened = takewhile(lambda each: each.token_class is self.current, reversed(pieces))
            self._opening = "".join(reversed([piece.text for piece in opened]))
        self._hidden = len(self.held_back)
        self.section, self._shown_section = 0, -1
        self.marks.clear()
        self._is_fresh = True

    def doubt(self) -> None:
        """Take the class that the prompt leaves the answer in for a guess."""
        if self.current is TokenClass.CONTENT:
            self.current = TokenClass.UNDETERMINABLE
            self.came_from = None

    def feed(self, text: str) -> list[Piece]:
        """The pieces that ``text`` decides, in order; empty ones only where they call a tool."""
        if (
            not self.held_back
            and self._probe is None
            and not self._opening
            and self._rules.markers_of(self.current).cannot_begin_in(text)
        ):  # as with nearly every token
            pieces: list[Piece] = []
            self._emit(text, pieces)
            return pieces
        return self._advance(self.held_back + text, is_end=False)

    def flush(self) -> list[Piece]:
        """The answer has ended: what looked like a marker was none."""
        return self._advance(self.held_back, is_end=True)

    def _advance(self, text: str, *, is_end: bool) -> list[Piece]:
        pieces = [Piece(self.current, self._opening, self.section)] if self._opening else []
        self._opening = self.held_back = ""
        start = 0  # everything before is decided
        searched = 0  # markers before turned out to be plain text
        looked_in: TokenClass | None = None  # what `found` and `undecided` are true of
        found: re.Match[str] | None = None
        undecided = 0
        while True:
            if self._is_fresh and self._probe is not None and not self._hidden:
                start = self._pass_blanks(text, start, pieces)
                searched = max(searched, start)
                beginning = text[start : start + _PROBED_CHARS]
                if self._waits_for_call(self._probe, beginning, is_end=is_end):
                    self.held_back = text[start:]
                    return pieces
            place = undecided if found is None else min(undecided, found.start())
            if looked_in is not self.current or place < searched:
                looked_in = self.current
                markers = self._rules.markers_of(looked_in)
                found = markers.search(text, searched)
                undecided = len(text) if is_end else markers.undecided_from(text, searched)
                place = undecided if found is None else min(undecided, found.start())
            if self._probe is not None and self.current in _OPEN_CLASSES:
                # Every line may begin with a call.
                line_end = text.find("\n", searched, place)
                if line_end >= 0:
                    self._emit(text[start : line_end + 1], pieces)
                    start = searched = line_end + 1
                    self._is_fresh = True
                    continue
            if found is None or undecided < found.start():
                self._hold(text, start, undecided, pieces)
                if is_end:
                    self._emit_silence(pieces)
                return pieces
            marker = self._rules.marker(self.current, found.group())
            is_text = marker.repeats and not self._is_behind_call(text[start : found.start()])
            if marker.spares_values:
                self._emit(text[start : found.start()], pieces)
                start = found.start()
                is_text = is_text or self._tracker.is_inside
            after = found.end() if is_text else _end_of(marker, text, found.end(), is_end=is_end)
            if after is None:
                self._hold(text, start, found.start(), pieces)
                return pieces
            goal = marker.goal(text[found.end() : after])
            if is_text or goal is None:
                searched = found.end()
                continue
            shown_to = found.end() if marker.closes_inside else found.start()
            self._emit(text[start:shown_to], pieces)
            # What is kept for the new section must not be read as a marker again.
            start, searched = after - marker.kept, after
            self._pass(marker, goal, text[shown_to:start], pieces)
            looked_in = None

    def _hold(self, text: str, start: int, end: int, pieces: list[Piece]) -> None:
        """Show what is decided, up to ``end``, and keep the rest for when more is there."""
        self._emit(text[start:end], pieces)
        self.held_back = text[end:]

    def _is_behind_call(self, between: str) -> bool:
        """Return whether nothing but blanks stands between the last call and what comes next."""
        is_blank = not self._has_text and not between.strip()
        return is_blank and self.came_from is TokenClass.TOOL_CALL

    def _pass(self, marker: Marker, goal: Goal, written: str, pieces: list[Piece]) -> None:
        """Go on behind a marker, of which ``written`` is no part of a section."""
        self._emit_silence(pieces)
        mark = written[self._hidden :]
        self._hidden = max(0, self._hidden - len(written))
        if self._shows_reasoning_marks and mark:
            self._emit_mark(mark, goal.token_class, pieces)
        self._turn_to(goal, marker.text_was or self.current, mark)
        self._is_fresh = True

    def _pass_blanks(self, text: str, start: int, pieces: list[Piece]) -> int:
        """Show the blanks at ``start``, which decide nothing; where they end."""
        end = start
        while text[end : end + 1].isspace():
            end += 1
        self._emit(text[start:end], pieces)
        return end

    def _turn_to(self, goal: Goal, was: TokenClass, mark: str = "") -> None:
        if was is not goal.token_class:
            self.came_from = was
        self.current, self._recipient = goal.token_class, goal.recipient
        self.section += 1
        self._has_text = False
        self.marks.append(mark)
        self._tracker = self._rules.new_tracker()

    def _waits_for_call(self, probe: OpeningProbe, rest: str, *, is_end: bool) -> bool:
        """Return whether more text is needed to decide; a section that begins like a call
        becomes one."""
        if not rest:
            return False
        likeness = ProbeResult.IS_NONE
        if self.current in _OPEN_CLASSES:
            likeness = probe(rest)
        if likeness is ProbeResult.MAY_BECOME_ONE and not is_end:
            return True
        if likeness is ProbeResult.IS_CALL:
            self._turn_to(Goal(TokenClass.TOOL_CALL), self.current)
        self._is_fresh = False
        return False

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        visible = text[self._hidden :]
        self._hidden = max(0, self._hidden - len(text))
        if visible:
            self._shown_section = self.section
            if self.current is TokenClass.TOOL_CALL:
                self._tracker.feed(visible)
            self._has_text = self._has_text or not visible.isspace()
            self._is_fresh = self._is_fresh and visible.isspace()
            pieces.append(
                Piece(self.current, visible, self.section, self._recipient, self.came_from)
            )

    def _emit_mark(self, mark: str, leads_to: TokenClass, pieces: list[Piece]) -> None:
        if TokenClass.REASONING in (self.current, leads_to):
            kind = TokenClass.REASONING
            pieces.append(Piece(kind, mark, self.section, came_from=self.came_from))

    def _emit_silence(self, pieces: list[Piece]) -> None:
        """A message to a tool with nothing in it is a call all the same."""
        if self._recipient is not None and self._shown_section != self.section:
            self._shown_section = self.section
            pieces.append(Piece(self.current, "", self.section, self._recipient, self.came_from))
