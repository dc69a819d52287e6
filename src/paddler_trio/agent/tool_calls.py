"""From the text of tool call sections to calls that may be run.

A reader belongs to one answer. It collects the text of a section, and when the section ends,
judges every call in it alone: a call to an unknown tool or with arguments that its schema forbids
is reported, and its siblings still arrive. Ids are random, so calls of different answers never
share one. Sections are bounded; a longer one is reported, not kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.agent.token_classes import Piece, TokenClass
from paddler_trio.agent.tool_formats import Arguments, Remainder, WrittenCall, read_calls
from paddler_trio.agent.tool_schemas import ToolSchema, ToolSchemaError

MAX_SECTION_CHARS = 256 * 1024
_MAX_NAME_CHARS = 200


@attrs.frozen
class ParsedCall:
    """A call that may be run; ``arguments`` is raw text only for tools without a schema."""

    id: str
    name: str
    arguments: Arguments


@attrs.frozen
class Parsed:
    """The good calls of a section, at least one, in order."""

    calls: tuple[ParsedCall, ...]


@attrs.frozen
class ValidationFailed:
    """What is wrong with the other calls; every message names its tool."""

    messages: tuple[str, ...]


@attrs.frozen
class Unrecognized:
    """Text of a section that is no tool call in a known format."""

    text: str
    message: str


@attrs.frozen
class ParseFailed:
    """The section could not be read at all."""

    message: str


ToolCallOutcome: TypeAlias = Parsed | ValidationFailed | Unrecognized | ParseFailed


class ToolCallReader:
    """Reads the tool calls of one answer."""

    def __init__(
        self,
        tools: Sequence[Mapping[str, object]],
        *,
        new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
        max_section_chars: int = MAX_SECTION_CHARS,
    ) -> None:
        """Prepare for calls to ``tools``, each ``{"type": "function", "function": {...}}``.

        Raises:
          ToolSchemaError: a tool without a name, a name twice, or a schema that is none.
        """
        self._schemas: dict[str, Mapping[str, object]] = {}
        self._judges: dict[str, ToolSchema | None] = {}
        for tool in tools:
            name, schema = _name_and_schema(tool)
            if name in self._judges:
                raise ToolSchemaError(name, "there are two tools of this name")
            self._schemas[name] = schema or {}
            self._judges[name] = None if schema is None else ToolSchema(name, schema)
        self._new_id = new_id
        self._max_section_chars = max_section_chars
        self._text: list[str] = []
        self._section_chars = 0
        self._section: int | None = None

    def feed(self, text: str) -> None:
        """More text of the section that is open; past the limit it is counted, not kept."""
        self._section_chars += len(text)
        if self._section_chars <= self._max_section_chars:
            self._text.append(text)

    def feed_piece(self, piece: Piece) -> list[ToolCallOutcome]:
        """Any piece of the answer, in order: collects calls, answers for a section that ended."""
        outcomes: list[ToolCallOutcome] = []
        if piece.section != self._section:
            outcomes = self.close_section()
            self._section = piece.section
        if piece.token_class is TokenClass.TOOL_CALL:
            self.feed(piece.text)
        return outcomes

    def close_section(self) -> list[ToolCallOutcome]:
        """End the section and judge it; nothing if there was none, or only blanks in it.

        Returns:
          At most one outcome of each kind: the good calls, then what was wrong with others, then
          text that is no call.
        """
        section, self._text = "".join(self._text), []
        section_chars, self._section_chars = self._section_chars, 0
        if section_chars > self._max_section_chars:
            limit = self._max_section_chars
            return [ParseFailed(f"tool call of {section_chars} characters, the limit is {limit}")]
        try:
            written = read_calls(section, self._schemas)
        except RecursionError:
            return [ParseFailed("tool call is nested too deeply")]
        good: list[ParsedCall] = []
        findings: list[str] = []
        unread: list[ToolCallOutcome] = []
        for call in written:
            match call:
                case Remainder(text=text, message=message):
                    unread.append(Unrecognized(text, message))
                case WrittenCall(name=name, arguments=arguments):
                    if wrong := self._findings(call):
                        findings.extend(wrong)
                    else:
                        good.append(ParsedCall(self._new_id(), name, arguments))
        outcomes: list[ToolCallOutcome] = []
        if good:
            outcomes.append(Parsed(tuple(good)))
        if findings:
            outcomes.append(ValidationFailed(tuple(findings)))
        return outcomes + unread

    def _findings(self, call: WrittenCall) -> list[str]:
        if call.name not in self._judges:
            return [f"tool {call.name[:_MAX_NAME_CHARS]!r}: there is no tool of this name"]
        judge = self._judges[call.name]
        if judge is None:
            return []
        if isinstance(call.arguments, str):
            return [f"tool {call.name!r}: the arguments are not a JSON object"]
        return judge.findings(call.arguments)


def _name_and_schema(tool: Mapping[str, object]) -> tuple[str, Mapping[str, object] | None]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise ToolSchemaError(str(tool.get("type")), "only tools of type 'function' are supported")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ToolSchemaError(str(name), "function.name has to be a text that is not empty")
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, Mapping):
        raise ToolSchemaError(name, "function.parameters has to be a JSON object")
    return name, schema
