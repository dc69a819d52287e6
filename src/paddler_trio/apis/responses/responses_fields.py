"""The tables of ``/v1/responses`` and ``/v1/responses/input_tokens``."""

from __future__ import annotations

from functools import lru_cache

from paddler_trio.apis.fields import Field, Record, accepted, hint, refused, tag
from paddler_trio.apis.generation_fields import (
    MAX_INT32,
    accepted_fields,
    bias_field,
    cache_fields,
    sampling_fields,
)
from paddler_trio.apis.limits import ApiLimits
from paddler_trio.apis.openai.chat_fields import EFFORTS, progress_fields
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

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_NAME = Text(256, least_chars=1)
_STATUS = accepted(
    "status", OneOf(("in_progress", "completed", "incomplete")), "What is given is what there is."
)
_ID = accepted("id", Text(256), "Items are taken as they are given.")


def _text_part(word: str) -> tuple[str, Record]:
    return word, Record(
        f"{word} part",
        (
            tag(word),
            Field("text", Text(), "The text.", is_required=True),
            accepted("annotations", ListOf(Anything()), "Part of our own answers."),
            accepted("logprobs", ListOf(Anything()), "Part of our own answers."),
            accepted("parsed", Anything(), "What a client made of the text."),
            accepted("prompt_cache_breakpoint", Anything(), "Prefixes are found by tokens."),
        ),
    )


def _image_part() -> tuple[str, Record]:
    return "input_image", Record(
        "input_image part",
        (
            tag("input_image"),
            Field(
                "image_url",
                Text(least_chars=1),
                "A data URI, or an address on a host that --image-host allows.",
                is_required=True,
            ),
            accepted("detail", OneOf(("auto", "low", "high")), "Images are sized for the model."),
            refused("file_id", "there are no stored files; send a data URI"),
        ),
    )


def _refusal_part() -> tuple[str, Record]:
    text = Field("refusal", Text(), "Its text.", is_required=True)
    return "refusal", Record("refused part", (tag("refusal"), text))


def _content(*parts: tuple[str, Record]) -> Shape:
    return Either((Text(), ListOf(Tagged("type", dict(parts)), 0, 4096)))


def item_shape() -> Shape:
    """One item of an input: a message, a call, its output, or reasoning."""
    texts = (_text_part("input_text"), _text_part("output_text"))
    message = Record(
        "input message",
        (
            tag("message", is_required=False),
            Field(
                "role",
                OneOf(("user", "assistant", "system", "developer")),
                "Who speaks.",
                is_required=True,
            ),
            Field(
                "content",
                _content(*texts, _image_part(), _refusal_part()),
                "A text, or parts.",
                is_required=True,
            ),
            _ID,
            _STATUS,
            accepted("phase", Text(64), "Answers have one phase."),
        ),
    )
    call = Record(
        "function_call item",
        (
            tag("function_call"),
            Field("call_id", _NAME, "What the output refers to.", is_required=True),
            Field("name", _NAME, "Of the tool.", is_required=True),
            Field("arguments", Text(), "JSON text of the arguments.", is_required=True),
            _ID,
            _STATUS,
            accepted("parsed_arguments", Anything(), "What a client made of the arguments."),
            accepted("caller", FreeObject(), "The model calls tools itself."),
            refused("namespace", "tools have no namespaces"),
        ),
    )
    output = Record(
        "function_call_output item",
        (
            tag("function_call_output"),
            Field("call_id", _NAME, "The call this answers.", is_required=True),
            Field(
                "output",
                _content(_text_part("input_text"), _image_part()),
                "What the tool said.",
                is_required=True,
            ),
            _ID,
            _STATUS,
            accepted("name", Text(256), "The call has it."),
            accepted("caller", FreeObject(), "The model calls tools itself."),
        ),
    )
    reasoning = Record(
        "reasoning item",
        (
            tag("reasoning"),
            Field(
                "summary", ListOf(Tagged("type", dict([_text_part("summary_text")]))), "Its gist."
            ),
            Field(
                "content",
                ListOf(Tagged("type", dict([_text_part("reasoning_text")]))),
                "What was thought; templates decide whether to show it.",
            ),
            _ID,
            _STATUS,
            accepted("encrypted_content", Text(), "It cannot be read."),
        ),
    )
    return Tagged(
        "type",
        {
            "message": message,
            "function_call": call,
            "function_call_output": output,
            "reasoning": reasoning,
        },
        default="message",
    )


def _tool_shape(limits: ApiLimits) -> Shape:
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    function = Record(
        "function tool",
        (
            tag("function"),
            Field("name", _NAME, "What the model calls it.", is_required=True),
            Field("description", Text(), "What it does, for the model."),
            Field("parameters", schema, "JSON Schema of its arguments; absent: none."),
            Field("strict", Flag(), "Echoed; arguments are held to the schema either way."),
            accepted("output_schema", FreeObject(), "Outputs are taken as they are."),
            hint("defer_loading", "every tool is told to the model", neutral=(False,)),
            refused("allowed_callers", "only the model calls tools", neutral=(["direct"],)),
        ),
    )
    return Tagged("type", {"function": function}, ignores_others=True)


def _tool_choice_shape() -> Shape:
    name = Field("name", _NAME, "Of the tool.", is_required=True)
    named = Record("chosen function", (tag("function"), name))
    allowed = Record(
        "allowed functions",
        (
            tag("allowed_tools"),
            Field("mode", OneOf(("auto", "required")), "Whether one must be called."),
            Field(
                "tools",
                ListOf(Tagged("type", {"function": named}, ignores_others=True), 1, 256),
                "Those that may be called.",
                is_required=True,
            ),
        ),
    )
    kinds = Tagged("type", {"function": named, "allowed_tools": allowed})
    return Either((OneOf(("none", "auto", "required")), kinds))


def _text_shape(limits: ApiLimits) -> Shape:
    schema = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    described = Record(
        "json_schema text",
        (
            tag("json_schema"),
            Field("name", Text(256), "A label, echoed."),
            Field("schema", schema, "JSON Schema of the answer.", is_required=True),
            Field("description", Text(), "A label, echoed."),
            Field("strict", Flag(), "Echoed; answers are held to the schema either way."),
        ),
    )
    kinds = {
        "text": Record("plain text", (tag("text"),)),
        "json_object": Record("json_object text", (tag("json_object"),)),
        "json_schema": described,
    }
    return Record(
        "text config",
        (
            Field("format", Tagged("type", kinds), "text, or JSON."),
            hint("verbosity", "say in words how long an answer to give", neutral=("medium",)),
        ),
    )


def _conversation_fields(limits: ApiLimits) -> tuple[Field, ...]:
    items = ListOf(item_shape(), 0, limits.max_messages, "max_messages")
    effort = Field("effort", OneOf(tuple(EFFORTS)), "As reasoning_effort of chat completions.")
    words = OneOf(("auto", "concise", "detailed"))
    gist = "Reasoning is told as it is, as content of reasoning items."
    reasoning = Record(
        "reasoning config",
        (effort, accepted("summary", words, gist), accepted("generate_summary", words, gist)),
    )
    return (
        Field("model", Text(512), "Any name is fine unless --strict-model-names is set."),
        Field("input", Either((Text(), items)), "A text, or items."),
        Field("instructions", Text(), "What the system says first; of this response alone."),
        Field(
            "previous_response_id",
            Text(256),
            "Goes on after a stored response: its input and output come first.",
        ),
        Field(
            "tools",
            ListOf(_tool_shape(limits), 0, limits.max_tools, "max_tools"),
            "What the model may call: functions. Tools that a server runs are ignored.",
        ),
        Field("tool_choice", _tool_choice_shape(), "auto if there are tools, else none."),
        Field("parallel_tool_calls", Flag(), "false: at most one call."),
        Field("reasoning", reasoning, "Whether and how long to reason."),
        Field("text", _text_shape(limits), "The form of the answer."),
        hint("truncation", "what does not fit is an error", neutral=("disabled",)),
        refused("conversation", "use previous_response_id, or send the items"),
        refused("prompt", "there are no stored prompts"),
    )


@lru_cache(maxsize=8)
def responses_record(limits: ApiLimits) -> Record:
    """The body of ``/v1/responses``."""
    options = Record(
        "responses stream_options",
        (hint("include_obfuscation", "events are not padded", neutral=(False,)),),
    )
    own = {"store", "metadata", "id_slot"}
    return Record(
        "CreateResponseRequest",
        (
            *_conversation_fields(limits),
            Field("max_output_tokens", Integer(1, MAX_INT32), "Tokens, reasoning included."),
            accepted("max_tool_calls", Integer(1), "Tools are called by the client."),
            Field(
                "include",
                ListOf(OneOf(INCLUDABLE), 0, 16),
                f"{LOGPROBS} reports them; reasoning is always told openly, and other items with "
                "something to include do not occur.",
            ),
            Field("top_logprobs", Integer(0, 20), "Alternatives to report with each token."),
            Field("metadata", FreeObject(Text(512), 16, "of metadata"), "Echoed, and stored."),
            Field("store", Flag(), "false: this response cannot be asked for or gone on with."),
            Field("stream", Flag(), "Answer with server-sent events, as tokens are sampled."),
            Field("stream_options", options, "Only with stream."),
            *progress_fields(),
            *sampling_fields(),
            bias_field(limits),
            *cache_fields(),
            *(field for field in accepted_fields() if field.name not in own),
            refused("access_programs", "there are none"),
            refused("background_options", "a response ends with its request"),
            refused("image", "answers are text"),
            refused("background", "a response ends with its request", neutral=(False,)),
            hint("context_management", "the conversation is taken as it is", neutral=([],)),
            refused("moderation", "nothing is moderated"),
        ),
        "Fields beyond OpenAI's are llama.cpp's. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def input_tokens_record(limits: ApiLimits) -> Record:
    """The body of ``/v1/responses/input_tokens``."""
    return Record(
        "CountResponseTokensRequest",
        (
            *_conversation_fields(limits),
            refused("personality", "say in instructions how to answer"),
        ),
    )
