"""The fields of a conversation: messages of every role, their parts, tools, and their choice."""

from __future__ import annotations

import attrs

from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    attachment,
    hint,
    record,
    required,
    sound,
    tag,
    tagged,
    text_or_parts,
)
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields, member
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Either,
    Flag,
    FreeObject,
    Integer,
    Json,
    ListOf,
    OneOf,
    Shape,
    Text,
)
from paddler_trio.wire.json_schema import lawful_schema

_NAME = Field("name", Text(256), "Who speaks; templates that know names show it.")
_TOOL_NAME = required("name", Text(256, least_chars=1), "Of the tool.")
RESPONSES_TEXTS = ("input_text", "output_text")
"""What parts that are texts are called in another API; clients mix them."""
_CACHE_CONTROL = accepted("cache_control", FreeObject(), "Prefixes are found by their tokens.")


def _image_part() -> Record:
    url = required(
        "url", Text(least_chars=1), "A data URI, or an address on a host that --image-host allows."
    )
    detail = accepted("detail", OneOf(("auto", "low", "high")), "Images are sized for the model.")
    image = Either((record("image", url, detail), Text(least_chars=1)))
    return record(
        "image part",
        tag("image_url", "A part that is an image."),
        required("image_url", image, "The image."),
        _CACHE_CONTROL,
    )


def _called_function() -> Record:
    arguments = Either((Text(), FreeObject()))
    return record(
        "called function",
        _TOOL_NAME,
        Field("arguments", arguments, "JSON text of the arguments; absent: none."),
    )


def _tool_call() -> Record:
    return record(
        "tool call",
        Field("id", Text(256), "What the tool's answer refers to."),
        tag("function", "The only kind there is.", is_required=False),
        required("function", _called_function(), "What was called."),
        accepted("index", Integer(0), "As streams number calls; order is what counts."),
    )


def _custom_call() -> Record:
    custom = record(
        "called tool", _TOOL_NAME, required("input", Text(), "The text it was called with.")
    )
    return record(
        "custom tool call",
        Field("id", Text(256), "What the tool's answer refers to."),
        tag("custom", "A call of a tool that takes free text."),
        required("custom", custom, "What was called."),
        accepted("index", Integer(0), "As streams number calls; order is what counts."),
    )


def _message(role: str, *fields: Field) -> Record:
    who = required("role", OneOf((role,)), "Who speaks.")
    return record(f"{role} message", who, *fields)


def _assistant_message(content: Field) -> Record:
    calls = tagged(_tool_call(), _custom_call(), default="function")
    return _message(
        "assistant",
        content,
        _NAME,
        Field("tool_calls", ListOf(calls, 0, 256), "Calls it made."),
        Field(
            "reasoning_content",
            Text(),
            "What it thought; templates decide whether to show it.",
            aliases=("reasoning",),
        ),
        Field("refusal", Text(), "A refusal it gave; its content if there is no other."),
        hint("audio", "the model hears and says nothing"),
        Field("function_call", _called_function(), "A call, as it was before tool_calls."),
        accepted("annotations", ListOf(Anything()), "Part of our own answers, without meaning."),
        accepted("reasoning_details", ListOf(Anything()), "reasoning_content is what is read."),
    )


def message_shape() -> Shape:
    """Return one message of a conversation, of any role."""
    text = record(
        "text part",
        tag("text", "A part that is text."),
        required("text", Text(), "The text."),
        _CACHE_CONTROL,
    )
    refusal = record(
        "refusal part",
        tag("refusal", "An earlier refusal."),
        required("refusal", Text(), "Its text."),
        _CACHE_CONTROL,
    )

    attached = (
        attachment("file", "file"),
        sound(),
        attachment("video_url", "video_url"),
    )
    others = [
        record(f"{kind} part", tag(kind, "A text, as Responses call it."), *text.fields[1:])
        for kind in RESPONSES_TEXTS
    ]

    def content(*parts: Record) -> Field:
        note = "A text, or a list of parts; null or absent: no text."
        return Field("content", text_or_parts(*parts, *others), note)

    return tagged(
        _message("system", content(text), _NAME),
        _message("developer", content(text), _NAME),
        _message("user", content(text, _image_part(), *attached), _NAME),
        _assistant_message(content(text, refusal)),
        _message(
            "tool", content(text), Field("tool_call_id", Text(256), "The call this answers."), _NAME
        ),
        _message(
            "function", content(text), required("name", Text(256), "The function this answers.")
        ),
        by="role",
        reads_others_as="user",
    )


def tool_shape(limits: ApiLimits) -> Shape:
    function = record(
        "function",
        required("name", Text(256, least_chars=1), "What the model calls it."),
        Field("description", Text(), "What it does, for the model."),
        Field("parameters", schema_shape(limits), "JSON Schema of its arguments; absent: none."),
        accepted("strict", Flag(), "Arguments are held to the schema either way."),
    )
    tool = record(
        "tool",
        tag("function", "The only kind.", is_required=False),
        required("function", function, "The function."),
        _CACHE_CONTROL,
    )
    free = record(
        "custom function",
        _TOOL_NAME,
        Field("description", Text(), "What it does, for the model."),
        Field("format", FreeObject(), "Of its input; a grammar is told to the model in words."),
    )
    custom = record(
        "custom tool",
        tag("custom", "A tool that takes free text; the model knows it as a function."),
        required("custom", free, "The tool."),
        _CACHE_CONTROL,
    )
    return tagged(tool, custom, default="function", ignores_others=True)


def tool_choice_shape() -> Shape:
    named = record(
        "named tool",
        tag("function", "The only kind."),
        required("function", record("tool name", _TOOL_NAME), "The tool."),
    )
    custom = record(
        "named custom tool",
        tag("custom", "A tool that takes free text."),
        required("custom", record("custom tool name", _TOOL_NAME), "The tool."),
    )
    chosen = record(
        "allowed tools choice",
        tag("allowed_tools", "A part of the tools."),
        required(
            "allowed_tools", record("allowed tools", *allowed_tools_fields(named, custom)), "Which."
        ),
    )
    return Either((OneOf(("none", "auto", "required", "any")), tagged(named, custom, chosen)))


def allowed_tools_fields(*named: Record) -> tuple[Field, ...]:
    """Return a choice among some of the tools, each one of ``named``."""
    tools = ListOf(tagged(*named, ignores_others=True), 1, 256)
    return (
        Field("mode", OneOf(("auto", "required")), "Whether one must be called."),
        required("tools", tools, "Those that may be called."),
    )


@attrs.frozen
class _JsonSchema:
    """A JSON Schema of any draft and age, read as one of 2020-12.

    What has no meaning in it, and what no grammar can hold an answer to, is reported by its path.
    In the form of an answer a type that is none is refused: what came would be something else.
    """

    of: FreeObject
    is_form: bool = False

    expected = "an object"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> Json:
        lawful = lawful_schema(self.of.read(value, path, ignored))
        for inside, keyword in lawful.lost:
            if self.is_form and keyword == "type":
                where = member(member(path, inside) if inside else path, keyword)
                raise invalid(f"{where} is no type of JSON", where)
            ignored.unknown(member(path, inside) if inside else path, keyword)
        if ignored.is_strict and lawful.unbound:
            return {**lawful.schema, "strict": True}  # refused where it would have to be written
        for inside, keyword in lawful.unbound:
            ignored.add(member(path, inside) if inside else path, keyword)
        return lawful.schema

    def schema(self) -> Json:
        return self.of.schema()


def schema_shape(limits: ApiLimits, *, is_form: bool = False) -> Shape:
    """Return a JSON Schema; ``is_form``: of an answer."""
    given = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    return _JsonSchema(given, is_form)
