"""The tables of Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from functools import lru_cache

from paddler_trio.apis.fields import Field, Record, accepted, hint, refused, tag
from paddler_trio.apis.generation_fields import MAX_INT32, cache_fields, sampling_fields
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

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CACHE = accepted("cache_control", FreeObject(), "Prefixes are found by their tokens.")
_NAME = Text(256, least_chars=1)


def _block(word: str, *fields: Field) -> tuple[str, Record]:
    return word, Record(f"{word} block", (tag(word), *fields, _CACHE))


def _text_block() -> tuple[str, Record]:
    return _block(
        "text",
        Field("text", Text(), "The text.", is_required=True),
        accepted("citations", ListOf(Anything()), "Sources are not told apart from text."),
    )


def _image_block() -> tuple[str, Record]:
    media = OneOf(("image/jpeg", "image/png", "image/gif", "image/webp"))
    source = Tagged(
        "type",
        {
            "base64": Record(
                "base64 image",
                (
                    tag("base64"),
                    Field("media_type", media, "Its format.", is_required=True),
                    Field("data", Text(least_chars=1), "The image, base64.", is_required=True),
                ),
            ),
            "url": Record(
                "image address",
                (
                    tag("url"),
                    Field(
                        "url",
                        Text(least_chars=1),
                        "An address on a host that --image-host allows, or a data URI.",
                        is_required=True,
                    ),
                ),
            ),
        },
    )
    return _block("image", Field("source", source, "The image.", is_required=True))


def _document_block() -> tuple[str, Record]:
    source = Tagged(
        "type",
        {
            "text": Record(
                "text document",
                (
                    tag("text"),
                    Field("media_type", OneOf(("text/plain",)), "Plain text.", is_required=True),
                    Field("data", Text(), "The text.", is_required=True),
                ),
            )
        },
    )
    return _block(
        "document",
        Field("source", source, "Plain text; other formats are not read.", is_required=True),
        Field("title", Text(), "Told to the model before the text."),
        Field("context", Text(), "Told to the model before the text."),
        refused("citations", "sources are not told apart from text", neutral=({"enabled": False},)),
    )


def _blocks(*blocks: tuple[str, Record]) -> Shape:
    return Either((Text(), ListOf(Tagged("type", dict(blocks)), 0, 4096)))


def _message_shape() -> Shape:
    text, image, document = _text_block(), _image_block(), _document_block()
    result = _block(
        "tool_result",
        Field("tool_use_id", Text(256), "The call this answers.", is_required=True),
        Field("content", _blocks(text, image, document), "What the tool said."),
        Field("is_error", Flag(), "Told to the model before the content."),
    )
    use = _block(
        "tool_use",
        Field("id", Text(256), "What the result refers to.", is_required=True),
        Field("name", _NAME, "Of the tool.", is_required=True),
        Field("input", FreeObject(), "Its arguments.", is_required=True),
        accepted("caller", FreeObject(), "The model calls tools itself."),
    )
    thinking = _block(
        "thinking",
        Field("thinking", Text(), "What it thought; templates decide whether to show it."),
        accepted("signature", Text(), "Thinking is not signed here."),
    )
    redacted = _block("redacted_thinking", accepted("data", Text(), "It cannot be read."))

    def message(role: str, *blocks: tuple[str, Record]) -> Record:
        return Record(
            f"{role} turn",
            (
                Field("role", OneOf((role,)), "Who speaks.", is_required=True),
                Field("content", _blocks(*blocks), "A text, or blocks.", is_required=True),
            ),
        )

    return Tagged(
        "role",
        {
            "user": message("user", text, image, document, result),
            "assistant": message("assistant", text, use, thinking, redacted),
            "system": message("system", text),
        },
    )


def _tool_shape(limits: ApiLimits) -> Shape:
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    custom = Record(
        "AnthropicTool",
        (
            tag("custom", "A tool of the client; no other kind is here.", is_required=False),
            Field("name", _NAME, "What the model calls it.", is_required=True),
            Field("description", Text(), "What it does, for the model."),
            Field("input_schema", schema, "JSON Schema of its arguments.", is_required=True),
            accepted("strict", Flag(), "Arguments are held to the schema either way."),
            accepted("eager_input_streaming", Flag(), "Arguments are streamed either way."),
            accepted("input_examples", ListOf(FreeObject()), "Templates show none."),
            hint("defer_loading", "every tool is told to the model", neutral=(False,)),
            refused("allowed_callers", "only the model calls tools", neutral=(["direct"],)),
            _CACHE,
        ),
    )
    return Tagged("type", {"custom": custom}, default="custom", ignores_others=True)


def _tool_choice_shape() -> Shape:
    one = Field("disable_parallel_tool_use", Flag(), "true: at most one call.")
    name = Field("name", _NAME, "Of the tool.", is_required=True)
    return Tagged(
        "type",
        {
            "auto": Record("auto choice", (tag("auto"), one)),
            "any": Record("any choice", (tag("any"), one)),
            "tool": Record("tool choice", (tag("tool"), name, one)),
            "none": Record("no choice", (tag("none"),)),
        },
    )


def _thinking_shape() -> Shape:
    display = Field(
        "display", OneOf(("summarized", "omitted")), "omitted: blocks of thinking are empty."
    )
    budget = Field("budget_tokens", Integer(1, MAX_INT32), "Tokens of thinking.", is_required=True)
    return Tagged(
        "type",
        {
            "enabled": Record("thinking on", (tag("enabled"), budget, display)),
            "disabled": Record("thinking off", (tag("disabled"),)),
            "adaptive": Record("thinking as needed", (tag("adaptive"), display)),
        },
    )


def _format_shape(limits: ApiLimits) -> Shape:
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    return Record(
        "AnthropicFormat",
        (
            tag("json_schema"),
            Field("schema", schema, "JSON Schema of the answer.", is_required=True),
        ),
    )


def _conversation_fields(limits: ApiLimits) -> tuple[Field, ...]:
    system = Either((Text(), ListOf(Tagged("type", dict([_text_block()])), 0, 4096)))
    output = Record(
        "output_config",
        (
            Field("format", _format_shape(limits), "JSON of a schema."),
            Field("effort", OneOf(EFFORTS), "Bounds the thinking, where it is on."),
        ),
    )
    return (
        Field("model", Text(512), "Any name is fine unless --strict-model-names is set."),
        Field(
            "messages",
            ListOf(_message_shape(), 1, limits.max_messages, "max_messages"),
            "The conversation; the last one may be the assistant's, to be gone on with.",
            is_required=True,
        ),
        Field("system", system, "What the system says first."),
        Field(
            "tools",
            ListOf(_tool_shape(limits), 0, limits.max_tools, "max_tools"),
            "What the model may call.",
        ),
        Field("tool_choice", _tool_choice_shape(), "auto if there are tools, else none."),
        Field("thinking", _thinking_shape(), "Whether to think first; absent: no."),
        Field("output_config", output, "The form of the answer."),
        Field("output_format", _format_shape(limits), "As output_config.format."),
        accepted("cache_control", FreeObject(), "Prefixes are found by their tokens."),
        Field("thread", FreeObject(), "Refused, in the words that make clients do without."),
        refused("mcp_servers", "tools are called by the client", neutral=([],)),
        hint("context_management", "the conversation is taken as it is", neutral=({},)),
        refused("container", "there is no code execution"),
        hint("speed", "there is one", neutral=("standard",)),
    )


@lru_cache(maxsize=8)
def messages_record(limits: ApiLimits) -> Record:
    """The body of ``/v1/messages``."""
    stop_text = Text(limits.max_stop_chars, "max_stop_chars", least_chars=1)
    return Record(
        "CreateMessageRequest",
        (
            *_conversation_fields(limits),
            Field(
                "max_tokens",
                Integer(1, MAX_INT32),
                "Tokens of the answer, thinking included.",
                is_required=True,
            ),
            Field(
                "stop_sequences",
                ListOf(stop_text, 0, limits.max_stop_texts, "max_stop_texts"),
                "Texts that end the answer and are not part of it.",
            ),
            Field("stream", Flag(), "Answer with server-sent events, as tokens are sampled."),
            accepted(
                "metadata",
                Record("metadata", (accepted("user_id", Text(), "A label."),)),
                "Kept nowhere: it is a label for the provider's own books.",
            ),
            accepted("service_tier", Text(64), "There is one tier."),
            hint("diagnostics", "there are none to be told"),
            accepted("inference_geo", Text(), "The models run where the agents are."),
            *sampling_fields(),
            *cache_fields(),
        ),
        "Fields beyond Anthropic's are llama.cpp's. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def count_tokens_record(limits: ApiLimits) -> Record:
    """The body of ``/v1/messages/count_tokens``."""
    return Record("CountMessageTokensRequest", _conversation_fields(limits))
