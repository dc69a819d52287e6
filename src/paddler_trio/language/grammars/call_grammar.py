"""Grammars for tool calls, in the syntax that a model was trained to write them in.

The syntaxes are those of ``answers/call_syntax.py``, which the readers use too: what is written
here can be read there. A grammar has the names of the tools and the schemas of their arguments,
so a call to an unknown tool or with arguments of another shape cannot be written.

No string in a call may contain the text that ends the section, since readers end it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.language.answers.call_syntax import (
    JsonCalls,
    NamedJson,
    NestedTags,
    PythonCalls,
    QuotedObjects,
    TaggedCalls,
)
from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.grammars.finite_automaton import intersection, texts_but, write
from paddler_trio.language.grammars.gbnf_writer import GrammarError, GrammarWriter, joined, literal
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, Schema, SchemaError
from paddler_trio.language.grammars.schema_writer import SchemaWriter
from paddler_trio.language.grammars.string_schemas import bare_text
from paddler_trio.language.grammars.tagged_calls import BARE_KEYS, PYTHON, TaggedArguments

MAX_CALLS = 64
_ID = "[A-Za-z0-9] [A-Za-z0-9_-]{0,31}"


@attrs.frozen
class Tool:
    """A function that may be called; ``parameters`` None takes any arguments.

    ``is_strict``: arguments are bound to the whole schema, or the tool is refused.
    """

    name: str
    parameters: object = None
    is_strict: bool = False

    @property
    def schema(self) -> object:
        return {} if self.parameters is None else self.parameters


@attrs.frozen(kw_only=True)
class CallPlace:
    """Where calls stand.

    Args:
      form: how the model writes them.
      avoided: texts that no string in a call may contain, because readers end the section there.
      prompted: the beginning of the opener, if the prompt ends with it.
      ends_turn: the closer ends the answer, so it is no text that a grammar could ask for.
    """

    form: CallFormat
    avoided: tuple[str, ...] = ()
    prompted: str = ""
    ends_turn: bool = False


def write_calls(
    place: CallPlace, tools: Sequence[Tool], writer: GrammarWriter, *, most: int, is_lenient: bool
) -> str:
    """The rule for one to ``most`` calls.

    Args:
      tools: at least one.
      is_lenient: a strict tool takes any arguments, too, if no grammar can express its schema; they
        are judged when they are read. If not, it is refused.

    Raises:
      GrammarError: it grows too large, or names the tool, the place and the keyword.
    """
    form = place.form
    tools = [attrs.evolve(tool, is_strict=tool.is_strict and not is_lenient) for tool in tools]
    calls = [_call(place, tool, writer) for tool in tools]
    most = 1 if place.ends_turn else most
    opening = form.opener[: len(form.opener) - form.kept]
    closing = "" if place.ends_turn else form.closer
    between = form.between
    line = ""
    match form.syntax:
        case JsonCalls(in_list=True) as syntax:
            opening += syntax.before
            closing = syntax.after + closing
            between = between or ", "
        case PythonCalls(in_list=True):
            opening, closing, between = f"{opening}[", f"]{closing}", between or ", "
        case JsonCalls() as syntax:
            opening, closing = opening + syntax.before, syntax.after + closing
        case TaggedCalls(blank=blank) if blank:
            line = '"\\n"?'
        case _:
            pass
    if form.in_header:
        # The tool's name is in the middle of the opener, so every call brings its own.
        opening = ""
    one = writer.rule(" | ".join(dict.fromkeys(calls)), "call")
    start, end = joined(literal(opening), line), joined(line, literal(closing))
    first_start = joined(literal(opening.removeprefix(place.prompted)), line)
    if not (form.one_a_section or form.in_header):
        return writer.rule(
            joined(first_start, _several(one, one, between, most, writer), end), "calls"
        )
    section = writer.rule(joined(start, one, end), "section")
    first = section
    if place.prompted and form.in_header:
        prompted = [_call(place, tool, writer, is_first=True) for tool in tools]
        first = writer.rule(joined(writer.rule(" | ".join(prompted), "call"), end), "section")
    elif place.prompted:
        first = writer.rule(joined(first_start, one, end), "section")
    return writer.rule(_several(first, section, between, most, writer), "calls")


def _several(first: str, other: str, between: str, most: int, writer: GrammarWriter) -> str:
    if most == 1:
        return first
    following = writer.rule(joined(literal(between), other), "next")
    return f"{first} {writer.counted(following, 0, most - 1)}"


def _call(place: CallPlace, tool: Tool, writer: GrammarWriter, *, is_first: bool = False) -> str:
    form = place.form
    if not tool.name:
        raise GrammarError("a tool has no name")
    header = ""
    if form.in_header:
        opener = form.opener.removeprefix(place.prompted) if is_first else form.opener
        header = literal(f"{opener}{tool.name}{form.after_header_name}")
    try:
        return joined(header, _exact_call(place, tool, writer))
    except NothingMatchesError as error:
        raise GrammarError(f"tool {tool.name!r}: {error}") from error
    except SchemaError as error:
        if tool.is_strict:
            raise GrammarError(f"tool {tool.name!r}: {error}") from error
    return joined(header, _exact_call(place, attrs.evolve(tool, parameters=None), writer))


def _exact_call(place: CallPlace, tool: Tool, writer: GrammarWriter) -> str:
    syntax = place.form.syntax
    is_lenient = not tool.is_strict
    schemas = SchemaWriter(writer, tool.schema, avoided=place.avoided, is_lenient=is_lenient)
    match syntax:
        case NamedJson(header_names=True):
            return _json_arguments(tool, schemas)
        case JsonCalls():
            return _json_call(syntax, place, tool, schemas)
        case NamedJson():
            return _named_call(syntax, place, tool, schemas)
        case TaggedCalls() | NestedTags():
            tags = _tags_of(syntax) if isinstance(syntax, NestedTags) else syntax
            return joined(
                literal(f"{tags.before_name}{tool.name}{tags.name_end}{tags.head_end}"),
                TaggedArguments(tags, tool.schema, place.avoided, writer).written(),
                literal(tags.call_end),
            )
        case PythonCalls():
            words = ("True", "False", "None")
            arguments = TaggedArguments(PYTHON, tool.schema, place.avoided, writer, words).written()
            return joined(literal(f"{tool.name}{syntax.after_name}("), arguments, '")"')
        case QuotedObjects():
            quoted = QuotedWriter(
                writer, tool.schema, place.avoided, syntax.quote, is_lenient=is_lenient
            )
            return joined(
                literal(f"{syntax.before_name}{tool.name}"), _json_arguments(tool, quoted)
            )


def _tags_of(syntax: NestedTags) -> TaggedCalls:
    """Tags of which the key is one; objects and lists inside are written as JSON."""
    return TaggedCalls(
        before_name=f'{syntax.mark}<invoke name="',
        name_end='"',
        head_end=">",
        before_key=f"{syntax.mark}<",
        key_end=">",
        value_end=f"{syntax.mark}</",
        call_end=f"{syntax.mark}</invoke>",
        blank="",
    )


def _json_arguments(tool: Tool, schemas: SchemaWriter) -> str:
    schema = tool.schema
    if isinstance(schema, Mapping) and schema.get("type") == "object":
        return schemas.value(schema, "$")
    return schemas.value({"allOf": [{"type": "object"}, schema]}, "$")


def _json_call(syntax: JsonCalls, place: CallPlace, tool: Tool, schemas: SchemaWriter) -> str:
    def pair(key: str, value: str) -> str:
        return f'{schemas.quoted(key)} ":" {schemas.blanks} {value}'

    arguments = _json_arguments(tool, schemas)
    if syntax.name_is_key:
        return schemas.bracketed("{", [pair(tool.name, arguments)], "}")
    pairs = [
        pair(syntax.name_key, schemas.quoted(tool.name)),
        pair(syntax.arguments_key, arguments),
    ]
    if syntax.id_key is not None:
        own_id = pair(syntax.id_key, f'"\\"" {_id(place)} "\\""')
        pairs.insert(0 if syntax.id_comes_first else 2, own_id)
    return schemas.bracketed("{", pairs, "}")


def _named_call(syntax: NamedJson, place: CallPlace, tool: Tool, schemas: SchemaWriter) -> str:
    parts = [literal(syntax.before_name)]
    if syntax.id_mark and syntax.id_comes_first:
        parts += [_id(place), literal(syntax.id_mark)]
    parts.append(literal(syntax.name_prefix + tool.name))
    if syntax.index_mark:
        parts += [literal(syntax.index_mark), '("0" | [1-9] [0-9]{0,2})']
    if syntax.id_mark and not syntax.id_comes_first:
        parts += [literal(syntax.id_mark), _id(place)]
    parts += [literal(syntax.after_name), _json_arguments(tool, schemas)]
    return joined(*parts, literal(syntax.after_arguments))


def _id(place: CallPlace) -> str:
    count = place.form.id_chars
    return _ID if count is None else f"[A-Za-z0-9]{{{count}}}"


class QuotedWriter(SchemaWriter):
    """JSON values as Gemma writes them: bare keys, texts in a quote token, nothing escaped."""

    def __init__(
        self,
        writer: GrammarWriter,
        document: object,
        avoided: Sequence[str],
        quote: str,
        *,
        is_lenient: bool = False,
    ) -> None:
        """``quote``: the token that quotes texts; no text can contain it."""
        super().__init__(writer, document, avoided=(*avoided, quote), is_lenient=is_lenient)
        self._quote = quote
        self.blanks = '""'

    def text(self, rules: Schema, path: str) -> str:
        """The rule for a string; SchemaError."""
        quote = literal(self._quote)
        return self.grammar.rule(f"{quote} {bare_text(rules, path, self)} {quote}", "string")

    def key(self, name: str) -> str:
        """GBNF for a key; SchemaError if it cannot be written without quotes."""
        if not BARE_KEYS.accepts(name):
            raise SchemaError("$", f"properties: {name!r} cannot be a key in this model's calls")
        return literal(name)

    def any_key(self, names: list[str]) -> str:
        """The rule for a key that is none of ``names``."""
        automaton = BARE_KEYS
        if names:
            automaton = intersection(BARE_KEYS, texts_but(names), self.grammar.work)
        return write(automaton, self.grammar, in_json=False, hint="key")

    def quoted(self, value: object) -> str:
        """GBNF for a text or a number."""
        if not isinstance(value, str):
            return super().quoted(value)
        if any(text in value for text in self.avoided):
            raise SchemaError("$", f"enum: {value!r} cannot be written in this model's calls")
        return literal(f"{self._quote}{value}{self._quote}")
