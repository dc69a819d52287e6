"""Everything in a section of tool calls, whatever syntax they are in.

The syntax follows from how a call begins. So a model that slips into another family's way of
writing is understood too; the syntax of its own family only decides what is ambiguous otherwise.
"""

from __future__ import annotations

import re

from paddler_trio.language.answers import call_syntax as known
from paddler_trio.language.answers.call_events import (
    Emit,
    NotACallError,
    ReadEvent,
    Remainder,
    TooDeepError,
    ToolSchemas,
    WrittenCall,
)
from paddler_trio.language.answers.call_syntax import (
    CallSyntax,
    JsonCalls,
    NamedJson,
    NestedTags,
    PythonCalls,
    QuotedObjects,
    TaggedCalls,
    start_of,
)
from paddler_trio.language.answers.known_slips import strays_of
from paddler_trio.language.answers.read_json import read_json_call, read_json_list
from paddler_trio.language.answers.read_loose import (
    CODE_TOOLS,
    code_tool_of,
    is_code,
    read_code_call,
    read_python_call,
    read_python_list,
    read_quoted_object,
)
from paddler_trio.language.answers.read_named import read_arguments, read_named_call
from paddler_trio.language.answers.read_nested import read_nested_call
from paddler_trio.language.answers.read_tagged import read_tagged_call
from paddler_trio.language.answers.text_source import MAX_NAME_CHARS, Reading, Source, stops_of

_BETWEEN = (
    "<tool_call>",
    "</tool_call>",
    "<function_calls>",
    "</function_calls>",
    "<atem:function_calls>",
    "</atem:function_calls>",
    "<｜tool_call_begin｜>",  # noqa: RUF001 - as Step writes it
    "<｜tool_call_begin｜>function<｜tool_sep｜>",  # noqa: RUF001
    "<｜tool_sep｜>",  # noqa: RUF001
    "<｜tool_call_end｜>",  # noqa: RUF001
    "]<]minimax[>[</tool_call>",
    "```json",
    "```python",
    "```",
)
_WORD = re.compile(r"[\w.:/-]+")
_NOTHING = re.compile(r"\[?\s*\]?")  # an empty list calls nothing
MAX_LOST_CALLS = 16
_NO_FORMAT = "no known format of tool calls"


class SectionReader:
    """Reads one section, fed in pieces; what it finds goes to ``emit`` as soon as it is certain."""

    def __init__(
        self,
        emit: Emit,
        schemas: ToolSchemas,
        *,
        syntax: CallSyntax | None = None,
        recipient: str | None = None,
        section_end: str = "",
    ) -> None:
        """Begin a section.

        Args:
          recipient: the tool that the section's marker named; the section is its arguments.
          section_end: what closes the section; it may stand at its end where a value was not ended.
        """
        self.recipient = recipient
        self._sink = emit
        self._has_found = False
        self._schemas = schemas
        self._syntax = syntax
        self._section_end = section_end
        self._between = (*_BETWEEN, *strays_of(syntax))
        self._starters = _starters_of(syntax)
        self._source = Source()
        self._text: list[str] = []
        self._lost_at: int | None = None
        self._num_lost = 0
        self._is_behind_json = recipient is not None  # where brackets may have been closed twice
        self._message = _NO_FORMAT
        reading = self._read_all() if recipient is None else self._read_addressed(recipient)
        self._reading: Reading[None] | None = reading

    def feed(self, text: str) -> None:
        """More of the section.

        Raises:
          TooDeepError, RecursionError: nested too deeply; nothing more is read.
        """
        self._text.append(text)
        if self._reading is not None:
            self._source.feed(text)
            self._resume()

    @property
    def text(self) -> str:
        """All of the section so far."""
        return "".join(self._text)

    def catch_up(self, text: str) -> None:
        """Read again what another reader of this section has read; nothing of it is emitted."""
        sink, self._sink = self._sink, _ignore
        self.feed(text)
        self._sink = sink

    def end(self, *, is_cut_off: bool = False) -> None:
        """No more will come, because the section is complete or cut off; raises as ``feed``."""
        self._source.ended = True
        self._source.is_cut_off = is_cut_off
        if self._reading is not None:
            self._resume()
        rest = self.text[self._lost_at or 0 :].strip()
        rest = rest.lstrip(",; ") if self._has_found else rest
        is_lost = self._lost_at is not None and bool(rest)
        if is_lost or not (self._has_found or _NOTHING.fullmatch(rest)):
            self._emit(Remainder(rest, self._message, is_last=True))

    def _emit(self, event: ReadEvent) -> None:
        self._has_found = True
        if self._lost_at is not None and isinstance(event, WrittenCall | Remainder):
            self._lost_at = self._source.taken  # in a list, the next one may be lost
        self._sink(event)

    def _resume(self) -> None:
        while self._reading is not None:
            try:
                next(self._reading)
            except StopIteration:
                self._reading = None
            except NotACallError as error:
                self._message = str(error)
                self._reading = self._read_behind_lost()
            except (TooDeepError, RecursionError):
                self._reading = None
                self._lost_at = None
                raise
            else:
                return

    def _read_behind_lost(self) -> Reading[None]:
        """Go on with the next call that begins as this family's do; without one all is lost."""
        start = start_of(self._syntax)
        ended = self._source
        self._num_lost += 1
        if not start or self._lost_at is None or self._num_lost > MAX_LOST_CALLS:
            return
        if ended.ended and ended.is_cut_off:  # inside a value, which may speak about calls
            return
        rest = self.text[self._lost_at :]
        source = self._source = Source(rest, ended=ended.ended, taken=self._lost_at)
        yield from source.peek()
        lost = [source.take(1)]  # the same call again would be lost again
        if (yield from source.take_until(stops_of(start), lost.append)) is None:
            return
        source.give_back(len(start))
        self._emit(Remainder("".join(lost).strip(), self._message))
        self._lost_at = None
        yield from self._read_all()

    def _read_addressed(self, recipient: str) -> Reading[None]:
        self._lost_at = 0
        following = yield from self._source.skip_blank()
        is_known = recipient in self._schemas
        if is_known and recipient in CODE_TOOLS and following not in ("", "{"):
            yield from read_code_call(self._source, recipient, self._schemas, self._emit)
        else:
            yield from read_arguments(
                self._source, recipient, None, self._emit, takes_text=is_known
            )
        self._lost_at = None
        yield from self._read_all()

    def _read_all(self) -> Reading[None]:
        source = self._source
        syntax = self._syntax
        code_tool = syntax.code_tool if isinstance(syntax, JsonCalls | NamedJson) else ""
        if code_tool and (yield from is_code(source, self._schemas)):
            self._lost_at = source.taken
            name = code_tool_of(self._schemas, code_tool)
            yield from read_code_call(source, name, self._schemas, self._emit)
            self._lost_at = None
            return
        while True:
            char = yield from source.skip_blank()
            if char == "":
                return
            if char in ",;:" or (char in "}]" and self._is_behind_json):
                source.take(1)
                continue
            self._is_behind_json = False
            between = yield from source.starts_with(*self._between)
            starter = yield from source.starts_with(*self._starters)
            if between is not None and len(between) > len(starter or ""):
                source.take(len(between))
                continue
            self._lost_at = source.taken
            yield from self._read_call(char, starter)
            self._lost_at = None

    def _read_call(self, char: str, starter: str | None) -> Reading[None]:
        source, emit = self._source, self._emit
        if starter is None:
            if _WORD.match(char) is None:
                raise NotACallError(_NO_FORMAT)
            yield from self._read_word_first()
            return
        json_syntax = self._syntax if isinstance(self._syntax, JsonCalls) else JsonCalls()
        if starter == "{":
            yield from read_json_call(source, json_syntax, emit)
            self._is_behind_json = True
            return
        source.take(len(starter))
        if starter == "[":
            following = yield from source.skip_blank()
            if following in ("{", "]", "") or not following.isalpha():
                yield from read_json_list(source, json_syntax, emit)
                self._is_behind_json = True
            else:
                yield from read_python_list(source, emit)
            return
        match self._starters[starter]:
            case TaggedCalls() as syntax:
                if syntax == known.QWEN_CODER and (yield from self._is_json_after_name()):
                    yield from read_named_call(source, known.FUNCTION_JSON, emit)
                elif (yield from source.skip_blank()) == "{":
                    yield from read_json_call(source, json_syntax, emit)
                    yield from source.skip_blank()
                    yield from source.take_text(syntax.call_end)
                else:
                    yield from self._read_tagged(syntax)
            case NamedJson() as syntax:
                yield from read_named_call(source, syntax, emit, schemas=self._schemas)
                self._is_behind_json = True
            case NestedTags() as syntax:
                yield from read_nested_call(source, syntax, self._schemas, emit)
            case QuotedObjects() as syntax:
                yield from read_quoted_object(source, syntax, self._schemas, emit)
            case JsonCalls() | PythonCalls():
                raise NotACallError(_NO_FORMAT)

    def _read_tagged(self, syntax: TaggedCalls, name: str | None = None) -> Reading[None]:
        yield from read_tagged_call(
            self._source, syntax, self._schemas, self._emit, name, section_end=self._section_end
        )

    def _is_json_after_name(self) -> Reading[bool]:
        """``<function=f>{...}`` and ``<function=f><parameter=...>`` begin alike."""
        source = self._source
        while True:
            there = source.rest[: MAX_NAME_CHARS + 8]
            _name, mark, after = there.partition(">")
            after = after.lstrip()
            if mark and after:
                return after.startswith("{")
            if source.ended or len(there) > MAX_NAME_CHARS:
                return False
            yield

    def _read_word_first(self) -> Reading[None]:
        """A call that begins with its name; what follows the name decides on its syntax."""
        source = self._source
        parts: list[str] = []
        while text := source.take_match(_WORD):
            parts.append(text)
            yield from source.peek()
        name = "".join(parts)
        if len(name) > MAX_NAME_CHARS:
            raise NotACallError(_NO_FORMAT)
        following = yield from source.starts_with("[ARGS]", "[CALL_ID]", "(")
        if following == "(":
            source.take(1)
            yield from read_python_call(source, name, self._emit)
            return
        if following is not None:
            yield from read_named_call(source, known.MISTRAL_WITH_ID, self._emit, name)
            return
        char = yield from source.skip_blank()
        start = start_of(self._syntax)
        if start and (yield from source.starts_with(start + name)) is not None:
            return  # the call repeats its name
        tagged = self._tags_after_name()
        if (yield from source.starts_with(tagged.before_key)) is not None or (
            char == "" and self._takes_bare_name(name)
        ):
            yield from self._read_tagged(tagged, name)
            return
        is_known = char == "" and name in self._schemas and not source.is_cut_off
        is_whole = is_known and isinstance(self._syntax, NamedJson) and not start
        if char == "{" or is_whole or (yield from source.starts_with("```")) is not None:
            yield from read_arguments(source, name, None, self._emit)
            yield from source.skip_blank()
            yield from source.take_text("```")
            return
        raise NotACallError(_NO_FORMAT)

    def _tags_after_name(self) -> TaggedCalls:
        """The syntax of calls that begin with their name and go on with tags."""
        syntax = self._syntax
        if isinstance(syntax, TaggedCalls) and not syntax.before_name:
            return syntax
        return known.GLM

    def _takes_bare_name(self, name: str) -> bool:
        """Return whether a name alone is a call without arguments here."""
        is_such = self._syntax == self._tags_after_name()
        return is_such and (name in self._schemas or not self._source.is_cut_off)


def _ignore(_event: ReadEvent) -> None:
    pass


def _starters_of(syntax: CallSyntax | None) -> dict[str, CallSyntax]:
    starters: dict[str, CallSyntax] = {"{": known.HERMES, "[": known.HERMES}
    for shared in known.READ_ANYWHERE:
        starters[shared.before_name] = shared
    starters[start_of(known.MINIMAX_M3)] = known.MINIMAX_M3
    starters["call:"] = QuotedObjects()
    if isinstance(syntax, TaggedCalls | NamedJson | QuotedObjects) and syntax.before_name:
        starters[syntax.before_name] = syntax
    return starters
