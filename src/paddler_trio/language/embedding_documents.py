"""Documents on their way to the engine: text -> tokens -> chunks.

Pure and blocking: it belongs into preparation processes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from paddler_trio.language.embedding_results import (
    EmbeddingRefusedError,
    Form,
    PreparedDocument,
)
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.engine.engine_pipe import EmbeddingShape
from paddler_trio.wire.paddler.request_params import (
    L2,
    GenerateEmbeddingBatchParams,
    NoNormalization,
    NormalizationMethod,
    RmsNorm,
)
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.trio.work import Embed, EmbedInput, Rank, TextInput, TokenInput

EmbeddingWork: TypeAlias = GenerateEmbeddingBatchParams | Embed | Rank
MAX_RMS_WIDTH = 65535
"""Paddler's limit; beyond it its result is an error."""
_RMS_EPSILON = 1e-5
_NORMS: dict[str, NormalizationMethod] = {
    "l2": L2(),
    "rms": RmsNorm(_RMS_EPSILON),
    "none": NoNormalization(),
}
_PLACES = re.compile(r"\{query\}|\{document\}")
_OVERSIZE = ("report", "truncate", "chunk")
_WORD = "a"
"""What the vocabulary puts around this, it puts around every text."""


def form_of(work: EmbeddingWork, shape: EmbeddingShape, asked_pooling: PoolingType) -> Form:
    """Check what can be known before anything is computed.

    Raises:
      EmbeddingRefusedError: this pooling cannot answer this, or an option has no such value.
    """
    if isinstance(work, Rank):
        if shape.pooling != "Rank":
            raise EmbeddingRefusedError(
                f"pooling_type is {shape.pooling}: documents are ranked with pooling_type Rank and "
                "a reranking model"
            )
        return Form(shape.pooling, asked_pooling, NoNormalization(), is_ranking=True)
    if isinstance(work, Embed):
        _check_choice("normalize", work.normalize, _NORMS)
        _check_choice("oversize", work.oversize, _OVERSIZE)
        if shape.pooling == "None" and work.oversize == "chunk":
            raise EmbeddingRefusedError(
                "oversize is chunk, which averages vectors: pooling_type None has one for each "
                "token; set oversize to truncate or report"
            )
        normalization = _NORMS[work.normalize]
    else:
        if shape.pooling == "None":
            own = " and the model has none of its own" if asked_pooling != "None" else ""
            raise EmbeddingRefusedError(
                f"pooling_type is {asked_pooling.value}{own}: there is a vector for each token and "
                "none for the document; set pooling_type to Mean, Cls or Last"
            )
        normalization = work.normalization_method
    if isinstance(normalization, RmsNorm) and shape.width > MAX_RMS_WIDTH:
        raise EmbeddingRefusedError(
            f"RmsNorm takes vectors of up to {MAX_RMS_WIDTH} numbers, these have {shape.width}"
        )
    if shape.pooling in ("None", "Rank"):
        normalization = NoNormalization()  # the norm of a score, or of one token, means nothing
    return Form(shape.pooling, asked_pooling, normalization, is_ranking=False)


def _check_choice(field: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise EmbeddingRefusedError(f"{field} is {value!r}, must be one of {', '.join(choices)}")


def prepare_documents(
    work: EmbeddingWork, vocabulary: Vocabulary, max_tokens: int
) -> list[PreparedDocument]:
    """Tokenise every document of a request, in order."""
    match work:
        case Rank(query=query, documents=texts):
            return _pairs(query, texts, vocabulary, max_tokens)
        case Embed(inputs=inputs, oversize=oversize):
            return [
                _prepare(str(index), each, vocabulary, max_tokens, oversize)
                for index, each in enumerate(inputs)
            ]
        case GenerateEmbeddingBatchParams(input_batch=documents):
            return [
                _prepare(each.id, TextInput(text=each.content), vocabulary, max_tokens, "report")
                for each in documents
            ]


def _prepare(
    name: str, source: EmbedInput, vocabulary: Vocabulary, max_tokens: int, oversize: str
) -> PreparedDocument:
    try:
        if isinstance(source, TokenInput):
            tokens = list(source.tokens)
            for token in tokens:
                vocabulary.token_bytes(token, special=True)
        else:
            tokens = vocabulary.tokenize(source.text, add_special=True, parse_special=True)
    except TokenizationError as error:
        return PreparedDocument(name, problem=f"document {name!r}: {error}")
    if not tokens:
        return PreparedDocument(
            name, problem=f"document {name!r} is empty: there is nothing to embed"
        )
    if len(tokens) <= max_tokens:
        return PreparedDocument(name, (tuple(tokens),))
    if oversize == "report":
        return PreparedDocument(name, oversize=len(tokens))
    bare = tokens
    if isinstance(source, TextInput):
        bare = vocabulary.tokenize(source.text, add_special=False, parse_special=True)
    before, content, after = _taken_apart(tokens, bare)
    room = max_tokens - len(before) - len(after)
    if room < 1:
        return PreparedDocument(name, oversize=len(tokens))
    if oversize == "truncate":
        return PreparedDocument(name, ((*before, *content[:room], *after),))
    return PreparedDocument(
        name, tuple((*before, *chunk, *after) for chunk in _even_chunks(content, room))
    )


def _taken_apart(whole: list[int], bare: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Return what the vocabulary puts before a text, the text itself, and what it puts behind."""
    for start in range(len(whole) - len(bare) + 1):
        end = start + len(bare)
        if whole[start:end] == bare:
            return whole[:start], bare, whole[end:]
    return [], whole, []


def _even_chunks(tokens: list[int], room: int) -> list[list[int]]:
    """Cut as few chunks as possible, and as equal: a short last one would mean little."""
    count = -(-len(tokens) // room)
    bounds = [len(tokens) * place // count for place in range(count + 1)]
    return [tokens[start:end] for start, end in pairwise(bounds)]


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """Fill a template in; what the texts themselves spell is no place for another one: a query
    full of ``{document}`` would be a thousand documents long."""
    return _PLACES.sub(lambda place: texts[place[0]], template)


def _pairs(
    query: str, texts: Sequence[str], vocabulary: Vocabulary, max_tokens: int
) -> list[PreparedDocument]:
    """Query and document as one text, the way cross-encoders are trained; or as the model's own
    ``rerank`` template says, which has ``{query}`` and ``{document}`` in it."""
    template = vocabulary.chat_template("rerank")
    if template is not None:
        return _filled_in(template, query, texts, vocabulary, max_tokens)
    try:
        opening = vocabulary.tokenize(query, add_special=True, parse_special=False)
        bare = vocabulary.tokenize(query, add_special=False, parse_special=False)
    except TokenizationError as error:
        raise EmbeddingRefusedError(f"query: {error}") from error
    if not bare:
        raise EmbeddingRefusedError("query is empty: there is nothing to rank by")
    _, _, closing = _taken_apart(opening, bare)
    prepared = []
    for index, text in enumerate(texts):
        try:
            document = vocabulary.tokenize(text, add_special=False, parse_special=False)
        except TokenizationError as error:
            prepared.append(PreparedDocument(str(index), problem=f"documents[{index}]: {error}"))
            continue
        tokens = (*opening, *vocabulary.pair_separator, *document, *closing)
        if len(tokens) <= max_tokens:
            prepared.append(PreparedDocument(str(index), (tokens,)))
        else:
            prepared.append(PreparedDocument(str(index), oversize=len(tokens)))
    return prepared


def _filled_in(
    template: str, query: str, texts: Sequence[str], vocabulary: Vocabulary, max_tokens: int
) -> list[PreparedDocument]:
    """All control tokens are the template's and the vocabulary's: one that a query or a document
    spells is text, or a document could end its turn and say how well it fits."""
    before, _, after = _taken_apart(
        vocabulary.tokenize(_WORD, add_special=True, parse_special=False),
        vocabulary.tokenize(_WORD, add_special=False, parse_special=False),
    )
    escape = vocabulary.escaping.escape
    places = {"{query}": escape(query)}
    prepared = []
    for index, text in enumerate(texts):
        places["{document}"] = escape(text)
        try:
            middle = vocabulary.tokenize_part(_filled(template, places))
        except TokenizationError as error:
            prepared.append(PreparedDocument(str(index), problem=f"document '{index}': {error}"))
            continue
        tokens = (*before, *middle, *after)
        if len(tokens) <= max_tokens:
            prepared.append(PreparedDocument(str(index), (tokens,)))
        else:
            prepared.append(PreparedDocument(str(index), oversize=len(tokens)))
    return prepared
