"""The tables of Ollama's API: every field, in one place, for reader and document."""

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
    tagged,
)
from paddler_trio.balancer.apis.generation_fields import (
    MAX_INT32,
    MODEL,
    TIMEOUT,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.message_fields import schema_shape, tool_shape
from paddler_trio.balancer.apis.openai.chat_fields import EFFORTS
from paddler_trio.balancer.apis.prompts import PromptShape
from paddler_trio.balancer.apis.sampling_fields import sampling_fields
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

_LOADING = (
    *("numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "vocab_only", "use_mmap"),
    *("use_mlock", "num_thread", "embedding_only", "logits_all"),
)
"""Options of how a model is loaded."""
KEEP_ALIVE = accepted(
    "keep_alive", Anything(), "A model stays loaded for as long as its operator wants it."
)
_STREAM = Field("stream", Flag(), "false: one document; absent: a line of JSON for each piece.")
_TOOL_NAME = Text(256)
_NO_ACCOUNTS = "there are no accounts of a registry"


def _images(limits: ApiLimits) -> Field:
    return Field(
        "images",
        ListOf(Text(least_chars=1), 0, limits.max_images, "max_images"),
        "Base64, or data URIs; they stand before the text.",
    )


def _message_shape(limits: ApiLimits) -> Shape:
    content = Field("content", Text(), "The text; absent: none.")
    function = record(
        "called function",
        required("name", Text(256, least_chars=1), "Of the tool."),
        Field("arguments", Either((FreeObject(), Text())), "The arguments; absent: none."),
        accepted("index", Integer(0), "The order is what counts."),
        accepted("description", Text(), "The tool itself says it."),
    )
    call = record(
        "tool call",
        Field("id", Text(256), "What the tool's answer refers to."),
        accepted("type", Text(64), "Functions are what there is."),
        required("function", function, "What was called."),
    )

    unseen = hint("images", "images are shown by users", neutral=([],))

    def message(role: str, *fields: Field, images: Field = unseen) -> Record:
        who = required("role", OneOf((role,)), "Who speaks.")
        return record(f"{role} message", who, content, images, *fields)

    return tagged(
        message("system"),
        message("developer"),
        message("user", images=_images(limits)),
        message(
            "assistant",
            Field("thinking", Text(), "What it thought; templates decide whether to show it."),
            Field("tool_calls", ListOf(call, 0, 256), "Calls it made."),
        ),
        message(
            "tool",
            Field("tool_name", _TOOL_NAME, "The tool that answers.", aliases=("name",)),
            Field("tool_call_id", Text(256), "The call this answers."),
        ),
        by="role",
        reads_others_as="user",
    )


@lru_cache(maxsize=8)
def options_record(limits: ApiLimits) -> Record:
    """Return the members of ``options``."""
    stop_text = Text(limits.max_stop_chars, "max_stop_chars")
    return record(
        "options",
        Field(
            "num_predict",
            Integer(-2, MAX_INT32, clamps=True),
            "Tokens of the answer, reasoning included; 0 and less, or absent: as many as fit.",
        ),
        Field(
            "stop",
            Either((stop_text, ListOf(stop_text, 0, limits.max_stop_texts, "max_stop_texts"))),
            "Texts that end the answer and are not part of it; empty ones do nothing.",
        ),
        *sampling_fields(),
        hint("num_ctx", "the operator sets the context of a slot"),
        hint("num_keep", "contexts are not shifted", neutral=(0, -1)),
        hint("penalize_newline", "a line break is a token like others", neutral=(True,)),
        hint("tfs_z", "there is no such stage any more", neutral=(1,)),
        *(accepted(name, Anything(), "The operator decides how to load.") for name in _LOADING),
        note="Members of `options` of both.",
    )


def _shared_fields(limits: ApiLimits) -> tuple[Field, ...]:
    schema = schema_shape(limits, is_form=True)
    return (
        MODEL,
        _STREAM,
        Field(
            "format",
            Either((OneOf(("", "json")), schema)),
            "json: any JSON object; or the JSON Schema of the answer.",
        ),
        Field(
            "options", options_record(limits), "How tokens are sampled, and when the answer ends."
        ),
        Field(
            "think",
            Either((Flag(), OneOf(tuple(EFFORTS)))),
            "Whether to reason, or how long; absent: as the template has it.",
        ),
        Field("logprobs", Flag(), "Report the log probability of each token of content."),
        Field("top_logprobs", Integer(0, 20, clamps=True), "And of so many alternatives."),
        KEEP_ALIVE,
        LORA,
        TIMEOUT,
        hint("truncate", "a prompt that does not fit is an error", neutral=(False,)),
        hint("shift", "contexts are not shifted", neutral=(False,)),
    )


@lru_cache(maxsize=8)
def chat_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/chat``."""
    return record(
        "OllamaChatRequest",
        Field(
            "messages",
            ListOf(_message_shape(limits), 0, limits.max_messages, "max_messages"),
            "The conversation. Without any, the model is loaded, and nothing is said.",
        ),
        Field(
            "tools",
            ListOf(tool_shape(limits), 0, limits.max_tools, "max_tools"),
            "What the model may call.",
        ),
        *_shared_fields(limits),
        note="Answers a conversation. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def generate_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/generate``."""
    why = "images are read here, and not made"
    return record(
        "OllamaGenerateRequest",
        Field(
            "prompt",
            Text(),
            "What the user says. Without it the model is loaded, and nothing is said.",
        ),
        Field(
            "suffix",
            Text(),
            "The text behind what is to be written, for a model that was trained to fill in the "
            "middle. What is too long is cut.",
        ),
        _images(limits),
        Field("system", Text(), "What the system says, before the prompt."),
        Field(
            "template",
            Text(limits.max_grammar_bytes, "max_grammar_bytes"),
            "In place of the model's own: a text with {{ .System }}, {{ .Prompt }}, "
            "{{ .Response }}, {{ if }}, {{ else }} and {{ end }}.",
        ),
        Field("raw", Flag(), "true: the prompt is continued as it stands, without a template."),
        Field(
            "context",
            ListOf(Integer(0, MAX_INT32)),
            "The tokens of an earlier answer, which has them as context: the prompt goes on from "
            "there.",
        ),
        *_shared_fields(limits),
        *(refused(name, why, neutral=(0,)) for name in ("width", "height", "steps")),
        note="Answers one prompt. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def embed_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/embed``."""
    return record(
        "OllamaEmbedRequest",
        MODEL,
        required("input", PromptShape(), "A text, or a list of texts."),
        Field("truncate", Flag(), "false: what is longer than the batch is an error, and not cut."),
        Field(
            "dimensions",
            Integer(1, 2**20),
            "Vectors are cut to so many numbers and made of length 1 again.",
        ),
        accepted("options", FreeObject(), "Nothing is sampled."),
        KEEP_ALIVE,
        TIMEOUT,
        note="Vectors of length 1, one for each input. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def embeddings_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/embeddings``, which ``/api/embed`` has superseded."""
    return record(
        "OllamaEmbeddingsRequest",
        MODEL,
        required("prompt", Text(), "The text."),
        accepted("options", FreeObject(), "Nothing is sampled."),
        KEEP_ALIVE,
        TIMEOUT,
        note="One vector, as the model gives it. Unknown fields are ignored and reported.",
    )


_NAME = Field(
    "model",
    Text(512),
    "Its name; `:latest` may be left out.",
    aliases=("name",),
    neutral=("",),  # Ollama's own program sends both, and one of them empty
)


@lru_cache(maxsize=8)
def show_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/show``."""
    return record(
        "OllamaShowRequest",
        _NAME,
        accepted("verbose", Flag(), "All that is known is told anyway."),
        hint("system", "the answer is about the model alone", neutral=("",)),
        hint("template", "the answer is about the model alone", neutral=("",)),
        hint("options", "the answer is about the model alone", neutral=({},)),
        note="Describes one model. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def pull_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/pull``."""
    return record(
        "OllamaPullRequest",
        _NAME,
        _STREAM,
        accepted("insecure", Flag(), "Nothing is fetched by request."),
        *(hint(name, _NO_ACCOUNTS, neutral=("",)) for name in ("username", "password")),
        note="Succeeds for a model that is served. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def create_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/create``."""
    files = "files are the operator's: `paddler-trio fleet apply` serves them"
    return record(
        "OllamaCreateRequest",
        Field(
            "model",
            Text(512),
            "The preset's name.",
            is_required=True,
            aliases=("name",),
            neutral=("",),
        ),
        Field("from", Text(512), "The deployment or the preset that it is made of."),
        Field("system", Text(), "What the system says, before the client's own text."),
        Field("parameters", options_record(limits), "What requests that do not say get."),
        _STREAM,
        refused("modelfile", "send from, system and parameters", neutral=("",)),
        refused("template", "the template is the deployment's", neutral=("",)),
        refused("messages", "a preset has no conversation of its own", neutral=([],)),
        refused("adapters", "adapters are the deployment's", neutral=({},)),
        refused("files", files, neutral=({},)),
        *(refused(name, files, neutral=("",)) for name in ("quantize", "quantization")),
        hint("license", "it is the file's", neutral=("", [])),
        note="Makes a preset, with a key that may manage. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def copy_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/copy``."""
    return record(
        "OllamaCopyRequest",
        required("source", Text(512, least_chars=1), "A model."),
        required("destination", Text(512, least_chars=1), "Its other name."),
        note="Makes a preset, with a key that may manage. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def delete_record(limits: ApiLimits) -> Record:
    """Return the body of ``/api/delete``."""
    return record(
        "OllamaDeleteRequest",
        _NAME,
        note="Deletes a preset or a deployment, with a key that may manage. Unknown fields are "
        "ignored and reported.",
    )
