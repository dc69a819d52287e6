"""Documents on their way to the engine and vectors on their way back.

text -> tokens -> chunks, and vectors -> average -> norm -> result. Pure and blocking: it belongs
into preparation processes and worker threads. Vectors come back in any order and go on in the order
of their documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TypeAlias, assert_never

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.errors import PaddlerError
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_pipe import EmbeddingShape
from paddler_trio.wire.json_limits import DEFAULT_LIMITS
from paddler_trio.wire.paddler.request_params import (
    L2,
    GenerateEmbeddingBatchParams,
    NoNormalization,
    NormalizationMethod,
    RmsNorm,
)
from paddler_trio.wire.paddler.results import (
    DocumentExceedsBatchSize,
    Embedding,
    EmbeddingProduced,
    EmbeddingResult,
    PoolingType,
)
from paddler_trio.wire.scalars import float32s
from paddler_trio.wire.trio.work import Embed, EmbedInput, Rank, TextInput, TokenInput

EmbeddingWork: TypeAlias = GenerateEmbeddingBatchParams | Embed | Rank
RawEmbeddingResult: TypeAlias = "dict[str, object] | str"
"""As it stands under ``Embedding`` on the wire."""
Vector: TypeAlias = npt.NDArray[np.float64]

MAX_TOKEN_NUMBERS = DEFAULT_LIMITS.max_values - 4096
"""Of one document with a vector for each token: the balancer closes the link over more values in a
frame."""
MAX_RMS_WIDTH = 65535
"""Paddler's limit; beyond it its result is an error."""
_RMS_EPSILON = 1e-5
_NORMS: dict[str, NormalizationMethod] = {
    "l2": L2(),
    "rms": RmsNorm(_RMS_EPSILON),
    "none": NoNormalization(),
}
_OVERSIZE = ("report", "truncate", "chunk")


class EmbeddingRefusedError(PaddlerError):
    """The whole request cannot be answered; its text is for the client."""


@attrs.frozen
class PreparedDocument:
    """One document, as the chunks it is embedded in.

    Without chunks it is not embedded: it has ``oversize`` tokens, which are too many, or
    ``problem`` is what is wrong with it.
    """

    id: str
    chunks: tuple[tuple[int, ...], ...] = ()
    oversize: int = 0
    problem: str = ""


@attrs.frozen
class Form:
    """How the vectors of one request become results.

    Args:
      pooling: what the engine does.
      asked_pooling: that of the desired state, which results repeat.
      is_ranking: results are scores.
    """

    pooling: str
    asked_pooling: PoolingType
    normalization: NormalizationMethod
    is_ranking: bool


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


# ------------------------------------------------------------------------------ to the engine


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
    """What the vocabulary puts before a text, the text itself, and what it puts behind."""
    for start in range(len(whole) - len(bare) + 1):
        end = start + len(bare)
        if whole[start:end] == bare:
            return whole[:start], bare, whole[end:]
    return [], whole, []


def _even_chunks(tokens: list[int], room: int) -> list[list[int]]:
    """As few as possible, and as equal: a short last chunk would weigh little and mean little."""
    count = -(-len(tokens) // room)
    bounds = [len(tokens) * place // count for place in range(count + 1)]
    return [tokens[start:end] for start, end in pairwise(bounds)]


def _pairs(
    query: str, texts: Sequence[str], vocabulary: Vocabulary, max_tokens: int
) -> list[PreparedDocument]:
    """Query and document as one text, the way cross-encoders are trained; or as the model's own
    ``rerank`` template says, which has ``{query}`` and ``{document}`` in it."""
    template = vocabulary.chat_template("rerank")
    if template is not None:
        return [
            _prepare(
                str(index),
                TextInput(text=template.replace("{query}", query).replace("{document}", text)),
                vocabulary,
                max_tokens,
                "report",
            )
            for index, text in enumerate(texts)
        ]
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


# ---------------------------------------------------------------------------- from the engine


def result_of(
    document: PreparedDocument, values: Sequence[bytes], form: Form
) -> RawEmbeddingResult:
    """The result of a document from the float32 bytes of its chunks.

    Raises:
      EmbeddingRefusedError: the model computed something that is no number.
    """
    vectors = [np.frombuffer(each, "<f4").astype(np.float64) for each in values]
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise EmbeddingRefusedError(
            f"document {document.id!r}: the model computed numbers that are not finite"
        )
    if form.is_ranking:
        return {"Rank": {"index": int(document.id), "score": float32s(vectors[0][:1])[0]}}
    if form.pooling == "None":
        rows = vectors[0].reshape(len(document.chunks[0]), -1)
        if rows.size > MAX_TOKEN_NUMBERS:
            problem = (
                f"document {document.id!r}: {len(rows)} tokens of {rows.shape[1]} numbers are "
                f"{rows.size} numbers; one document may have {MAX_TOKEN_NUMBERS}: shorten it"
            )
            return refused_result(attrs.evolve(document, problem=problem))
        return {
            "TokenEmbeddings": {
                "embeddings": [float32s(row) for row in rows],
                "source_document_id": document.id,
            }
        }
    weights = [len(chunk) for chunk in document.chunks]
    vector = normalized(np.average(vectors, axis=0, weights=weights), form.normalization)
    embedding = Embedding(
        embedding=vector,
        normalization_method=form.normalization,
        pooling_type=form.asked_pooling,
        source_document_id=document.id,
    )
    return _raw(EmbeddingProduced(embedding))


def oversize_result(document: PreparedDocument, max_tokens: int) -> RawEmbeddingResult:
    return _raw(DocumentExceedsBatchSize(document.oversize, max_tokens, document.id))


def refused_result(document: PreparedDocument) -> RawEmbeddingResult:
    return {"DocumentRefused": {"problem": document.problem, "source_document_id": document.id}}


def normalized(vector: Vector, method: NormalizationMethod) -> Vector:
    """Scaled by ``method``; a vector that cannot be scaled becomes zeros."""
    match method:
        case NoNormalization():
            return vector
        case L2():
            divisor = np.sqrt(np.sum(vector**2))
        case RmsNorm(epsilon):
            divisor = np.sqrt(np.sum(vector**2) / max(1, vector.size) + epsilon)
        case _:
            assert_never(method)
    return vector / divisor if divisor > 0 else np.zeros_like(vector)


def _raw(result: EmbeddingResult) -> RawEmbeddingResult:
    raw = unstructure(result, EmbeddingResult)
    assert isinstance(raw, dict)
    return raw


@attrs.define(eq=False)
class Gathered:
    """A document and the float32 bytes of each of its chunks, or why there are none."""

    document: PreparedDocument
    values: list[bytes] = attrs.field(init=False)
    num_missing: int = attrs.field(init=False)
    problem: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.num_missing = len(self.document.chunks)
        self.values = [b""] * self.num_missing


@attrs.define
class Gathering:
    """The documents of one request while they are computed.

    The engine gets only chunks, counted through over all documents: ``chunks`` is that list. It
    is given them in portions, and ``tokens_away`` of them have not come back.
    """

    documents: Sequence[PreparedDocument]
    chunks: list[tuple[int, ...]] = attrs.field(init=False)
    tokens_away: int = attrs.field(default=0, init=False)
    _num_given: int = attrs.field(default=0, init=False)
    _owners: list[tuple[Gathered, int]] = attrs.field(init=False)
    """Of each chunk: its document, and the chunk's place in it."""
    _waiting: deque[Gathered] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._waiting = deque(map(Gathered, self.documents))
        self.chunks = [chunk for document in self.documents for chunk in document.chunks]
        self._owners = [
            (each, place) for each in self._waiting for place in range(each.num_missing)
        ]

    @property
    def is_complete(self) -> bool:
        """Everything was given out."""
        return not self._waiting

    def next_portion(self, max_tokens: int) -> range:
        """The chunks that go to the engine now: as many as have ``max_tokens`` together, or a
        single longer one; none when all have gone."""
        start = end = self._num_given
        num_tokens = 0
        while end < len(self.chunks):
            length = len(self.chunks[end])
            if end > start and num_tokens + length > max_tokens:
                break
            num_tokens += length
            end += 1
        self._num_given = end
        self.tokens_away += num_tokens
        return range(start, end)

    def take(self, index: int, values: bytes, problem: str = "") -> None:
        """The engine computed chunk ``index``, or could not."""
        owner, place = self._owners[index]
        owner.values[place] = values
        owner.num_missing -= 1
        owner.problem = owner.problem or problem
        self.tokens_away -= len(self.chunks[index])

    def ready(self) -> list[Gathered]:
        """Documents whose turn it is, in order; each is given out once."""
        ready = []
        while self._waiting and not self._waiting[0].num_missing:
            ready.append(self._waiting.popleft())
        return ready
