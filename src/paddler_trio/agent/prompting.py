"""From a request to tokens: everything about language that happens before the engine.

Runs in a worker thread, off the event loop and off the decode path (W22). What cannot be prompted
is a :class:`Refusal` that carries the ending result its client gets.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from paddler_trio.agent.chat_template import ChatTemplate
from paddler_trio.agent.generation import Generation, RawResult
from paddler_trio.agent.prompt_fence import PromptFence
from paddler_trio.agent.schema_grammar import SchemaNotConvertibleError, json_schema_to_gbnf
from paddler_trio.agent.token_classes import Markers, TokenClass, TokenClassifier, opening_class
from paddler_trio.agent.tool_calls import ToolCallReader
from paddler_trio.agent.tool_schemas import ToolSchemaError
from paddler_trio.agent.vocabulary import TokenizationError, Vocabulary
from paddler_trio.errors import ChatTemplateError, PaddlerError
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.desired_state import InferenceParameters
from paddler_trio.wire.engine_pipe import Grammar, Sampling
from paddler_trio.wire.generation import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    ConversationMessage,
    GbnfGrammar,
    GrammarConstraint,
    ImageUrlPart,
    JsonSchemaGrammar,
    TextPart,
)


class Refusal(PaddlerError):  # noqa: N818  # an answer to give, not a fault of ours
    """This request ends before it began; ``result`` is its ending."""

    def __init__(self, tag: str, text: str) -> None:
        super().__init__(f"{tag}: {text}")
        self.result: RawResult = {tag: text}


@attrs.frozen
class Language:
    """A loaded model as its prompts see it: all of it immutable, shared by every request."""

    vocabulary: Vocabulary
    template: ChatTemplate
    markers: Markers
    fence: PromptFence
    parameters: InferenceParameters
    fingerprint: str
    """The same on every agent that would answer alike: weights and template."""


@attrs.frozen
class Prompt:
    """What the engine needs to start, and the object that reads its answer."""

    tokens: list[int]
    max_tokens: int
    sampling: Sampling
    grammar: Grammar | None
    generation: Generation


def prompt_of(
    params: ContinueFromRawPromptParams | ContinueFromConversationHistoryParams,
    language: Language,
    *,
    seed: int,
    drawn: list[int],
) -> Prompt:
    """Render, tokenise and constrain; raises Refusal.

    Args:
      seed: of the draws.
      drawn: tokens of this answer that another agent produced: they are read again, so that
        everything that remembers them here does, and shown to nobody.
    """
    if params.max_tokens < 1:
        raise Refusal("SamplerError", f"max_tokens is {params.max_tokens}, must be at least 1")
    tools: ToolCallReader | None = None
    if isinstance(params, ContinueFromRawPromptParams):
        rendered = params.raw_prompt
        opening = TokenClass.UNDETERMINABLE
    else:
        if params.grammar is not None and params.enable_thinking:
            raise Refusal(
                "GrammarIncompatibleWithThinking",
                "a grammar constrains from the first token: set enable_thinking to false",
            )
        rendered, opening = _conversation(params, language)
        if params.parse_tool_calls and params.tools:
            tools = _tool_reader(params)
    try:
        tokens = language.vocabulary.tokenize_prompt(rendered)
    except TokenizationError as error:
        raise Refusal("SamplerError", str(error)) from error
    generation = Generation(TokenClassifier(language.markers, opening), tools)
    try:
        for token in drawn:
            generation.take(language.vocabulary.token_bytes(token, special=True), ends_turn=False)
    except TokenizationError as error:
        raise Refusal("SamplerError", f"cannot continue: {error}") from error
    return Prompt(
        tokens=tokens,
        max_tokens=params.max_tokens,
        sampling=sampling_of(language.parameters, seed=seed),
        grammar=_grammar(params.grammar),
        generation=generation,
    )


def sampling_of(parameters: InferenceParameters, *, seed: int) -> Sampling:
    """The cluster's sampling settings with this request's seed."""
    return Sampling(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        penalty_last_n=parameters.penalty_last_n,
        penalty_repeat=parameters.penalty_repeat,
        penalty_frequency=parameters.penalty_frequency,
        penalty_presence=parameters.penalty_presence,
        seed=seed,
    )


def _conversation(
    params: ContinueFromConversationHistoryParams, language: Language
) -> tuple[str, TokenClass]:
    messages = [_message(message, language.fence) for message in params.conversation_history]
    tools = [unstructure(tool) for tool in params.tools]

    def render(*, add_generation_prompt: bool) -> str:
        return language.template.render(
            messages,
            tools=[tool for tool in tools if isinstance(tool, dict)],
            add_generation_prompt=add_generation_prompt,
            enable_thinking=params.enable_thinking,
            bos_token=language.vocabulary.bos_text,
            eos_token=language.vocabulary.eos_text,
            extra={"nl_token": language.vocabulary.nl_text},
        )

    try:
        rendered = render(add_generation_prompt=params.add_generation_prompt)
        if not params.add_generation_prompt:
            return rendered, TokenClass.UNDETERMINABLE
        without = render(add_generation_prompt=False)
    except ChatTemplateError as error:
        raise Refusal("ChatTemplateError", str(error)) from error
    return rendered, opening_class(rendered, without, language.markers)


def _message(message: ConversationMessage, fence: PromptFence) -> Mapping[str, object]:
    """A message as templates expect it, texts from outside unable to pass for control tokens.

    What the assistant said is the model's own: templates look for its markers (W41).
    """
    is_own = message.role == "assistant"
    if isinstance(message.content, str):
        content = message.content if is_own else fence.guard(message.content)
        return {"role": message.role, "content": content}
    parts: list[dict[str, object]] = []
    for part in message.content:
        match part:
            case TextPart(text):
                parts.append({"type": "text", "text": text if is_own else fence.guard(text)})
            case ImageUrlPart():
                raise Refusal(
                    "MultimodalNotSupported",
                    "the model was loaded without a multimodal projection: it cannot see images",
                )
    return {"role": message.role, "content": parts}


def _tool_reader(params: ContinueFromConversationHistoryParams) -> ToolCallReader:
    tools = [tool for tool in map(unstructure, params.tools) if isinstance(tool, dict)]
    try:
        return ToolCallReader(tools)
    except ToolSchemaError as error:
        raise Refusal("ToolSchemaInvalid", str(error)) from error


def _grammar(constraint: GrammarConstraint | None) -> Grammar | None:
    match constraint:
        case None:
            return None
        case GbnfGrammar():
            return Grammar(constraint.grammar, constraint.root)
        case JsonSchemaGrammar():
            try:
                return Grammar(json_schema_to_gbnf(constraint.schema), "root")
            except SchemaNotConvertibleError as error:
                raise Refusal("GrammarSyntaxError", str(error)) from error
