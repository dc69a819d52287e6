"""Paddler's requests: generation from a prompt or a conversation, and embeddings.

The balancer checks their types and ``tool_schema_problem``; the agent checks URLs, grammars and
schemas.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import attrs

from paddler_trio.wire.scalars import Float32, Int32, float32
from paddler_trio.wire.shape import (
    OMITTED,
    WIRE_NAME,
    Reader,
    ShapeError,
    Writer,
    describe,
    reader_of,
    register,
    writer_of,
)
from paddler_trio.wire.tags import external_tag, internal_tag, struct, through, unit


@attrs.frozen
class GbnfGrammar:
    """A grammar in llama.cpp's GBNF; generation starts from the rule named ``root``."""

    grammar: str
    root: str


@attrs.frozen
class JsonSchemaGrammar:
    """A JSON Schema as *text*; the agent turns it into a grammar."""

    schema: str


GrammarConstraint: TypeAlias = GbnfGrammar | JsonSchemaGrammar
internal_tag(GrammarConstraint, "type", {"gbnf": GbnfGrammar, "json_schema": JsonSchemaGrammar})


@attrs.frozen
class ParametersSchema:
    """The part of JSON Schema that a tool may use to describe its arguments.

    ``properties`` and ``additional_properties`` are JSON values as they came. None of the
    optional fields is ever written as null.
    """

    type: str
    properties: dict[str, object] | None = attrs.field(default=None, metadata=OMITTED)
    required: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    additional_properties: object = attrs.field(
        default=None, metadata={**OMITTED, WIRE_NAME: "additionalProperties"}
    )


@attrs.frozen
class Function:
    """A function the model may call; without ``parameters`` it has no schema."""

    name: str
    description: str
    parameters: ParametersSchema | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen
class Tool:
    """A tool; functions are the only kind there is."""

    function: Function


internal_tag(Tool, "type", {"function": Tool})


@attrs.frozen
class TextPart:
    """Text inside a message made of parts."""

    text: str


@attrs.frozen
class ImageUrl:
    """Agents take ``data:<anything>,<standard base64>`` only, the balancer takes anything."""

    url: str


@attrs.frozen
class ImageUrlPart:
    """An image inside a message made of parts."""

    image_url: ImageUrl


ContentPart: TypeAlias = TextPart | ImageUrlPart
internal_tag(ContentPart, "type", {"text": TextPart, "image_url": ImageUrlPart})

_Parts: TypeAlias = tuple[ContentPart, ...]
MessageContent: TypeAlias = Annotated[str | _Parts, "untagged"]


def _content_reader(_: object) -> Reader:
    read_parts = reader_of(_Parts)

    def read(value: object, _: object) -> object:
        if type(value) is str:
            return value
        if type(value) is not list:
            raise ShapeError(f"expected a string or an array of parts, got {describe(value)}")
        return read_parts(value, _Parts)

    return read


def _content_writer(_: object) -> Writer:
    write_parts = writer_of(_Parts)
    return lambda value: value if isinstance(value, str) else write_parts(value)


register(MessageContent, _content_reader, _content_writer)


@attrs.frozen
class ConversationMessage:
    """One turn; any ``role`` is passed on to the template."""

    role: str
    content: MessageContent


@attrs.frozen
class ContinueFromRawPromptParams:
    """Continue a text as it stands, without a chat template. ``max_tokens`` is not validated."""

    raw_prompt: str
    max_tokens: Int32
    grammar: GrammarConstraint | None = None


@attrs.frozen
class ContinueFromConversationHistoryParams:
    """Answer a conversation, rendered by the model's chat template."""

    add_generation_prompt: bool
    conversation_history: tuple[ConversationMessage, ...]
    enable_thinking: bool
    max_tokens: Int32
    grammar: GrammarConstraint | None = None
    parse_tool_calls: bool = False
    tools: tuple[Tool, ...] = ()


@attrs.frozen
class L2:
    """Scale to Euclidean length 1."""


@attrs.frozen
class NoNormalization:
    """Leave the embedding as the model gave it."""


@attrs.frozen
class RmsNorm:
    """Scale to a root mean square of 1; ``epsilon`` keeps the division finite."""

    epsilon: Float32 = attrs.field(converter=float32)


NormalizationMethod: TypeAlias = L2 | NoNormalization | RmsNorm
external_tag(NormalizationMethod, unit(L2), unit(NoNormalization, "None"), struct(RmsNorm))


@attrs.frozen
class EmbeddingInputDocument:
    """A text to embed; ``id`` comes back with its embedding and need not be unique."""

    id: str
    content: str


@attrs.frozen
class GenerateEmbeddingBatchParams:
    """Documents to embed; may be empty."""

    input_batch: tuple[EmbeddingInputDocument, ...]
    normalization_method: NormalizationMethod


PaddlerWork: TypeAlias = (
    ContinueFromConversationHistoryParams
    | ContinueFromRawPromptParams
    | GenerateEmbeddingBatchParams
)
"""The work that an agent can be asked to compute, in Paddler's own requests."""
GENERATION_VARIANTS: Final = (
    through("ContinueFromConversationHistory", ContinueFromConversationHistoryParams),
    through("ContinueFromRawPrompt", ContinueFromRawPromptParams),
)
WORK_VARIANTS: Final = (
    *GENERATION_VARIANTS,
    through("GenerateEmbeddingBatch", GenerateEmbeddingBatchParams),
)
external_tag(PaddlerWork, *WORK_VARIANTS)


def tool_schema_problem(params: ContinueFromConversationHistoryParams) -> str | None:
    """Return why these tools must be refused, in Paddler's words; ``None`` if they are fine.

    A name in ``required`` must be a key of ``properties``, when a tool has both.
    """
    for tool in params.tools:
        schema = tool.function.parameters
        if schema is None or schema.properties is None or schema.required is None:
            continue
        for name in schema.required:
            if name not in schema.properties:
                return f"Required field '{name}' not found in properties"
    return None
