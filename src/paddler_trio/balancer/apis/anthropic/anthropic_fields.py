"""The tables of Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import attrs

from paddler_trio.balancer.apis.adapter_choice import LORA
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
from paddler_trio.balancer.apis.generation_fields import (
    LABEL,
    MAX_INT32,
    MODEL,
    service_fields,
)
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.message_fields import schema_shape
from paddler_trio.balancer.apis.sampling_fields import sampling_fields
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Flag,
    FreeObject,
    Integer,
    Json,
    ListOf,
    OneOf,
    Shape,
    Tagged,
    Text,
)

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CACHE = accepted("cache_control", FreeObject(), "Prefixes are found by their tokens.")
_NAME = Text(256, least_chars=1)


def _block(kind: str, *fields: Field) -> Record:
    return record(f"{kind} block", tag(kind), *fields, _CACHE)


def _text_block() -> Record:
    return _block(
        "text",
        required("text", Text(), "The text."),
        accepted("citations", ListOf(Anything()), "Sources are not told apart from text."),
    )


def _image_block() -> Record:
    media = OneOf(("image/jpeg", "image/png", "image/gif", "image/webp"))
    address = "An address on a host that --image-host allows, or a data URI."
    source = tagged(
        record(
            "base64 image",
            tag("base64"),
            required("media_type", media, "Its format."),
            required("data", Text(least_chars=1), "The image, base64."),
        ),
        record("image address", tag("url"), required("url", Text(least_chars=1), address)),
    )
    return _block("image", required("source", source, "The image."))


def _document_block(text: Record, image: Record) -> Record:
    why = "only plain text is read; the model is told that there was a document"
    source = tagged(
        record(
            "text document",
            tag("text"),
            required("media_type", Text(256), "Plain text."),
            required("data", Text(), "The text."),
        ),
        record(
            "document of blocks",
            tag("content"),
            required("content", text_or_parts(text, image), "The document."),
        ),
        record("base64 document", tag("base64"), hint("media_type", why), hint("data", why)),
        record("document address", tag("url"), Field("url", Text(), "Told to the model.")),
        record("stored document", tag("file"), hint("file_id", why)),
    )
    return _block(
        "document",
        required("source", source, "Plain text or blocks; of other formats the model is told."),
        Field("title", Text(), "Told to the model before the text."),
        Field("context", Text(), "Told to the model before the text."),
        hint("citations", _CITATIONS, neutral=({"enabled": False},)),
    )


def _search_result_block(text: Record) -> Record:
    return _block(
        "search_result",
        Field("source", Text(), "Told to the model before the text."),
        Field("title", Text(), "Told to the model before the text."),
        required("content", text_or_parts(text), "The text."),
        hint("citations", _CITATIONS, neutral=({"enabled": False},)),
    )


_CITATIONS = "sources are not told apart from text"


def _hosted_blocks(*parts: Record) -> tuple[Record, ...]:
    """Calls that a server ran and what they gave, as calls and results of tools."""
    uses = (
        _block(
            kind,
            required("id", Text(256), "What the result refers to."),
            required("name", _NAME, "Of the tool."),
            Field("input", FreeObject(), "Its arguments."),
            accepted("server_name", Text(256), "The call has been made."),
            accepted("caller", Anything(), "The call has been made."),
        )
        for kind in HOSTED_USES
    )
    results = (
        _block(
            kind,
            required("tool_use_id", Text(256), "The call this answers."),
            Field("content", Anything(), "Its texts are told to the model."),
            Field("is_error", Flag(), "Told to the model before the content."),
            accepted("caller", Anything(), "The call has been made."),
        )
        for kind in HOSTED_RESULTS
    )
    return (*uses, *results)


HOSTED_USES = ("server_tool_use", "mcp_tool_use")
HOSTED_RESULTS = (
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_result",
)


def _message_shape() -> Shape:
    text, image = _text_block(), _image_block()
    document, found = _document_block(text, image), _search_result_block(text)
    reference = _block("tool_reference", required("tool_name", _NAME, "Told to the model."))
    upload = _block("container_upload", hint("file_id", "there is no container"))
    parts = (text, image, document, found)
    result = _block(
        "tool_result",
        required("tool_use_id", Text(256), "The call this answers."),
        Field("content", text_or_parts(*parts, reference), "What the tool said."),
        Field("is_error", Flag(), "Told to the model before the content."),
    )
    hosted = _hosted_blocks(*parts)
    summary = _block(
        "compaction",
        Field("content", text_or_parts(text), "What was said before, told to the model as text."),
        accepted("encrypted_content", Anything(), "It cannot be read."),
    )
    use = _block(
        "tool_use",
        required("id", Text(256), "What the result refers to."),
        required("name", _NAME, "Of the tool."),
        required("input", FreeObject(), "Its arguments."),
        accepted("caller", Anything(), "The model calls tools itself."),
    )
    thinking = _block(
        "thinking",
        Field("thinking", Text(), "What it thought; templates decide whether to show it."),
        accepted("signature", Text(), "Thinking is not signed here."),
    )
    redacted = _block("redacted_thinking", accepted("data", Text(), "It cannot be read."))

    def message(role: str, *blocks: Record) -> Record:
        return record(
            f"{role} turn",
            required("role", OneOf((role,)), "Who speaks."),
            required("content", text_or_parts(*blocks), "A text, or blocks."),
        )

    return tagged(
        message("user", *parts, result, upload, summary, *hosted),
        message("assistant", *parts, use, thinking, redacted, upload, summary, *hosted),
        message("system", text),
        by="role",
    )


def _tool_shape(limits: ApiLimits) -> Shape:
    custom = record(
        "AnthropicTool",
        tag("custom", "A tool of the client; no other kind is here.", is_required=False),
        required("name", _NAME, "What the model calls it."),
        Field("description", Text(), "What it does, for the model."),
        required("input_schema", schema_shape(limits), "JSON Schema of its arguments."),
        accepted("strict", Flag(), "Arguments are held to the schema either way."),
        accepted("eager_input_streaming", Flag(), "Arguments are streamed either way."),
        accepted("input_examples", ListOf(FreeObject()), "Templates show none."),
        hint("defer_loading", "every tool is told to the model", neutral=(False,)),
        hint("allowed_callers", "only the model calls tools", neutral=(["direct"],)),
        _CACHE,
    )
    return _Tools(tagged(custom, default="custom", ignores_others=True))


@attrs.frozen
class _Tools:
    """Tools of the client; of those that Anthropic's models know by heart the schema is filled in.

    Their types end with a date, as ``bash_20250124`` does.
    """

    of: Tagged

    @property
    def expected(self) -> str:
        return self.of.expected

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> object:
        match value:
            case {"type": str(kind), "name": name}:
                for beginning, (description, schema) in KNOWN_TOOLS.items():
                    if kind.startswith(beginning):
                        filled = {"name": name, "description": description, "input_schema": schema}
                        return self.of.read(filled, path, ignored)
        return self.of.read(value, path, ignored)

    def schema(self) -> Json:
        return self.of.schema()


def _commands(*commands: str, **others: Json) -> Json:
    text: Json = {"type": "string"}
    properties = {"command": {**text, "enum": list(commands)}, "path": text, **others}
    return {"type": "object", "properties": properties, "required": ["command", "path"]}


_TEXT: Json = {"type": "string"}
_LINE: Json = {"type": "integer"}
KNOWN_TOOLS: Mapping[str, tuple[str, Json]] = {
    "bash_2": (
        "Run a command in a shell that stays open; restart starts a new one.",
        {
            "type": "object",
            "properties": {"command": _TEXT, "restart": {"type": "boolean"}},
        },
    ),
    "text_editor_2": (
        "View, create and change text files.",
        _commands(
            "view",
            "create",
            "str_replace",
            "insert",
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_LINE,
            insert_text=_TEXT,
            view_range={"type": "array", "items": _LINE},
        ),
    ),
    "memory_2": (
        "View, create, change, delete and rename files of notes below /memories.",
        {
            **_commands(
                "view",
                "create",
                "str_replace",
                "insert",
                "delete",
                "rename",
                file_text=_TEXT,
                old_str=_TEXT,
                new_str=_TEXT,
                insert_line=_LINE,
                insert_text=_TEXT,
                old_path=_TEXT,
                new_path=_TEXT,
            ),
            "required": ["command"],
        },
    ),
}


def _tool_choice_shape() -> Shape:
    one = Field("disable_parallel_tool_use", Flag(), "true: at most one call.")
    return tagged(
        record("auto choice", tag("auto"), one),
        record("any choice", tag("any"), one),
        record("tool choice", tag("tool"), required("name", _NAME, "Of the tool."), one),
        record("no choice", tag("none")),
    )


def _thinking_shape() -> Shape:
    display = Field(
        "display", OneOf(("summarized", "omitted")), "omitted: blocks of thinking are empty."
    )
    budget = required("budget_tokens", Integer(1, MAX_INT32), "Tokens of thinking.")
    return tagged(
        record("thinking on", tag("enabled"), budget, display),
        record("thinking off", tag("disabled")),
        record("thinking as needed", tag("adaptive"), display),
    )


def _format_shape(limits: ApiLimits) -> Shape:
    return record(
        "AnthropicFormat",
        tag("json_schema"),
        required("schema", schema_shape(limits, is_form=True), "JSON Schema of the answer."),
    )


def _conversation_fields(limits: ApiLimits) -> tuple[Field, ...]:
    system = text_or_parts(_text_block())
    output = record(
        "output_config",
        Field("format", _format_shape(limits), "JSON of a schema."),
        Field("effort", OneOf(EFFORTS), "Bounds the thinking, where it is on."),
    )
    return (
        MODEL,
        required(
            "messages",
            ListOf(_message_shape(), 1, limits.max_messages, "max_messages"),
            "The conversation; the last one may be the assistant's, to be gone on with.",
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
        hint("mcp_servers", "tools are called by the client", neutral=([],)),
        hint("context_management", "the conversation is taken as it is", neutral=({},)),
        hint("container", "there is no code execution"),
        hint("speed", "there is one", neutral=("standard",)),
    )


@lru_cache(maxsize=8)
def messages_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/messages``."""
    stop_text = Text(limits.max_stop_chars, "max_stop_chars", least_chars=1)
    return record(
        "CreateMessageRequest",
        *_conversation_fields(limits),
        required("max_tokens", Integer(1, MAX_INT32), "Tokens of the answer, thinking included."),
        Field(
            "stop_sequences",
            ListOf(stop_text, 0, limits.max_stop_texts, "max_stop_texts"),
            "Texts that end the answer and are not part of it.",
        ),
        Field("stream", Flag(), "Answer with server-sent events, as tokens are sampled."),
        LORA,
        accepted(
            "metadata",
            record("metadata", accepted("user_id", LABEL, "Whose turn of the key it takes.")),
            "The key's turns go round its users; of a name a hash lives as long as the request.",
        ),
        accepted("service_tier", Text(64), "There is one tier."),
        hint("diagnostics", "there are none to be told"),
        accepted("inference_geo", Text(), "The models run where the agents are."),
        *sampling_fields(),
        *service_fields(),
        note="Fields beyond Anthropic's are llama.cpp's. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def count_tokens_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/messages/count_tokens``."""
    return Record("CountMessageTokensRequest", _conversation_fields(limits))
