"""The table of ``/v1/chat/completions``: every field, in one place, for reader and document."""

from __future__ import annotations

from functools import lru_cache

from paddler_trio.balancer.apis.adapter_choice import LORA
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    hint,
    record,
    refused,
    required,
    tag,
    tagged,
)
from paddler_trio.balancer.apis.generation_fields import (
    MAX_INT32,
    MODEL,
    accepted_fields,
    constraint_fields,
    ending_fields,
    refused_fields,
    service_fields,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.message_fields import (
    message_shape,
    schema_shape,
    tool_choice_shape,
    tool_shape,
)
from paddler_trio.balancer.apis.sampling_fields import bias_field, sampling_fields
from paddler_trio.balancer.apis.shapes import (
    Either,
    Flag,
    FreeObject,
    Integer,
    ListOf,
    OneOf,
    Shape,
    Text,
)

EFFORTS: dict[str, int | None] = {
    "none": 0,
    "minimal": 128,
    "low": 1024,
    "medium": 4096,
    "high": 16_384,
    "xhigh": None,
    "max": None,
}
"""Tokens of reasoning that a ``reasoning_effort`` allows; 0 is no reasoning, None no bound."""


def template_effort(effort: str) -> str:
    """Return the value for a template: those that read it have three."""
    return {"minimal": "low", "xhigh": "high", "max": "high"}.get(effort, effort)


def response_format_shape(limits: ApiLimits) -> Shape:
    schema = schema_shape(limits, is_form=True)
    kind = "The kind of format."
    described = record(
        "json_schema",
        accepted("name", Text(256), "A label."),
        accepted("description", Text(), "A label."),
        Field("schema", schema, "JSON Schema of the answer; absent: any object."),
        accepted("strict", Flag(), "Answers are held to the schema either way."),
    )
    return tagged(
        record("text format", tag("text", kind)),
        record(
            "json_object format",
            tag("json_object", kind),
            Field("schema", schema, "Its JSON Schema."),
        ),
        record(
            "json_schema format",
            tag("json_schema", kind),
            required("json_schema", described, "The schema."),
        ),
    )


def stream_fields() -> tuple[Field, ...]:
    """Return how an answer is delivered."""
    options = record(
        "stream_options",
        Field("include_usage", Flag(), "A last chunk carries the usage."),
        hint("continuous_usage_stats", "the last chunk has the usage", neutral=(False,)),
        hint("include_obfuscation", "chunks are not padded", neutral=(False,)),
    )
    return (
        Field("stream", Flag(), "Answer with server-sent events, as tokens are sampled."),
        Field("stream_options", options, "Only with stream."),
        *progress_fields(),
    )


def progress_fields() -> tuple[Field, ...]:
    """llama.cpp's fields for reports while an answer is generated."""
    return (
        Field("timings_per_token", Flag(), "With stream: every chunk carries timings."),
        Field("return_progress", Flag(), "With stream: chunks tell how far the prompt is."),
        Field(
            "sse_ping_interval",
            Integer(-1, 3600, clamps=True),
            "Seconds of silence after which a comment is sent; -1 for none.",
        ),
    )


def verbose_field() -> Field:
    return Field("verbose", Flag(), "Tell under __verbose what the model was given.")


def thinking_fields() -> tuple[Field, ...]:
    """Return whether the model reasons before it answers, and for how long."""
    thinking = record(
        "thinking",
        Field("type", OneOf(("enabled", "disabled", "adaptive")), "On or off."),
        Field("budget_tokens", Integer(0, MAX_INT32), "Tokens of reasoning."),
    )
    reasoning = record(
        "reasoning",
        Field("effort", OneOf(tuple(EFFORTS)), "As reasoning_effort."),
        Field("max_tokens", Integer(0, MAX_INT32), "As reasoning_budget_tokens."),
        Field("enabled", Flag(), "As enable_thinking."),
        Field("exclude", Flag(), "As include_reasoning: false."),
    )
    bounds = ", ".join(
        f"{word} {'off' if most == 0 else 'unbounded' if most is None else most}"
        for word, most in EFFORTS.items()
    )
    return (
        Field(
            "reasoning_effort",
            OneOf(tuple(EFFORTS)),
            f"Tokens of reasoning: {bounds}. Templates that know it see the word.",
        ),
        Field("enable_thinking", Flag(), "Whether to reason; absent: as the template has it."),
        Field(
            "reasoning_budget_tokens",
            Integer(-1, MAX_INT32),
            "Reasoning ends after so many tokens; 0 for none, -1 for no bound.",
            aliases=("thinking_budget_tokens", "thinking_token_budget", "thinking_budget"),
        ),
        Field("thinking", thinking, "The same, as others write it."),
        Field(
            "think",
            Either((Flag(), OneOf(tuple(EFFORTS)))),
            "enable_thinking or reasoning_effort, as Ollama writes them.",
        ),
        Field("reasoning", reasoning, "The same, as others write it."),
        Field("include_reasoning", Flag(), "false: reasoning is not part of the answer."),
        Field(
            "reasoning_format",
            OneOf(("auto", "deepseek", "deepseek-legacy", "none")),
            "none: reasoning and the marks around it are part of content; else it is "
            "reasoning_content.",
        ),
        hint("reasoning_budget_message", "reasoning is ended without words", neutral=("",)),
        hint("reasoning_control", "use reasoning_budget_tokens", neutral=(False,)),
    )


def _of_others() -> tuple[Field, ...]:
    """Return fields of other programs and of former times that nothing here follows."""
    return (
        hint("best_of", "use n", neutral=(1,)),
        hint("echo", "use /v1/completions", neutral=(False,)),
        hint("chat_template", "the operator sets the template"),
        hint("add_special_tokens", "the template has them", neutral=(False,)),
        hint("return_tokens", "use /tokenize", neutral=(False,)),
        hint("response_fields", "use /completion", neutral=([],)),
        hint("mm_processor_kwargs", "images are sized for the model"),
        # calls are answered as tool_calls, which a client of these two does not read
        refused("functions", "use tools", neutral=([],)),
        refused("function_call", "use tool_choice", neutral=("none", "auto")),
        hint("audio", "the model says nothing"),
        hint("modalities", "answers are text", neutral=(["text"],)),
        hint("prediction", "drafts are not made from a text, which changes only the pace"),
        hint("moderation", "nothing is moderated"),
        hint("verbosity", "say in words how long an answer to give", neutral=("medium",)),
        hint("web_search_options", "there is no web search"),
    )


@lru_cache(maxsize=8)
def chat_record(limits: ApiLimits) -> Record:
    """Return the body of a chat completion."""
    return record(
        "CreateChatCompletionRequest",
        MODEL,
        required(
            "messages",
            ListOf(message_shape(), 0, limits.max_messages, "max_messages"),
            "The conversation; if it is empty, the template's opening of an answer.",
        ),
        Field("n", Integer(1, limits.max_choices), "How many answers.", aliases=("n_cmpl",)),
        *ending_fields(limits),
        *sampling_fields(),
        bias_field(limits),
        Field(
            "logprobs",
            Either((Flag(), Integer(0, 20, clamps=True))),
            "Report the log probability of each token of content; a number is top_logprobs, too.",
        ),
        Field(
            "top_logprobs",
            Integer(0, 20, clamps=True),
            "And of so many alternatives; needs logprobs.",
        ),
        Field("n_probs", Integer(0, 100, clamps=True), "llama.cpp's word for both."),
        Field("response_format", response_format_shape(limits), "text, or JSON of a schema."),
        *constraint_fields(limits),
        Field(
            "tools",
            ListOf(tool_shape(limits), 0, limits.max_tools, "max_tools"),
            "What the model may call.",
        ),
        Field("tool_choice", tool_choice_shape(), "auto if there are tools, else none."),
        Field("parallel_tool_calls", Flag(), "false: at most one call."),
        Field("parse_tool_calls", Flag(), "false: calls stay text of the content."),
        *thinking_fields(),
        *stream_fields(),
        Field(
            "chat_template_kwargs",
            FreeObject(most_bytes=limits.max_schema_bytes, limit="max_schema_bytes"),
            "Further variables of the chat template.",
        ),
        Field("documents", ListOf(FreeObject(), 0, 1024), "For templates that know documents."),
        Field("add_generation_prompt", Flag(), "false: no opening of an answer is added."),
        Field(
            "continue_final_message",
            Flag(),
            "The answer goes on with the last message, which is the assistant's; absent, with "
            "add_generation_prompt absent: if there is text in it and no call.",
        ),
        verbose_field(),
        *service_fields(),
        *accepted_fields(),
        LORA,
        *refused_fields(),
        *_of_others(),
        note="Fields beyond OpenAI's are llama.cpp's, vLLM's or SGLang's. "
        "Unknown ones are ignored and reported.",
    )
