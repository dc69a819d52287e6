"""The fields of a conversation: messages of every role, their parts, tools, and their choice."""

from __future__ import annotations

from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    hint,
    record,
    required,
    tag,
    tagged,
    text_or_parts,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    OneOf,
    Shape,
    Text,
)

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


def message_shape() -> Shape:
    """One message of a conversation, of any role."""
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

    def message(role: str, *fields: Field) -> Record:
        who = required("role", OneOf((role,)), "Who speaks.")
        return record(f"{role} message", who, *fields)

    others = [
        record(f"{kind} part", tag(kind, "A text, as Responses call it."), *text.fields[1:])
        for kind in RESPONSES_TEXTS
    ]

    def content(*parts: Record) -> Field:
        note = "A text, or a list of parts; null or absent: no text."
        return Field("content", text_or_parts(*parts, *others), note)

    return tagged(
        message("system", content(text), _NAME),
        message("developer", content(text), _NAME),
        message("user", content(text, _image_part()), _NAME),
        message(
            "assistant",
            content(text, refusal),
            _NAME,
            Field("tool_calls", ListOf(_tool_call(), 0, 256), "Calls it made."),
            Field(
                "reasoning_content",
                Text(),
                "What it thought; templates decide whether to show it.",
                aliases=("reasoning",),
            ),
            Field("refusal", Text(), "A refusal it gave; its content if there is no other."),
            hint("audio", "the model hears and says nothing"),
            Field("function_call", _called_function(), "A call, as it was before tool_calls."),
            accepted(
                "annotations", ListOf(Anything()), "Part of our own answers, without meaning."
            ),
            accepted("reasoning_details", ListOf(Anything()), "reasoning_content is what is read."),
        ),
        message(
            "tool", content(text), Field("tool_call_id", Text(256), "The call this answers."), _NAME
        ),
        message(
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
    return tagged(tool, default="function", ignores_others=True)


def tool_choice_shape() -> Shape:
    named = record(
        "named tool",
        tag("function", "The only kind."),
        required("function", record("tool name", _TOOL_NAME), "The tool."),
    )
    chosen = record(
        "allowed tools choice",
        tag("allowed_tools", "A part of the tools."),
        required("allowed_tools", record("allowed tools", *allowed_tools_fields(named)), "Which."),
    )
    return Either((OneOf(("none", "auto", "required", "any")), tagged(named, chosen)))


def allowed_tools_fields(named: Record) -> tuple[Field, ...]:
    """A choice among some of the tools, each one ``named``."""
    tools = ListOf(tagged(named, ignores_others=True), 1, 256)
    return (
        Field("mode", OneOf(("auto", "required")), "Whether one must be called."),
        required("tools", tools, "Those that may be called."),
    )


def schema_shape(limits: ApiLimits) -> FreeObject:
    """A JSON Schema."""
    return FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
