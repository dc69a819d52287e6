"""Our extended work in Paddler 4.1's words, where nothing of it would be lost.

A Paddler agent knows three requests and refuses what it does not know. So it is asked only for
what they can say; for the rest there is the name of the first field that they cannot. Where
Paddler has no word for "as the model likes it", this is what it is told:

* ``max_tokens`` None: ``UNLIMITED_TOKENS``, more than slots usually hold;
* ``thinking`` None: on, as Paddler's own OpenAI surface has it, but off under a constraint, because
  Paddler refuses both together;
* a function tool without a description: an empty one.

Its ``Done`` has no ``finish`` and no ``timings``; whoever reads one must do without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar, assert_never

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.generation import (
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
    Tool,
    tool_schema_problem,
)
from paddler_trio.wire.trio.generate import (
    Constraint,
    ConversationPrompt,
    Embed,
    Generate,
    Rank,
    SamplingOverrides,
    TextInput,
    TextPrompt,
    TokenInput,
    TokenPrompt,
    Work,
)

UNLIMITED_TOKENS = 32_768

T = TypeVar("T")

_OURS = frozenset({"Generate", "Embed", "Rank"})


@attrs.frozen
class Inexpressible:
    """``field`` is the path of the first field that Paddler has no words for."""

    field: str


PaddlerBody: TypeAlias = Mapping[str, object]
"""``{"ContinueFromRawPrompt": {...}}`` and the like, as plain JSON."""


def paddler_body(body: Mapping[str, object]) -> PaddlerBody | Inexpressible:
    """The body of a request for a Paddler agent; one of Paddler's own comes back as it is.

    Raises:
      WireError: it is not a body at all.
    """
    if not _OURS & body.keys():
        return body
    return paddler_work(structure(body, Work))


def paddler_work(work: Work) -> PaddlerBody | Inexpressible:
    """This work as a body for a Paddler agent."""
    match work:
        case Generate():
            return _generation(work)
        case Embed():
            return _embedding(work)
        case Rank():
            return Inexpressible("rank")
    assert_never(work)


def _generation(work: Generate) -> PaddlerBody | Inexpressible:
    field = _unsaid(work)
    if field is not None:
        return Inexpressible(field)
    max_tokens = UNLIMITED_TOKENS if work.max_tokens is None else work.max_tokens
    constraint = work.constraint
    assert constraint is None or isinstance(constraint, GbnfGrammar | JsonSchemaGrammar)
    match work.prompt:
        case TokenPrompt():
            return Inexpressible("prompt.Tokens")
        case TextPrompt(text=text, parse_special=True):
            raw = ContinueFromRawPromptParams(text, max_tokens, constraint)
            return {"ContinueFromRawPrompt": unstructure(raw)}
        case TextPrompt():
            return Inexpressible("prompt.parse_special")
        case ConversationPrompt() as conversation:
            return _conversation(conversation, max_tokens, constraint)
    assert_never(work.prompt)


def _unsaid(work: Generate) -> str | None:
    """The first field beside the prompt that has no counterpart."""
    usual = SamplingOverrides()
    for each in attrs.fields(SamplingOverrides):
        if getattr(work.sampling, each.name) != getattr(usual, each.name):
            return f"sampling.{each.name}"
    if not _is_paddlers(work.constraint):
        return "constraint"
    if work.stop:
        return "stop"
    if work.logprobs is not None:
        return "logprobs"
    if not work.reuse_prefix:
        return "reuse_prefix"
    return "cache_salt" if work.cache_salt else None


def _is_paddlers(constraint: Constraint | None) -> bool:
    return constraint is None or isinstance(constraint, GbnfGrammar | JsonSchemaGrammar)


def _conversation(
    conversation: ConversationPrompt, max_tokens: int, constraint: GrammarConstraint | None
) -> PaddlerBody | Inexpressible:
    tools = () if conversation.tool_choice == "none" else conversation.tools
    unsaid = {
        "tool_choice": conversation.tool_choice not in ("auto", "none"),
        "tool_name": conversation.tool_name is not None,
        "parallel_tool_calls": bool(tools) and not conversation.parallel_tool_calls,
        "continue_final_message": conversation.continue_final_message,
        "max_reasoning_tokens": conversation.max_reasoning_tokens is not None,
        "template_kwargs": bool(conversation.template_kwargs),
        "thinking": constraint is not None and conversation.thinking is True,
    }
    for name, is_unsaid in unsaid.items():
        if is_unsaid:
            return Inexpressible(f"prompt.{name}")
    messages = _read(conversation.messages, ConversationMessage, "prompt.messages")
    if isinstance(messages, Inexpressible):
        return messages
    described = [_described(tool) for tool in tools]
    known_tools = _read(described, Tool, "prompt.tools")
    if isinstance(known_tools, Inexpressible):
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
        return Inexpressible("prompt.tools")
    return {"ContinueFromConversationHistory": unstructure(params)}


def _described(tool: Mapping[str, object]) -> Mapping[str, object]:
    function = tool.get("function")
    if isinstance(function, Mapping) and function.get("description") is None:
        return {**tool, "function": {**function, "description": ""}}
    return tool


def _read(
    values: Sequence[Mapping[str, object]], shape: type[T], field: str
) -> tuple[T, ...] | Inexpressible:
    """The values in Paddler's shape, which says everything that is not refused."""
    read: list[T] = []
    for index, value in enumerate(values):
        try:
            read.append(structure(value, shape))
        except WireError:
            return Inexpressible(f"{field}[{index}]")
    return tuple(read)


def _embedding(work: Embed) -> PaddlerBody | Inexpressible:
    """RMS is not among them: Paddler's wants an epsilon of the client's."""
    if work.normalize not in ("l2", "none"):
        return Inexpressible("normalize")
    if work.oversize != "report":
        return Inexpressible("oversize")
    documents: list[EmbeddingInputDocument] = []
    for index, each in enumerate(work.inputs):
        match each:
            case TextInput(text=text):
                documents.append(EmbeddingInputDocument(str(index), text))
            case TokenInput():
                return Inexpressible(f"inputs[{index}].Tokens")
    params = GenerateEmbeddingBatchParams(
        tuple(documents), L2() if work.normalize == "l2" else NoNormalization()
    )
    return {"GenerateEmbeddingBatch": unstructure(params)}
