"""The text of tool call sections becomes calls that may be run.

A reader belongs to one answer. It reads a section while it is written: a call's name and the text
of its arguments are passed on as deltas as soon as they are certain. When the section ends, every
call in it is validated alone: a call to an unknown tool or with arguments that its schema forbids
is reported, and its siblings still arrive. Ids are random unless the model's own are kept, and
different for every call of an answer. Sections are bounded; a longer one is reported, not kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.language.answers.automaton import Piece, TokenClass
from paddler_trio.language.answers.call_events import (
    Arguments,
    ArgumentsGrew,
    CallBegun,
    ReadEvent,
    Remainder,
    TooDeepError,
    WrittenCall,
)
from paddler_trio.language.answers.call_syntax import CallSyntax
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.read_section import SectionReader
from paddler_trio.language.tool_schemas import ToolSchema, ToolSchemaError

MAX_SECTION_CHARS = 256 * 1024
_MAX_NAME_CHARS = 200
_MAX_ID_CHARS = 200
_ID_CHARS = 24


@attrs.frozen
class ToolCallDelta:
    """A delta is what became known of the call number ``index`` of the answer.

    Its first delta has ``id`` and ``name``, which are None in the others; ``arguments`` is the next
    piece of their JSON text.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@attrs.frozen
class ParsedCall:
    """A call; ``arguments`` is raw text for tools without a schema, or if it is no JSON object."""

    id: str
    name: str
    arguments: Arguments


@attrs.frozen
class Parsed:
    """The good calls of a section, at least one, in order."""

    calls: tuple[ParsedCall, ...]


@attrs.frozen
class ValidationFailed:
    """Other calls are wrong; every message names its tool."""

    messages: tuple[str, ...]


@attrs.frozen
class ParseFailed:
    """The section could not be read at all."""

    message: str


ToolCallOutcome: TypeAlias = Parsed | ValidationFailed | Remainder | ParseFailed
"""What became of a section, or of a part of it; a remainder may be a call that broke off."""


@attrs.define
class CallIds:
    """Makes ids in the manner of OpenAI's, or of ``length`` characters; equal for equal seeds."""

    seed: int = attrs.field(factory=lambda: secrets.randbits(64))
    length: int | None = None
    _count: int = attrs.field(default=0, init=False)

    def __call__(self) -> str:
        digest = hashlib.sha256(f"{self.seed}/{self._count}".encode()).hexdigest()
        self._count += 1
        return f"call_{digest[:_ID_CHARS]}" if self.length is None else digest[: self.length]


class ToolSet:
    """Tools checked once, for any number of answers that one thread reads."""

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        """Check ``tools``, each ``{"type": "function", "function": {...}}``.

        Raises:
          ToolSchemaError: a tool without a name, a name twice, or a schema that is none.
        """
        self.schemas: dict[str, Mapping[str, object]] = {}
        self.validators: dict[str, ToolSchema | None] = {}
        for tool in tools:
            name, schema = _name_and_schema(tool)
            if name in self.validators:
                raise ToolSchemaError(name, "there are two tools of this name")
            self.schemas[name] = schema or {}
            self.validators[name] = None if schema is None else ToolSchema(name, schema)

    def __bool__(self) -> bool:
        return bool(self.validators)


def _tool_set(tools: Sequence[Mapping[str, object]] | ToolSet) -> ToolSet:
    return tools if isinstance(tools, ToolSet) else ToolSet(tools)


_State: TypeAlias = "tuple[dict[str, object], tuple[str, str | None] | None]"
"""Of a reader on its way: everything else, then the text and the recipient of its section."""


@attrs.define(slots=False, eq=False)
class ToolCallReader:
    """Reads the tool calls of one answer.

    Args:
      tools: those that may be called; ToolSchemaError if one is not usable.
      new_id: makes ids; random ones by default.
      syntax: how the model's family writes calls; decides only what is ambiguous otherwise.
      section_end: what closes a section of calls.
      keeps_model_ids: take ids that the model wrote, where it wrote any.
      accepts_any_tool: calls to tools that are not among ``tools`` are good.
    """

    _tools: ToolSet = attrs.field(converter=_tool_set)
    _new_id: Callable[[], str] = attrs.field(factory=CallIds, kw_only=True)
    _max_section_chars: int = attrs.field(default=MAX_SECTION_CHARS, kw_only=True)
    _syntax: CallSyntax | None = attrs.field(default=None, kw_only=True)
    _section_end: str = attrs.field(default="", kw_only=True)
    _keeps_model_ids: bool = attrs.field(default=False, kw_only=True)
    _accepts_any_tool: bool = attrs.field(default=False, kw_only=True)
    complete: set[int] = attrs.field(factory=set, init=False)
    """The indexes of the calls that were written to their end, good or not."""
    _ids: set[str] = attrs.field(factory=set, init=False)
    _n_begun: int = attrs.field(default=0, init=False)
    _deltas: list[ToolCallDelta] = attrs.field(factory=list, init=False)
    _section: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._open_section()

    def _open_section(self) -> None:
        self._section_chars = 0
        self._reader: SectionReader | None = None
        self._failure: str | None = None
        self._call_id: str | None = None
        self._good: list[ParsedCall] = []
        self._findings_of_section: list[str] = []
        self._unread: list[ToolCallOutcome] = []

    def __getstate__(self) -> _State:
        """A section that is being read travels as its text: what reads it is a generator."""
        reader = self._reader if self._failure is None else None
        read = None if reader is None else (reader.text, reader.recipient)
        return {**self.__dict__, "_reader": None}, read

    def __setstate__(self, state: _State) -> None:
        others, read = state
        self.__dict__.update(others)
        if read is not None:
            text, recipient = read
            self._reader = self._reader_of_section(recipient)
            self._reader.catch_up(text)

    def _reader_of_section(self, recipient: str | None) -> SectionReader:
        return SectionReader(
            self._take,
            self._tools.schemas,
            syntax=self._syntax,
            recipient=recipient,
            section_end=self._section_end,
        )

    def feed(self, text: str, recipient: str | None = None) -> None:
        """More text of the section that is open; past the limit it is counted, not read.

        ``recipient`` is the tool that the section's marker named.
        """
        self._section_chars += len(text)
        if self._section_chars > self._max_section_chars or self._failure is not None:
            return
        if self._reader is None:
            self._reader = self._reader_of_section(recipient)
        try:
            self._reader.feed(text)
        except (TooDeepError, RecursionError):
            self._failure = "tool call is nested too deeply"

    def feed_piece(self, piece: Piece) -> list[ToolCallOutcome]:
        """Any piece of the answer, in order: collects calls, answers for a section that ended."""
        outcomes: list[ToolCallOutcome] = []
        if piece.section != self._section:
            outcomes = self.close_section()
            self._section = piece.section
        if piece.token_class is TokenClass.TOOL_CALL:
            self.feed(piece.text, piece.recipient)
        return outcomes

    def take_deltas(self) -> list[ToolCallDelta]:
        """Return what became known since the last time, in order."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def close_section(self, *, is_cut_off: bool = False) -> list[ToolCallOutcome]:
        """End the section and validate it; nothing if there was none, or only blanks in it.

        Args:
          is_cut_off: the answer ended before the model ended it, so that a call that may go on
            is none.

        Returns:
          At most one outcome of each kind: the good calls, then what was wrong with others, then
          text that is no call.
        """
        try:
            if self._section_chars > self._max_section_chars:
                limit = self._max_section_chars
                message = f"tool call of {self._section_chars} characters, the limit is {limit}"
                return [ParseFailed(message)]
            if self._reader is not None and self._failure is None:
                try:
                    self._reader.end(is_cut_off=is_cut_off)
                except (TooDeepError, RecursionError):
                    self._failure = "tool call is nested too deeply"
            if self._failure is not None:
                return [ParseFailed(self._failure)]
            outcomes: list[ToolCallOutcome] = []
            if self._good:
                outcomes.append(Parsed(tuple(self._good)))
            if self._findings_of_section:
                outcomes.append(ValidationFailed(tuple(self._findings_of_section)))
            return outcomes + self._unread
        finally:
            self._open_section()

    def _take(self, event: ReadEvent) -> None:
        match event:
            case CallBegun(name=name, id=model_id):
                self._call_id = self._id_for(model_id)
                self._deltas.append(ToolCallDelta(self._n_begun, self._call_id, name, ""))
                self._n_begun += 1
            case ArgumentsGrew(text=text):
                self._deltas.append(ToolCallDelta(self._n_begun - 1, None, None, text))
            case WrittenCall(name=name, arguments=arguments):
                assert self._call_id is not None
                self.complete.add(self._n_begun - 1)
                if wrong := self._findings(event):
                    self._findings_of_section.extend(wrong)
                else:
                    self._good.append(ParsedCall(self._call_id, name, arguments))
            case Remainder():
                self._unread.append(event)

    def _id_for(self, model_id: str | None) -> str:
        call_id = model_id if self._keeps_model_ids else None
        if not call_id or call_id in self._ids or len(call_id) > _MAX_ID_CHARS:
            call_id = self._new_id()
        self._ids.add(call_id)
        return call_id

    def _findings(self, call: WrittenCall) -> list[str]:
        if call.name not in self._tools.validators:
            if self._accepts_any_tool:
                return []
            return [f"tool {call.name[:_MAX_NAME_CHARS]!r}: there is no tool of this name"]
        validator = self._tools.validators[call.name]
        if validator is None:
            return []
        if isinstance(call.arguments, str):
            return [f"tool {call.name!r}: the arguments are not a JSON object"]
        return validator.findings(call.arguments)


def reader_of_calls(
    form: ModelFormat,
    tools: Sequence[Mapping[str, object]] | ToolSet,
    *,
    seed: int | None = None,
    accepts_any_tool: bool = False,
) -> ToolCallReader:
    """A reader for one answer in this format, which keeps the ids that the model writes.

    Args:
      seed: of the ids of other calls; None for random ones.

    Raises:
      ToolSchemaError: one of the tools is not usable.
    """
    calls = form.calls
    length = None if calls is None else calls.id_chars
    return ToolCallReader(
        tools,
        new_id=CallIds(length=length) if seed is None else CallIds(seed, length),
        syntax=None if calls is None else calls.syntax,
        section_end="" if calls is None else calls.closer,
        keeps_model_ids=True,
        accepts_any_tool=accepts_any_tool,
    )


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
