"""The fields of a conversation: messages of every role, their parts, tools, and their choice."""

from __future__ import annotations

from paddler_trio.apis.fields import Field, Record, accepted, refused, tag
from paddler_trio.apis.limits import ApiLimits
from paddler_trio.apis.shapes import (
    Anything,
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    OneOf,
    Shape,
    Tagged,
    Text,
)

_TYPE_TEXT = tag("text", "A part that is text.")
_NAME = Field("name", Text(256), "Who speaks; templates that know names show it.")
_CACHE_CONTROL = accepted("cache_control", FreeObject(), "Prefixes are found by their tokens.")


def _part(*fields: Field, name: str) -> Record:
    return Record(name, (*fields, _CACHE_CONTROL))


def _text_part() -> Record:
    return _part(_TYPE_TEXT, Field("text", Text(), "The text.", is_required=True), name="text part")


def _image_part() -> Record:
    url = Field(
        "url",
        Text(least_chars=1),
        "A data URI, or an address on a host that --image-host allows.",
        is_required=True,
    )
    detail = accepted("detail", OneOf(("auto", "low", "high")), "Images are sized for the model.")
    return _part(
        tag("image_url", "A part that is an image."),
        Field(
            "image_url",
            Either((Record("image", (url, detail)), Text(least_chars=1))),
            "The image.",
            is_required=True,
        ),
        name="image part",
    )


def _refusal_part() -> Record:
    return _part(
        tag("refusal", "An earlier refusal."),
        Field("refusal", Text(), "Its text.", is_required=True),
        name="refusal part",
    )


def _content(*parts: tuple[str, Record]) -> Shape:
    return Either((Text(), ListOf(Tagged("type", dict(parts)), 0, 4096)))


def _tool_call() -> Record:
    function = Record(
        "called function",
        (
            Field("name", Text(256, least_chars=1), "Of the tool.", is_required=True),
            Field(
                "arguments",
                Either((Text(), FreeObject())),
                "JSON text of the arguments.",
                is_required=True,
            ),
        ),
    )
    return Record(
        "tool call",
        (
            Field("id", Text(256), "What the tool's answer refers to."),
            tag("function", "The only kind there is.", is_required=False),
            Field("function", function, "What was called.", is_required=True),
            accepted("index", Integer(0), "As streams number calls; order is what counts."),
        ),
    )


def _message(role: str, *fields: Field) -> Record:
    return Record(
        f"{role} message",
        (Field("role", OneOf((role,)), "Who speaks.", is_required=True), *fields),
    )


def message_shape() -> Shape:
    """One message of a conversation, of any role."""
    text = ("text", _text_part())
    image = ("image_url", _image_part())
    refusal = ("refusal", _refusal_part())

    def content(*parts: tuple[str, Record], needed: bool = True) -> Field:
        note = "A text, or a list of parts."
        return Field("content", _content(*parts), note, is_required=needed)

    assistant = _message(
        "assistant",
        content(text, refusal, needed=False),
        _NAME,
        Field("tool_calls", ListOf(_tool_call(), 0, 256), "Calls it made."),
        Field(
            "reasoning_content",
            Text(),
            "What it thought; templates decide whether to show it.",
            aliases=("reasoning",),
        ),
        Field("refusal", Text(), "A refusal it gave; its content if there is no other."),
        refused("audio", "the model hears and says nothing"),
        refused("function_call", "use tool_calls"),
        accepted("annotations", ListOf(Anything()), "Part of our own answers, without meaning."),
        accepted("reasoning_details", ListOf(Anything()), "reasoning_content is what is read."),
    )
    return Tagged(
        "role",
        {
            "system": _message("system", content(text), _NAME),
            "developer": _message("developer", content(text), _NAME),
            "user": _message("user", content(text, image), _NAME),
            "assistant": assistant,
            "tool": _message(
                "tool",
                content(text),
                Field("tool_call_id", Text(256), "The call this answers."),
                _NAME,
            ),
            "function": _message(
                "function",
                content(text),
                Field("name", Text(256), "The function this answers.", is_required=True),
            ),
        },
    )


def tool_shape(limits: ApiLimits) -> Shape:
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    function = Record(
        "function",
        (
            Field("name", Text(256, least_chars=1), "What the model calls it.", is_required=True),
            Field("description", Text(), "What it does, for the model."),
            Field("parameters", schema, "JSON Schema of its arguments; absent: none."),
            accepted("strict", Flag(), "Arguments are held to the schema either way."),
        ),
    )
    return Tagged(
        "type",
        {
            "function": Record(
                "tool",
                (
                    tag("function", "The only kind."),
                    Field("function", function, "The function.", is_required=True),
                    _CACHE_CONTROL,
                ),
            )
        },
        ignores_others=True,
    )


def tool_choice_shape() -> Shape:
    name = Field("name", Text(256, least_chars=1), "Of the tool.", is_required=True)
    named = Record(
        "named tool",
        (
            tag("function", "The only kind."),
            Field("function", Record("tool name", (name,)), "The tool.", is_required=True),
        ),
    )
    allowed = Record(
        "allowed tools",
        (
            Field("mode", OneOf(("auto", "required")), "Whether one must be called."),
            Field(
                "tools",
                ListOf(Tagged("type", {"function": named}, ignores_others=True), 1, 256),
                "Those that may be called.",
                is_required=True,
            ),
        ),
    )
    chosen = Record(
        "allowed tools choice",
        (
            tag("allowed_tools", "A part of the tools."),
            Field("allowed_tools", allowed, "Which.", is_required=True),
        ),
    )
    return Either(
        (
            OneOf(("none", "auto", "required")),
            Tagged("type", {"function": named, "allowed_tools": chosen}),
        )
    )
