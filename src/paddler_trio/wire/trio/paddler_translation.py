"""Our work as Paddler 4.1's requests, where nothing of it is lost.

A Paddler agent takes three requests and refuses unknown fields. So only work that
these requests express is sent to it; for other work the first unsupported field is named. Where
Paddler has no value for "the model's default", it gets:

* ``max_tokens`` None: ``UNLIMITED_TOKENS``, more than slots usually hold;
* ``thinking`` None: on, as Paddler's own OpenAI surface has it, but off under a constraint, because
  Paddler refuses both together;
* a function tool without a description: an empty one.

Its ``Done`` has neither ``finish`` nor ``timings``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, assert_never

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.request_params import (
    L2,
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    ConversationMessage,
    EmbeddingInputDocument,
    GbnfGrammar,
    GenerateEmbeddingBatchParams,
    GrammarConstraint,
    JsonSchemaGrammar,
    NoNormalization,
    PaddlerWork,
    Tool,
    tool_schema_problem,
)
from paddler_trio.wire.trio.work import (
    ConversationPrompt,
    Embed,
    Generate,
    InfillPrompt,
    Rank,
    SamplingOverrides,
    TextInput,
    TextPrompt,
    TokenInput,
    TokenPrompt,
    TrioWork,
)

UNLIMITED_TOKENS = 32_768

T = TypeVar("T")


@attrs.frozen
class UnsupportedByPaddler:
    """``field`` is the path of the first field that has no counterpart in Paddler's requests."""

    field: str


def paddler_work(work: TrioWork) -> PaddlerWork | UnsupportedByPaddler:
    """Return the same work as one of Paddler's requests."""
    match work:
        case Generate():
            return _generation(work)
        case Embed():
            return _embedding(work)
        case Rank():
            return UnsupportedByPaddler("rank")
    assert_never(work)


def _generation(work: Generate) -> PaddlerWork | UnsupportedByPaddler:
    field = _unsupported_field(work)
    if field is not None:
        return UnsupportedByPaddler(field)
    max_tokens = UNLIMITED_TOKENS if work.max_tokens is None else work.max_tokens
    constraint = work.constraint
    assert isinstance(constraint, GbnfGrammar | JsonSchemaGrammar | None)
    match work.prompt:
        case TokenPrompt():
            return UnsupportedByPaddler("prompt.Tokens")
        case TextPrompt(text=text, parse_special=True):
            return ContinueFromRawPromptParams(text, max_tokens, constraint)
        case TextPrompt():
            return UnsupportedByPaddler("prompt.parse_special")
        case InfillPrompt():
            return UnsupportedByPaddler("prompt.Infill")
        case ConversationPrompt() as conversation:
            return _conversation(conversation, max_tokens, constraint)
    assert_never(work.prompt)


def _unsupported_field(work: Generate) -> str | None:
    """Return the first field beside the prompt that has no counterpart."""
    usual = SamplingOverrides()
    for each in attrs.fields(SamplingOverrides):
        if getattr(work.sampling, each.name) != getattr(usual, each.name):
            return f"sampling.{each.name}"
    if not isinstance(work.constraint, GbnfGrammar | JsonSchemaGrammar | None):
        return "constraint"
    if work.stop:
        return "stop"
    if work.logprobs is not None:
        return "logprobs"
    if not work.reuse_prefix:
        return "reuse_prefix"
    if work.lora:
        return "lora"
    if work.context is not None:
        return "context"
    return "cache_salt" if work.cache_salt else None


def _conversation(
    conversation: ConversationPrompt, max_tokens: int, constraint: GrammarConstraint | None
) -> PaddlerWork | UnsupportedByPaddler:
    tools = () if conversation.tool_choice == "none" else conversation.tools
    unsupported = {
        "tool_choice": conversation.tool_choice not in ("auto", "none"),
        "tool_name": conversation.tool_name is not None,
        "parallel_tool_calls": bool(tools) and not conversation.parallel_tool_calls,
        "continue_final_message": conversation.continue_final_message,
        "max_reasoning_tokens": conversation.max_reasoning_tokens is not None,
        "template_kwargs": bool(conversation.template_kwargs),
        "thinking": constraint is not None and conversation.thinking is True,
    }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            return UnsupportedByPaddler(f"prompt.{name}")
    messages = _read(conversation.messages, ConversationMessage, "prompt.messages")
    if isinstance(messages, UnsupportedByPaddler):
        return messages
    described = [_with_description(tool) for tool in tools]
    known_tools = _read(described, Tool, "prompt.tools")
    if isinstance(known_tools, UnsupportedByPaddler):
        return known_tools
    thinking = conversation.thinking
    params = ContinueFromConversationHistoryParams(
        add_generation_prompt=conversation.add_generation_prompt,
        conversation_history=messages,
        enable_thinking=constraint is None if thinking is None else thinking,
        max_tokens=max_tokens,
        grammar=constraint,
        parse_tool_calls=bool(known_tools) and not conversation.raw_tool_calls,
        tools=known_tools,
    )
    if tool_schema_problem(params) is not None:
        return UnsupportedByPaddler("prompt.tools")
    return params


def _with_description(tool: Mapping[str, object]) -> Mapping[str, object]:
    function = tool.get("function")
    if isinstance(function, Mapping) and function.get("description") is None:
        return {**tool, "function": {**function, "description": ""}}
    return tool


def _read(
    values: Sequence[Mapping[str, object]], shape: type[T], field: str
) -> tuple[T, ...] | UnsupportedByPaddler:
    """Return the values in Paddler's shape; a value that it reads loses nothing."""
    read: list[T] = []
    for index, value in enumerate(values):
        try:
            read.append(structure(value, shape))
        except WireError:
            return UnsupportedByPaddler(f"{field}[{index}]")
    return tuple(read)


def _embedding(work: Embed) -> PaddlerWork | UnsupportedByPaddler:
    """Return an embedding as Paddler's request. RMS is unsupported: Paddler's needs an epsilon from
    the client."""
    if work.normalize not in ("l2", "none"):
        return UnsupportedByPaddler("normalize")
    if work.oversize != "report":
        return UnsupportedByPaddler("oversize")
    documents: list[EmbeddingInputDocument] = []
    for index, each in enumerate(work.inputs):
        match each:
            case TextInput(text=text):
                documents.append(EmbeddingInputDocument(str(index), text))
            case TokenInput():
                return UnsupportedByPaddler(f"inputs[{index}].Tokens")
    normalization = L2() if work.normalize == "l2" else NoNormalization()
    return GenerateEmbeddingBatchParams(tuple(documents), normalization)
