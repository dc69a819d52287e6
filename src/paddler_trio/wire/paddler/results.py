"""Answers of agents: pieces of text, embeddings, and how a request ended.

Two ways to look at a result. Code that makes or interprets results uses the classes. The balancer,
which passes thousands a second through and only decides *whether this one was the last*, looks
at the raw JSON value with ``ends_stream`` and never builds an object.

Source:
  Which results end a stream is what Paddler 4.1's balancer releases a slot on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, get_args

import attrs

from paddler_trio.wire.paddler.request_params import NormalizationMethod
from paddler_trio.wire.scalars import Float32, Int32, Uint32, Uint64, float32s
from paddler_trio.wire.tags import external_tag, newtype, struct, unit

# --- generation ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TokenUsage:
    """Counters of one request. Image and audio tokens are informational: in no total."""

    prompt_tokens: Uint64
    cached_prompt_tokens: Uint64
    input_image_tokens: Uint64
    input_audio_tokens: Uint64
    content_tokens: Uint64
    reasoning_tokens: Uint64
    tool_call_tokens: Uint64
    undeterminable_tokens: Uint64


@attrs.frozen
class GenerationSummary:
    """The cost of a finished generation."""

    usage: TokenUsage


@attrs.frozen
class ValidJson:
    """Arguments that parsed, as a JSON value."""

    value: object


@attrs.frozen
class InvalidJson:
    """Arguments that did not parse, as the model wrote them."""

    text: str


ToolCallArguments: TypeAlias = ValidJson | InvalidJson
external_tag(ToolCallArguments, newtype(ValidJson), newtype(InvalidJson))


@attrs.frozen
class ParsedToolCall:
    """One call of one tool."""

    id: str
    name: str
    arguments: ToolCallArguments


@attrs.frozen
class TokenPiece:
    """Base of the pieces of generated text."""

    text: str


@attrs.frozen
class ContentToken(TokenPiece):
    """A piece of the answer."""


@attrs.frozen
class ReasoningToken(TokenPiece):
    """A piece of the model's thinking."""


@attrs.frozen
class ToolCallToken(TokenPiece):
    """A raw piece inside a tool call block."""


@attrs.frozen
class UndeterminableToken(TokenPiece):
    """A piece that could not be classified; to be shown as content."""


@attrs.frozen
class ToolCallParsed:
    """A finished tool call block whose arguments fit the schema."""

    calls: tuple[ParsedToolCall, ...]


@attrs.frozen
class ToolCallParseFailed:
    """A tool call block that does not parse."""

    description: str


@attrs.frozen
class ToolCallValidationFailed:
    """Arguments that break the schema, or an unknown tool."""

    descriptions: tuple[str, ...]


@attrs.frozen
class UnrecognizedToolCallFormat:
    """The model calls tools in a syntax that is not known."""

    text: str
    ffi_error_message: str


@attrs.frozen
class Done:
    """The generation succeeded, which includes running into its limit and being stopped."""

    summary: GenerationSummary


@attrs.frozen
class ImageExceedsBatchSize:
    """An image takes more tokens than one batch holds; ends the stream."""

    image_tokens: Uint64
    n_batch: Int32


@attrs.frozen
class GenerationFailure:
    """Base of the failures that end a stream and carry nothing but a text."""

    description: str


@attrs.frozen
class ChatTemplateError(GenerationFailure):
    """The template failed to render the conversation."""


@attrs.frozen
class DetokenizationFailed(GenerationFailure):
    """A generated token has no text."""


@attrs.frozen
class GrammarIncompatibleWithThinking(GenerationFailure):
    """A grammar came together with ``enable_thinking``."""


@attrs.frozen
class GrammarInitializationFailed(GenerationFailure):
    """The engine refused the grammar."""


@attrs.frozen
class GrammarRejectedModelOutput(GenerationFailure):
    """The grammar accepts none of the tokens that the model can sample."""


@attrs.frozen
class GrammarSyntaxError(GenerationFailure):
    """The constraint is no grammar: a JSON Schema that cannot be converted, say."""


@attrs.frozen
class ImageDecodingFailed(GenerationFailure):
    """A remote URL, bad base64, or a format that is not supported."""


@attrs.frozen
class MultimodalNotSupported(GenerationFailure):
    """An image was sent and no projection is loaded."""


@attrs.frozen
class SamplerError(GenerationFailure):
    """Sampling failed; also: no free sequence, or the prompt cannot be tokenized."""


@attrs.frozen
class TokenGenerationDisabled(GenerationFailure):
    """The cluster is in embeddings mode."""


@attrs.frozen
class ToolSchemaInvalid(GenerationFailure):
    """A tool's ``parameters`` are not a valid JSON Schema."""


TokenResult: TypeAlias = ContentToken | ReasoningToken | ToolCallToken | UndeterminableToken
ToolCallResult: TypeAlias = (
    ToolCallParsed | ToolCallParseFailed | ToolCallValidationFailed | UnrecognizedToolCallFormat
)
EndingGenerationResult: TypeAlias = (
    Done
    | ChatTemplateError
    | DetokenizationFailed
    | GrammarIncompatibleWithThinking
    | GrammarInitializationFailed
    | GrammarRejectedModelOutput
    | GrammarSyntaxError
    | ImageDecodingFailed
    | ImageExceedsBatchSize
    | MultimodalNotSupported
    | SamplerError
    | TokenGenerationDisabled
    | ToolSchemaInvalid
)
GeneratedTokenResult: TypeAlias = TokenResult | ToolCallResult | EndingGenerationResult
_HAVE_FIELDS: Final = (UnrecognizedToolCallFormat, ImageExceedsBatchSize)
external_tag(
    GeneratedTokenResult,
    *(
        struct(cls) if cls in _HAVE_FIELDS else newtype(cls)
        for cls in get_args(GeneratedTokenResult)
    ),
)


def _tags_of(union: object) -> frozenset[str]:
    return frozenset(cls.__name__ for cls in get_args(union))


TOKEN_TAGS: Final = _tags_of(TokenResult)
ENDING_GENERATION_TAGS: Final = _tags_of(EndingGenerationResult)
ALL_GENERATION_TAGS: Final = _tags_of(GeneratedTokenResult)
EXTENDED_ENDING_TAGS: Final = frozenset({"BadRequest", "InfillNotSupported"})
EXTENDED_GENERATION_TAGS: Final = (
    frozenset({"Logprobs", "Progress", "ToolCallDelta"}) | EXTENDED_ENDING_TAGS
)
"""Further results; sent by agents of ours for ``Generate`` work only. The first two end the stream.

* ``{"BadRequest": {"field", "message"}}`` instead of an answer: the path of the field that is to
  blame, such as ``sampling.top_p``, and a sentence with its value and its limit;
* ``{"InfillNotSupported": text}`` instead of an answer to an ``InfillPrompt``: the model has not
  the tokens for it;
* ``{"Logprobs": {"id", "token", "bytes", "logprob", "top": [{"id", "token", "bytes",
  "logprob"}]}}`` before the text of each sampled token, those of a stop text included; ``bytes`` is
  a list of integers, ``token`` their text, ``id`` the number of the token;
* ``{"Progress": {"total", "cached", "computed"}}``: tokens of the prompt, while it is
  computed and, before the first token, when it is; the first may have ``unbound``, at most
  ``MAX_UNBOUND`` places in the schemas of the request that the answer is not held to, and, for a
  request with a ``context``, ``tokens``: those of the prompt, unless images are shown in it;
* ``{"ToolCallDelta": {"index", "id", "name", "arguments"}}``: the call's beginning has ``id`` and
  ``name`` (elsewhere null); ``arguments`` is the next piece of their JSON text.

The ``Done`` of a ``Generate`` has beside ``usage`` also ``finish`` (``{"reason": "stop" | "length"
| "cells" | "stop_text" | "stopped", "stop_text": str | null}``; ``cells``: the context is full)
and ``timings`` (``{"prompt_n", "prompt_ms", "cached_n", "predicted_n", "predicted_ms"}``, counted
where the tokens are made), and may have ``draft_n`` and ``draft_accepted_n`` among the timings.
"""

MAX_UNBOUND: Final = 33
"""One more than a header has: it says that there are more."""


# --- embeddings ------------------------------------------------------------------------------


class PoolingType(StrEnum):
    """The ways in which the embeddings of a document's tokens become one."""

    UNSPECIFIED = "Unspecified"
    NONE = "None"
    MEAN = "Mean"
    CLS = "Cls"
    LAST = "Last"
    RANK = "Rank"


@attrs.frozen
class Embedding:
    """One document's embedding, 32-bit, finite. Takes a numpy array as well."""

    embedding: tuple[Float32, ...] = attrs.field(converter=float32s)
    normalization_method: NormalizationMethod
    pooling_type: PoolingType
    source_document_id: str


@attrs.frozen
class EmbeddingProduced:
    """A document's embedding: the variant the wire calls ``Embedding``."""

    embedding: Embedding


@attrs.frozen
class DocumentExceedsBatchSize:
    """A document takes more tokens than one batch holds; the others go on."""

    document_tokens: Uint32
    n_batch: Uint32
    source_document_id: str


@attrs.frozen
class EmbeddingDone:
    """All documents of the batch were answered: the variant the wire calls ``Done``."""


@attrs.frozen
class EmbeddingsDisabled:
    """The agent generates tokens and makes no embeddings."""


@attrs.frozen
class EmbeddingError:
    """The batch failed: the variant the wire calls ``Error``."""

    description: str


@attrs.frozen
class EmbeddingRejectedDueToActiveTokenGeneration:
    """The agent is generating tokens and cannot do both."""


@attrs.frozen
class NoEmbeddingsProduced:
    """The batch ended and not one document was embedded."""


EmbeddingResult: TypeAlias = (
    EmbeddingProduced
    | DocumentExceedsBatchSize
    | EmbeddingDone
    | EmbeddingsDisabled
    | EmbeddingError
    | EmbeddingRejectedDueToActiveTokenGeneration
    | NoEmbeddingsProduced
)
_ENDING_EMBEDDING_VARIANTS: Final = (
    unit(EmbeddingDone, "Done"),
    unit(EmbeddingsDisabled),
    newtype(EmbeddingError, "Error"),
    unit(EmbeddingRejectedDueToActiveTokenGeneration),
    unit(NoEmbeddingsProduced),
)
_EMBEDDING_VARIANTS: Final = (
    newtype(EmbeddingProduced, "Embedding"),
    struct(DocumentExceedsBatchSize),
    *_ENDING_EMBEDDING_VARIANTS,
)
external_tag(EmbeddingResult, *_EMBEDDING_VARIANTS)
ENDING_EMBEDDING_TAGS: Final = frozenset(each.tag for each in _ENDING_EMBEDDING_VARIANTS)
ALL_EMBEDDING_TAGS: Final = frozenset(each.tag for each in _EMBEDDING_VARIANTS)
EXTENDED_EMBEDDING_TAGS: Final = frozenset({"DocumentRefused", "Rank", "TokenEmbeddings", "Usage"})
"""Further results that end nothing; sent by agents of ours for ``Embed`` and ``Rank`` work only.

* ``{"DocumentRefused": {"problem", "source_document_id"}}``: a document that cannot be embedded,
  an empty one for example; the others go on, and the ending is an ``Error`` that repeats it;
* ``{"Usage": {"prompt_tokens": n}}`` before the ending: tokens of everything that was embedded;
* ``{"TokenEmbeddings": {"embeddings", "source_document_id"}}`` without pooling: one vector for
  each token, not normalised;
* ``{"Rank": {"index", "score"}}``: how well a document fits the query, in the model's own scale.
"""


# --- raw results -----------------------------------------------------------------------------
