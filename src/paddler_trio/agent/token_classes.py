"""What a piece of an answer is: content, reasoning, part of a tool call, or nobody can say.

Models mark sections with texts such as ``<think>``; which ones follows from the chat template in
force, because that is what they were trained with. The classifier walks the answer as an
automaton over its text:

    ========================  ==================  =========  ===============  ==========
    section                   reasoning opens     closes     tool call opens  closes
    ========================  ==================  =========  ===============  ==========
    undeterminable, content   reasoning           content*   tool call        content*
    reasoning                 reasoning           content    tool call        plain text
    tool call                 plain text          plain text plain text**     content
    ========================  ==================  =========  ===============  ==========

    *  only while undeterminable; in content nothing is open, so a close marker is plain text
    ** where calls have no close marker, the next opener starts the next call

Three invariants, whatever pieces the text arrives in: the pieces joined are the text without its
markers, in order; the classes do not depend on how the text was cut; and what is held back is
always, to the letter, the beginning of a marker that would count here.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

import attrs


class TokenClass(Enum):
    """The four kinds of visible text; the values are words for logs, not for the wire."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    UNDETERMINABLE = "undeterminable"


@attrs.frozen
class Markers:
    """The texts that open and close sections; None where the model has no such section.

    ``tool_close`` may be None with ``tool_open`` set: such calls last until the answer ends.
    """

    reasoning_open: str | None = None
    reasoning_close: str | None = None
    tool_open: str | None = None
    tool_close: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return any(attrs.astuple(self))


@attrs.frozen
class Piece:
    """Some text of one class.

    ``section`` counts the markers passed before it: two tool call pieces belong to the same
    stretch between markers exactly when their sections are equal.
    """

    token_class: TokenClass
    text: str
    section: int


# Openers and closers by family, the more telling first: a template may mention several.
_REASONING_FAMILIES = (
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<think>", "</think>"),
)
_TOOL_FAMILIES: tuple[tuple[str, str | None], ...] = (
    ("[TOOL_CALLS]", None),
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<seed:tool_call>", "</seed:tool_call>"),
    ("<|START_ACTION|>", "<|END_ACTION|>"),
    ("<|tool_call>", "<tool_call|>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<|tool_call|>", None),
    ("<|tool_call_start|>", "<|tool_call_end|>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # noqa: RUF001 - as DeepSeek writes it
    ("<TOOLCALL>", "</TOOLCALL>"),
    ("<tool_call>", "</tool_call>"),
    ("<tool_calls>", "</tool_calls>"),
)
_JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def derive_markers(template_source: str) -> Markers:
    """The markers of the families that the text of a chat template mentions.

    Comments do not count. A template of no known family gives markers of which none is set.
    """
    source = _JINJA_COMMENT.sub("", template_source)
    reasoning_open, reasoning_close = next(
        (family for family in _REASONING_FAMILIES if family[0] in source or family[1] in source),
        (None, None),
    )
    tool_open, tool_close = next(
        (
            family
            for family in _TOOL_FAMILIES
            if family[0] in source and (family[1] or "") in source
        ),
        (None, None),
    )
    return Markers(reasoning_open, reasoning_close, tool_open, tool_close)


class TokenClassifier:
    """The automaton of one answer; never raises, whatever the model writes.

    Without markers every piece is undeterminable and passes at once.
    """

    __slots__ = ("_class", "_doors", "_held_back", "_section")

    def __init__(self, markers: Markers, opening: TokenClass = TokenClass.UNDETERMINABLE) -> None:
        self._doors = {token_class: _doors_of(markers, token_class) for token_class in TokenClass}
        self._class = opening if markers else TokenClass.UNDETERMINABLE
        self._held_back = ""
        self._section = 0

    @property
    def current(self) -> TokenClass:
        """The class of the section that the next letter falls into, markers passed."""
        return self._class

    @property
    def section(self) -> int:
        """How many markers were passed; see ``Piece``."""
        return self._section

    @property
    def held_back(self) -> str:
        """Text that may still become a marker; shorter than the longest marker."""
        return self._held_back

    def feed(self, text: str) -> list[Piece]:
        """The pieces that ``text`` settles, in order, none of them empty."""
        pieces: list[Piece] = []
        rest = self._held_back + text
        while True:
            doors = self._doors[self._class]
            found = doors.pattern.search(rest) if doors.pattern is not None else None
            undecided = doors.begins_at(rest)
            if found is None or undecided < found.start():
                self._emit(rest[:undecided], pieces)
                self._held_back = rest[undecided:]
                return pieces
            self._emit(rest[: found.start()], pieces)
            rest = rest[found.end() :]
            self._class = doors.leads_to[found.group()]
            self._section += 1

    def flush(self) -> list[Piece]:
        """The answer has ended: what looked like a marker was none."""
        pieces: list[Piece] = []
        self._emit(self._held_back, pieces)
        self._held_back = ""
        return pieces

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Piece(self._class, text, self._section))


def opening_class(
    rendered_with_generation_prompt: str, rendered_without: str, markers: Markers
) -> TokenClass:
    """The class an answer starts in: what the generation prompt alone says.

    Some templates open the reasoning section for the model, or open and close it at once to skip
    reasoning. Only what the template adds for the answer is read, so that markers inside somebody's
    message decide nothing.
    """
    with_prompt, without = rendered_with_generation_prompt, rendered_without
    start = len(without)
    if not with_prompt.startswith(without):
        # The template ends the conversation differently without a generation prompt. Go back to
        # the first difference, and further to the start of a marker that it may have cut.
        shared = zip(with_prompt, without, strict=False)
        start = next((i for i, (a, b) in enumerate(shared) if a != b), len(with_prompt))
        for marker in filter(None, attrs.astuple(markers)):
            for begin in range(max(0, start - len(marker) + 1), start):
                if with_prompt.startswith(marker, begin):
                    start = begin
                    break
    classifier = TokenClassifier(markers)
    classifier.feed(with_prompt[start:])
    return classifier.current


@attrs.frozen
class _Doors:
    """The markers that count within one class and where each leads."""

    leads_to: dict[str, TokenClass]
    pattern: re.Pattern[str] | None
    beginnings: frozenset[str]
    longest_beginning: int

    def begins_at(self, text: str) -> int:
        """Where the longest end of ``text`` starts that is a marker's proper beginning."""
        for start in range(max(0, len(text) - self.longest_beginning), len(text)):
            if text[start:] in self.beginnings:
                return start
        return len(text)


@lru_cache(maxsize=64)  # four entries a template in force; a request builds none
def _doors_of(markers: Markers, token_class: TokenClass) -> _Doors:
    """The table at the top of this file. Where two markers are the same text, closing wins."""
    table: list[tuple[str | None, TokenClass]] = []
    match token_class:
        case TokenClass.UNDETERMINABLE:
            table = [
                (markers.tool_open, TokenClass.TOOL_CALL),
                (markers.reasoning_open, TokenClass.REASONING),
                (markers.tool_close, TokenClass.CONTENT),
                (markers.reasoning_close, TokenClass.CONTENT),
            ]
        case TokenClass.CONTENT:
            table = [
                (markers.tool_open, TokenClass.TOOL_CALL),
                (markers.reasoning_open, TokenClass.REASONING),
            ]
        case TokenClass.REASONING:
            table = [
                (markers.tool_open, TokenClass.TOOL_CALL),
                (markers.reasoning_open, TokenClass.REASONING),
                (markers.reasoning_close, TokenClass.CONTENT),
            ]
        case TokenClass.TOOL_CALL if markers.tool_close:
            table = [(markers.tool_close, TokenClass.CONTENT)]
        case TokenClass.TOOL_CALL:
            table = [(markers.tool_open, TokenClass.TOOL_CALL)]
    leads_to = {marker: target for marker, target in table if marker}
    # The shortest marker first: it counts the moment it is complete, however the text is cut.
    pattern = "|".join(re.escape(marker) for marker in sorted(leads_to, key=len))
    beginnings = frozenset(marker[:end] for marker in leads_to for end in range(1, len(marker)))
    return _Doors(
        leads_to,
        re.compile(pattern) if pattern else None,
        beginnings,
        max(map(len, beginnings), default=0),
    )
