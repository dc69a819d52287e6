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
from paddler_trio.language.grammars.lark import (
    GrammarError,
    LarkWriter,
    either,
    joined,
    literal,
    regex,
)
from paddler_trio.language.grammars.notation import Notation
from paddler_trio.language.grammars.prepared_schema import Prepared, Rules
from paddler_trio.language.grammars.schema_merging import NothingMatchesError, SchemaError
from paddler_trio.language.grammars.schema_preparation import SchemaPreparation
from paddler_trio.language.grammars.tagged_calls import PYTHON, TaggedArguments
from paddler_trio.wire.json_schema import TOOL_SCHEMA, lawful_schema

MAX_CALLS = 64
_ID = "[A-Za-z0-9][A-Za-z0-9_\\-]{0,31}"


@attrs.frozen
class Tool:
    """A function that may be called; ``parameters`` None takes any arguments.

    ``is_strict``: arguments are bound to the whole schema, or the tool is refused.
    """

    name: str
    parameters: object = None
    is_strict: bool = False

    @classmethod
    def of(cls, function: Mapping[str, object]) -> Tool:
        """Return the tool that a request describes like this."""
        parameters = function.get("parameters")
        is_strict = function.get("strict") is True
        if isinstance(parameters, Mapping):
            is_strict = is_strict or parameters.get("strict") is True
            parameters = lawful_schema(parameters).schema
        return cls(str(function.get("name", "")), parameters, is_strict)

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
    place: CallPlace, tools: Sequence[Tool], writer: LarkWriter, *, most: int, is_lenient: bool
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
    one = writer.rule(" | ".join(dict.fromkeys(calls)))
    start, end = joined(literal(opening), line), joined(line, literal(closing))
    first_start = joined(literal(opening.removeprefix(place.prompted)), line)
    if not (form.one_a_section or form.in_header):
        return writer.rule(joined(first_start, _several(one, one, between, most), end))
    section = writer.rule(joined(start, one, end))
    first = section
    if place.prompted and form.in_header:
        prompted = [_call(place, tool, writer, is_first=True) for tool in tools]
        first = writer.rule(joined(either(prompted), end))
    elif place.prompted:
        first = writer.rule(joined(first_start, one, end))
    return writer.rule(_several(first, section, between, most))


def _several(first: str, other: str, between: str, most: int) -> str:
    if most == 1:
        return first
    return f"{first} ({joined(literal(between) if between else '', other)}){{0,{most - 1}}}"


def _call(place: CallPlace, tool: Tool, writer: LarkWriter, *, is_first: bool = False) -> str:
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
    writer.work.unbound.setdefault(TOOL_SCHEMA)
    return joined(header, _exact_call(place, attrs.evolve(tool, parameters=None), writer))


def _exact_call(place: CallPlace, tool: Tool, writer: LarkWriter) -> str:
    syntax = place.form.syntax
    is_lenient = not tool.is_strict
    quote = (syntax.quote,) if isinstance(syntax, QuotedObjects) else ()
    schemas = SchemaPreparation(
        writer.work,
        tool.schema,
        avoided=(*place.avoided, *quote),
        is_lenient=is_lenient,
        place=TOOL_SCHEMA,
    )
    match syntax:
        case NamedJson(header_names=True):
            return writer.rule(schemas.grammar(_json_arguments(tool, schemas)))
        case JsonCalls():
            return _json_call(syntax, place, tool, schemas, writer)
        case NamedJson():
            return _named_call(syntax, place, tool, schemas, writer)
        case TaggedCalls() | NestedTags():
            tags = _tags_of(syntax) if isinstance(syntax, NestedTags) else syntax
            return joined(
                literal(f"{tags.before_name}{tool.name}{tags.name_end}{tags.head_end}"),
                TaggedArguments(tags, tool.schema, Notation(writer, schemas)).written(),
                literal(tags.call_end),
            )
        case PythonCalls():
            notation = Notation(writer, schemas, words=("True", "False", "None"))
            arguments = TaggedArguments(PYTHON, tool.schema, notation).written()
            return joined(literal(f"{tool.name}{syntax.after_name}("), arguments, '")"')
        case QuotedObjects():
            notation = Notation(writer, schemas, quote=syntax.quote)
            arguments = notation.value({"allOf": [{"type": "object"}, tool.schema]}, "$")
            return joined(literal(f"{syntax.before_name}{tool.name}"), arguments)


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


def _json_arguments(tool: Tool, schemas: SchemaPreparation) -> Prepared:
    schema = tool.schema
    if isinstance(schema, Mapping) and schema.get("type") == "object":
        return schemas.value(schema, "$")
    return schemas.value({"allOf": [{"type": "object"}, schema]}, "$")


def _json_call(
    syntax: JsonCalls,
    place: CallPlace,
    tool: Tool,
    schemas: SchemaPreparation,
    writer: LarkWriter,
) -> str:
    arguments = _json_arguments(tool, schemas)
    if syntax.name_is_key:
        pairs: Rules = {tool.name: arguments}
    else:
        pairs = {syntax.name_key: {"const": tool.name}, syntax.arguments_key: arguments}
        if syntax.id_key is not None:
            own_id = {syntax.id_key: {"type": "string", "pattern": f"^{_id(place)}$"}}
            pairs = {**own_id, **pairs} if syntax.id_comes_first else {**pairs, **own_id}
    call: Prepared = {
        "type": "object",
        "properties": pairs,
        "required": list(pairs),
        "additionalProperties": False,
    }
    return writer.rule(schemas.grammar(call))


def _named_call(
    syntax: NamedJson,
    place: CallPlace,
    tool: Tool,
    schemas: SchemaPreparation,
    writer: LarkWriter,
) -> str:
    own_id = writer.terminal(regex(_id(place)))
    parts = [literal(syntax.before_name)]
    if syntax.id_mark and syntax.id_comes_first:
        parts += [own_id, literal(syntax.id_mark)]
    parts.append(literal(syntax.name_prefix + tool.name))
    if syntax.index_mark:
        parts += [literal(syntax.index_mark), "/0|[1-9][0-9]{0,2}/"]
    if syntax.id_mark and not syntax.id_comes_first:
        parts += [literal(syntax.id_mark), own_id]
    arguments = writer.rule(schemas.grammar(_json_arguments(tool, schemas)))
    parts += [literal(syntax.after_name), arguments]
    return joined(*parts, literal(syntax.after_arguments))


def _id(place: CallPlace) -> str:
    count = place.form.id_chars
    return _ID if count is None else f"[A-Za-z0-9]{{{count}}}"
