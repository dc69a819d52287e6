"""A whole answer: its content, its reasoning and its calls, as people and APIs read them.

What stands between sections is layout: the line breaks models are trained to write around their
markers. It is left out here, the way model makers' own parsers do: reasoning has no blanks at its
ends, content none after reasoning or beside a call. Content that no marker touches stays exactly as
it is. Text of a section of calls that is no call is content. The APIs stream by the same rules
(``balancer/apis/answers/layout.py``); native results of Paddler's requests keep every blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from paddler_trio.language.answers.automaton import Automaton, Piece, TokenClass
from paddler_trio.language.answers.bare_calls import probe_of
from paddler_trio.language.answers.call_events import Arguments, Remainder
from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.literals import parse_json
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import (
    ParsedCall,
    ParseFailed,
    ToolCallDelta,
    ToolCallOutcome,
    ToolSet,
    ValidationFailed,
    reader_of_calls,
)

_CONTENT, _REASONING = TokenClass.CONTENT, TokenClass.REASONING
_CALL, _UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE


@attrs.frozen
class WholeAnswer:
    """``problems`` are sentences: calls that may not be run as they are, text that is no call."""

    content: str
    reasoning: str
    tool_calls: tuple[ParsedCall, ...]
    problems: tuple[str, ...]


@attrs.define
class _Run:
    """Text of one class between others."""

    kind: TokenClass
    came_from: TokenClass | None
    section: int
    recipient: str | None = None
    parts: list[str] = attrs.Factory(list)

    def takes(self, piece: Piece) -> bool:
        """Return whether the piece goes on with this text."""
        if self.kind is not piece.token_class:
            return False
        return self.kind is _CONTENT or self.section == piece.section

    @property
    def text(self) -> str:
        return "".join(self.parts)


class AnswerReader:
    """Puts one answer together from its text, fed in any pieces."""

    def __init__(
        self,
        form: ModelFormat,
        tools: Sequence[Mapping[str, object]] | ToolSet = (),
        *,
        prompt_end: str = "",
        may_reason: bool = False,
    ) -> None:
        """Begin an answer. Without tools, calls are read all the same, to any tool.

        Args:
          prompt_end: what the prompt has for the answer's beginning, such as ``<think>``.
          may_reason: thinking was not switched off: a close marker in the first text shows that it
            was reasoning, even if the prompt closed the reasoning.

        Raises:
          ToolSchemaError: one of the tools is not usable.
        """
        tool_set = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        self._automaton = Automaton(form.rules, probe=probe_of(form, tool_set.validators))
        self._automaton.begin_with(prompt_end)
        self._begins_after_reasoning = self._automaton.came_from is _REASONING
        if may_reason:
            self._automaton.doubt()
        # A call between tags may go on with further arguments as long as its section is open.
        calls = form.calls
        syntax = None if calls is None else calls.syntax
        self._closer = "" if calls is None else calls.closer
        self._needs_closer = (
            calls is not None
            and isinstance(syntax, TaggedCalls)
            and bool(calls.closer or syntax.call_end)
        )
        self._calls = reader_of_calls(form, tool_set, accepts_any_tool=not tool_set)
        self._runs: list[_Run] = []
        self._deltas: list[ToolCallDelta] = []
        self._breaks_off = False
        self._problems: list[str] = []

    def feed(self, text: str) -> None:
        """More of the answer."""
        self._take(self._automaton.feed(text))

    def end(self, *, is_partial: bool = False) -> WholeAnswer:
        """The answer is over.

        Args:
          is_partial: it was cut off; calls that had begun are given as far as they came, and a
            marker that had begun is not shown.
        """
        if not is_partial:
            self._take(self._automaton.flush())
        is_open = self._automaton.current is _CALL
        is_cut_off = is_open and (is_partial or self._needs_closer)
        outcomes = self._calls.close_section(is_cut_off=is_cut_off)
        self._note(outcomes, breaks_off=is_open and is_partial)
        return WholeAnswer(
            content=self._content(),
            reasoning="\n".join(
                text
                for index, run in enumerate(self._runs)
                if self._kind_of(index) is _REASONING and (text := run.text.strip())
            ),
            tool_calls=tuple(self._read_calls()),
            problems=tuple(self._problems),
        )

    def _take(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._note(self._calls.feed_piece(piece))  # what a section left stands before the next
            if not self._runs or not self._runs[-1].takes(piece):
                run = _Run(piece.token_class, piece.came_from, piece.section, piece.recipient)
                self._runs.append(run)
            self._runs[-1].parts.append(piece.text)

    def _note(self, outcomes: Iterable[ToolCallOutcome], *, breaks_off: bool = False) -> None:
        self._deltas += self._calls.take_deltas()
        outcomes = tuple(outcomes)
        is_unread = bool(outcomes) and all(isinstance(each, Remainder) for each in outcomes)
        if is_unread and not breaks_off:
            self._keep_section()
        for outcome in outcomes:
            match outcome:
                case ValidationFailed(messages=messages):
                    self._problems.extend(messages)
                case Remainder(text=text, message=message, is_last=is_last):
                    self._problems.append(f"no tool call: {message}: {text[:200]!r}")
                    if breaks_off and is_last:
                        self._breaks_off = True
                    elif breaks_off or not is_unread:
                        self._keep(text)
                case ParseFailed(message=message):
                    self._problems.append(message)
                case _:
                    pass

    def _keep(self, text: str) -> None:
        """Text of the last section that is no call is content, unless a tool was its recipient."""
        section = self._runs[-1]
        if section.recipient is None:
            self._runs.append(_Run(_CONTENT, _CALL, section.section, parts=[text]))

    def _keep_section(self) -> None:
        """The last section calls nothing at all: it is content, and so are its markers."""
        section = self._runs[-1]
        if section.recipient is None:
            marks, number = self._automaton.marks, section.section
            opener = marks[number - 1] if number > 0 else ""
            closer = self._closer if self._closer in marks[number : number + 1] else ""
            section.kind, section.parts = _CONTENT, [opener, *section.parts, closer]

    def _kind_of(self, index: int) -> TokenClass:
        """Text in front of a close marker without an opener was reasoning all the time."""
        run = self._runs[index]
        if run.kind is not _UNDETERMINABLE:
            return run.kind
        if index + 1 < len(self._runs):
            following = self._runs[index + 1].came_from
        else:
            following = self._automaton.came_from
        return _REASONING if following is _REASONING and index == 0 else _CONTENT

    def _content(self) -> str:
        content = ""
        gap = ""
        for index, run in enumerate(self._runs):
            if self._kind_of(index) is not _CONTENT:
                continue
            text = run.text
            begins_after = index == 0 and self._begins_after_reasoning
            if begins_after or run.came_from in (_REASONING, _CALL):
                stripped = text.lstrip()
                if run.came_from is _CALL:  # blanks behind reasoning stand for nothing
                    gap = _layout(gap + text[: len(text) - len(stripped)])
                text = stripped
            following = self._runs[index + 1].kind if index + 1 < len(self._runs) else None
            blanks = ""
            if following is _CALL or (following is not None and not text.strip()):
                blanks = text[len(text.rstrip()) :]
                text = text.rstrip()
            if content and text and run.came_from is _CALL:
                content += gap
            content += text
            gap = _layout(blanks if text else gap + blanks)
        return content

    def _read_calls(self) -> Iterable[ParsedCall]:
        begun: dict[int, tuple[str, str, list[str]]] = {}
        for delta in self._deltas:
            if delta.name is not None and delta.id is not None:
                begun[delta.index] = (delta.name, delta.id, [])
            begun[delta.index][2].append(delta.arguments)
        for index, (name, call_id, parts) in begun.items():
            text = "".join(parts)
            if index in self._calls.complete:
                yield ParsedCall(call_id, name, _object_or_text(text))
            elif self._breaks_off and index == len(begun) - 1:
                yield ParsedCall(call_id, name, text)


def _layout(blanks: str) -> str:
    """Return what is left of the blanks between two texts that a call stood between."""
    return "\n" if "\n" in blanks else blanks[:1]


def _object_or_text(text: str) -> Arguments:
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
