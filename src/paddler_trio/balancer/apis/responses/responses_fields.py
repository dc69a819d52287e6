"""The tables of ``/v1/responses`` and ``/v1/responses/input_tokens``."""

from __future__ import annotations

from functools import lru_cache

from paddler_trio.balancer.apis.adapter_choice import LORA
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    attachment,
    hint,
    parts_of,
    record,
    refused,
    required,
    sound,
    tag,
    tagged,
    text_or_parts,
)
from paddler_trio.balancer.apis.generation_fields import (
    MAX_INT32,
    METADATA,
    MODEL,
    accepted_fields,
    service_fields,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.message_fields import allowed_tools_fields, schema_shape
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS, progress_fields
from paddler_trio.balancer.apis.responses.client_tools import KINDS, NAMESPACE
from paddler_trio.balancer.apis.sampling_fields import bias_field, sampling_fields
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
ITEM_REFERENCE = "item_reference"
_NAME = Text(256, least_chars=1)
_STATUS = accepted(
    "status", OneOf(("in_progress", "completed", "incomplete")), "What is given is what there is."
)
_LOOSE_STATUS = accepted("status", Text(64), "What is given is what there is.")
_ID = accepted("id", Text(256), "Items are taken as they are given.")
_NAMESPACE = Field("namespace", Text(256), "Of the tool; its name has it for the model.")


def _text_part(kind: str) -> Record:
    return record(
        f"{kind} part",
        tag(kind),
        required("text", Text(), "The text."),
        accepted("annotations", ListOf(Anything()), "Part of our own answers."),
        accepted("logprobs", ListOf(Anything()), "Part of our own answers."),
        accepted("parsed", Anything(), "What a client made of the text."),
        accepted("prompt_cache_breakpoint", Anything(), "Prefixes are found by tokens."),
    )


def _image_part() -> Record:
    address = "A data URI, or an address on a host that --image-host allows."
    return record(
        "input_image part",
        tag("input_image"),
        required("image_url", Text(least_chars=1), address),
        accepted("detail", OneOf(("auto", "low", "high")), "Images are sized for the model."),
        refused("file_id", "there are no stored files; send a data URI"),
    )


def _hosted_items(output: Shape, tools: Shape) -> tuple[Record, ...]:
    """Return what is sent again of tools that are no functions: calls and their results."""
    call_id = Field("call_id", Text(256), "What the output refers to.")
    action = required("action", FreeObject(), "Told to the model as the arguments.")

    def item(kind: str, *fields: Field) -> Record:
        caller = accepted("caller", Anything(), "The model calls tools itself.")
        return record(f"{kind} item", tag(kind), *fields, _ID, _LOOSE_STATUS, caller)

    def result(kind: str, *fields: Field) -> Record:
        said = Field("output", output, "What the tool said.")
        return item(kind, call_id, *(fields or (said,)))

    shell_output = ListOf(Anything())
    return (
        item(
            "custom_tool_call",
            call_id,
            required("name", _NAME, "Of the tool."),
            required("input", Text(), "Told to the model as the argument of a function."),
            _NAMESPACE,
        ),
        result("custom_tool_call_output"),
        item("local_shell_call", call_id, action),
        result("local_shell_call_output"),
        item("shell_call", call_id, action, accepted("environment", Anything(), "The client's.")),
        result(
            "shell_call_output",
            Field("output", Either((Text(), shell_output)), "What the commands wrote."),
            accepted("max_output_length", Anything(), "The client cut it."),
        ),
        item(
            "apply_patch_call",
            call_id,
            required("operation", FreeObject(), "Told to the model as the arguments."),
        ),
        result("apply_patch_call_output"),
        item(
            "tool_search_call",
            call_id,
            Field("arguments", Anything(), "What was searched for."),
            accepted("execution", Text(64), "It was searched for."),
        ),
        result(
            "tool_search_output",
            Field("tools", tools, "Offered to the model from here on."),
            accepted("execution", Text(64), "It was searched for."),
        ),
        item(
            "mcp_call",
            required("name", _NAME, "Of the tool."),
            Field("arguments", Text(), "JSON text of the arguments."),
            Field("output", Text(), "What the tool said."),
            Field("error", Anything(), "What went wrong instead."),
            accepted("server_label", Text(256), "The call has been made."),
            accepted("approval_request_id", Text(256), "The call has been made."),
        ),
    )


def _function_items(output: Shape) -> tuple[Record, Record]:
    return (
        record(
            "function_call item",
            tag("function_call"),
            required("call_id", _NAME, "What the output refers to."),
            required("name", _NAME, "Of the tool."),
            required("arguments", Text(), "JSON text of the arguments."),
            _ID,
            _STATUS,
            accepted("parsed_arguments", Anything(), "What a client made of the arguments."),
            accepted("caller", FreeObject(), "The model calls tools itself."),
            _NAMESPACE,
        ),
        record(
            "function_call_output item",
            tag("function_call_output"),
            required("call_id", _NAME, "The call this answers."),
            required("output", output, "What the tool said."),
            _ID,
            _STATUS,
            accepted("name", Text(256), "The call has it."),
            accepted("caller", FreeObject(), "The model calls tools itself."),
        ),
    )


def item_shape(tools: Shape) -> Shape:
    """Return one item of an input: a message, a call, its output, reasoning, or a reference to one.
    Items of other kinds are left out and reported."""
    text, image = _text_part("input_text"), _image_part()
    refusal = record("refused part", tag("refusal"), required("refusal", Text(), "Its text."))
    attached = (
        attachment("input_file", "file_data", "file_id", "file_url", "detail"),
        sound(),
    )
    content = text_or_parts(text, _text_part("output_text"), image, refusal, *attached)
    output = text_or_parts(text, _text_part("output_text"), image, *attached)
    return tagged(
        record(
            "input message",
            tag("message", is_required=False),
            required("role", OneOf(("user", "assistant", "system", "developer")), "Who speaks."),
            required("content", content, "A text, or parts."),
            _ID,
            _STATUS,
            accepted("phase", Text(64), "Answers have one phase."),
        ),
        *_function_items(output),
        *_hosted_items(output, tools),
        record(
            "reasoning item",
            tag("reasoning"),
            Field("summary", parts_of(_text_part("summary_text")), "Its gist."),
            Field(
                "content",
                parts_of(_text_part("reasoning_text"), _text_part("text")),
                "What was thought; templates decide whether to show it.",
            ),
            _ID,
            _STATUS,
            accepted("encrypted_content", Text(), "It cannot be read."),
        ),
        record(
            "item_reference item",
            tag(ITEM_REFERENCE),
            required("id", Text(256), "An item of a stored response's output; it stands here."),
        ),
        default="message",
        ignores_others=True,
    )


def _tool_shape(limits: ApiLimits) -> Shape:
    echoed = FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes")
    others = (
        hint("defer_loading", "every tool is told to the model", neutral=(False,)),
        hint("allowed_callers", "only the model calls tools", neutral=(["direct"],)),
    )
    function = record(
        "function tool",
        tag("function"),
        required("name", _NAME, "What the model calls it."),
        Field("description", Text(), "What it does, for the model."),
        Field("parameters", schema_shape(limits), "JSON Schema of its arguments; absent: none."),
        Field("strict", Flag(), "Echoed; arguments are held to the schema either way."),
        accepted("output_schema", echoed, "Outputs are taken as they are."),
        *others,
    )
    custom = record(
        "custom tool",
        tag("custom"),
        required("name", _NAME, "What the model calls it."),
        Field("description", Text(), "What it does, for the model."),
        Field("format", echoed, "Of its input; a grammar is told to the model in words."),
        *others,
    )
    inside = ListOf(tagged(function, custom, ignores_others=True), 0, limits.max_tools, "max_tools")
    return tagged(
        function,
        custom,
        record("local_shell tool", tag("local_shell")),
        record(
            "shell tool",
            tag("shell"),
            Field("environment", echoed, "Only a local one: the client runs the commands."),
            *others,
        ),
        record("apply_patch tool", tag("apply_patch"), *others),
        record(
            "tool_search tool",
            tag("tool_search"),
            Field("execution", OneOf(("client", "server")), "Offered if it is the client's."),
            Field("description", Text(), "What it does, for the model."),
            Field("parameters", schema_shape(limits), "JSON Schema of its arguments."),
        ),
        record(
            "namespace tool",
            tag(NAMESPACE),
            required("name", _NAME, "The names of its tools begin with it, for the model."),
            Field("description", Text(limits.max_schema_bytes, "max_schema_bytes"), "Echoed."),
            required("tools", inside, "Its tools."),
        ),
        ignores_others=True,
    )


def _tool_choice_shape() -> Shape:
    name = required("name", _NAME, "Of the tool.")
    named = (
        record("chosen function", tag("function"), name, _NAMESPACE),
        record("chosen tool", tag("custom"), name, _NAMESPACE),
        *(record(f"chosen {kind}", tag(kind)) for kind in KINDS if kind != "custom"),
    )
    allowed = record("allowed functions", tag("allowed_tools"), *allowed_tools_fields(*named))
    return Either((OneOf(("none", "auto", "required")), tagged(*named, allowed)))


def _text_shape(limits: ApiLimits) -> Shape:
    kinds = tagged(
        record("plain text", tag("text")),
        record("json_object text", tag("json_object")),
        record(
            "json_schema text",
            tag("json_schema"),
            Field("name", Text(256), "A label, echoed."),
            required("schema", schema_shape(limits, is_form=True), "JSON Schema of the answer."),
            Field(
                "description",
                Text(limits.max_schema_bytes, "max_schema_bytes"),
                "A label, echoed.",
            ),
            Field("strict", Flag(), "Echoed; answers are held to the schema either way."),
        ),
    )
    return record(
        "text config",
        Field("format", kinds, "text, or JSON."),
        hint("verbosity", "say in words how long an answer to give", neutral=("medium",)),
    )


def _conversation_fields(limits: ApiLimits) -> tuple[Field, ...]:
    tools = ListOf(_tool_shape(limits), 0, limits.max_tools, "max_tools")
    items = ListOf(item_shape(tools), 0, limits.max_messages, "max_messages")
    effort = Field("effort", OneOf(tuple(EFFORTS)), "As reasoning_effort of chat completions.")
    words = OneOf(("auto", "concise", "detailed"))
    gist = (
        "Reasoning is told as it is: as content of reasoning items, or with any of these words as "
        "their summary, where clients show it."
    )
    reasoning = record(
        "reasoning config",
        effort,
        Field("summary", words, gist),
        Field("generate_summary", words, "An old name of summary."),
    )
    return (
        MODEL,
        Field("input", Either((Text(), items)), "A text, or items."),
        Field("instructions", Text(), "What the system says first; of this response alone."),
        Field(
            "previous_response_id",
            Text(256),
            "Goes on after a stored response: its input and output come first.",
        ),
        Field(
            "tools",
            tools,
            "What the model may call: functions, and tools that the client runs, as functions. "
            "Tools that a server runs are ignored.",
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
    """Return the body of ``/v1/responses``."""
    options = record(
        "responses stream_options",
        hint("include_obfuscation", "events are not padded", neutral=(False,)),
    )
    own = {"store", "metadata", "id_slot"}
    return record(
        "CreateResponseRequest",
        *_conversation_fields(limits),
        Field("max_output_tokens", Integer(1, MAX_INT32), "Tokens, reasoning included."),
        LORA,
        accepted("max_tool_calls", Integer(1), "Tools are called by the client."),
        Field(
            "include",
            ListOf(OneOf(INCLUDABLE), 0, 16),
            f"{LOGPROBS} reports them; reasoning is always told openly, and other items with "
            "something to include do not occur.",
        ),
        Field("top_logprobs", Integer(0, 20), "Alternatives to report with each token."),
        Field("metadata", METADATA, "Echoed, and stored."),
        Field("store", Flag(), "false: this response cannot be asked for or gone on with."),
        Field("stream", Flag(), "Answer with server-sent events, as tokens are sampled."),
        Field("stream_options", options, "Only with stream."),
        *progress_fields(),
        *sampling_fields(),
        bias_field(limits),
        *service_fields(),
        *(field for field in accepted_fields() if field.name not in own),
        refused("access_programs", "there are none"),
        refused("background_options", "a response ends with its request"),
        refused("image", "answers are text"),
        refused("background", "a response ends with its request", neutral=(False,)),
        hint("context_management", "the conversation is taken as it is", neutral=([],)),
        refused("moderation", "nothing is moderated"),
        note="Fields beyond OpenAI's are llama.cpp's. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def input_tokens_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/responses/input_tokens``."""
    return record(
        "CountResponseTokensRequest",
        *_conversation_fields(limits),
        refused("personality", "say in instructions how to answer"),
    )
