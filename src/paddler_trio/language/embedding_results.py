"""Vectors that an engine computed of documents become results for the client.

vectors -> average -> norm -> result. Pure, and blocking where it computes: that belongs into worker
threads. Vectors come in any order and go on in the order of their documents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias, assert_never

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.errors import PaddlerError
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.json_limits import DEFAULT_LIMITS
from paddler_trio.wire.paddler.request_params import (
    L2,
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

RawEmbeddingResult: TypeAlias = "dict[str, object] | str"
"""As it stands under ``Embedding`` on the wire."""
Vector: TypeAlias = npt.NDArray[np.float64]

MAX_TOKEN_NUMBERS = DEFAULT_LIMITS.max_values - 4096
"""Of one document with a vector for each token: the balancer closes the link over more values in a
frame."""


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
    """A form says how the vectors of one request become results.

    Args:
      pooling: what the engine does.
      asked_pooling: that of the desired state, which results repeat.
      is_ranking: results are scores.
    """

    pooling: str
    asked_pooling: PoolingType
    normalization: NormalizationMethod
    is_ranking: bool


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
