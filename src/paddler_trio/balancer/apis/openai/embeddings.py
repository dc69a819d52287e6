"""``/v1/embeddings`` and llama-server's ``/embedding``.

One request becomes several sub-batches, so that all agents work on it; documents keep their place
in the input whatever agent embeds them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, TypeVar

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.balancer.apis.answers.answer import Step
from paddler_trio.balancer.apis.answers.run_requests import gather_on_one_revision
from paddler_trio.balancer.apis.api_errors import ApiError, invalid, renamed
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, model_name
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    hint,
    record,
    required,
    text_in,
)
from paddler_trio.balancer.apis.generation_fields import (
    LABEL,
    MODEL,
    TIMEOUT,
)
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.prompts import Prompt, PromptShape, read_prompts
from paddler_trio.balancer.apis.questions import token_ids
from paddler_trio.balancer.apis.shapes import Integer, OneOf
from paddler_trio.scheduler.dispatch.embedding_split import split_sizes
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.work import Embed, EmbedInput, TextInput, TokenInput

VECTOR_BYTES: Final = 256
"""What a vector takes beside its numbers."""

_INT16 = 32760.0
"""What llama.cpp makes the largest number of a vector for ``embd_normalize`` 0."""

Vector = npt.NDArray[np.float32]
T = TypeVar("T")


_NORM = Field(
    "embd_normalize",
    Integer(-1, 64, clamps=True),
    "Which norm is made 1: 2 Euclid's, which is the default, 1 the sum of sizes, more the p-norm; "
    "0: the largest size is 32760; -1: as the model gives them.",
)


def _shared_fields() -> tuple[Field, ...]:
    return (
        MODEL,
        required(
            "input",
            PromptShape(),
            "A text, token ids, both mixed, text parts, or a list of these.",
            aliases=("content",),
        ),
        Field(
            "truncate_prompt_tokens",
            Integer(-1, -1, clamps=True),
            "-1: what is longer than the batch is cut; absent: it is an error.",
        ),
        TIMEOUT,
        accepted("user", LABEL, "The key's turns go round its users."),
    )


@lru_cache(maxsize=8)
def embeddings_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/embeddings``."""
    return record(
        "CreateEmbeddingRequest",
        *_shared_fields(),
        Field("encoding_format", OneOf(("float", "base64")), "base64: 32-bit little-endian."),
        Field(
            "dimensions",
            Integer(1, 2**20),
            "Vectors are cut to so many numbers and made of length 1 again.",
        ),
        _NORM,
        hint("input_type", "write the model's prefix into the input yourself"),
        hint("task", "write the model's prefix into the input yourself"),
        note="Vectors of length 1, one for each input. Unknown fields are ignored and reported.",
    )


@lru_cache(maxsize=8)
def llama_embeddings_record(limits: ApiLimits) -> Record:
    """Return the body of ``/embedding``, in llama-server's own dialect."""
    return record(
        "LlamaEmbeddingRequest",
        *_shared_fields(),
        _NORM,
        note="llama-server's own dialect. Unknown fields are ignored and reported.",
    )


def split(
    items: Sequence[T], *, agents: int, batch_size: int
) -> tuple[list[tuple[T, ...]], list[int]]:
    """Return the parts that go to agents, and for each the place of its first item."""
    sizes = split_sizes(len(items), agents=max(1, agents), batch_size=max(1, batch_size))
    starts = list(accumulate(sizes, initial=0))
    return [tuple(items[start:end]) for start, end in pairwise(starts)], starts[:-1]


@attrs.define
class Embedded:
    """The vectors that the sub-batches produced so far.

    Args:
      starts: the place of the first input of each sub-batch.
      per_token: takes vectors of each token, where the model has no others.
      norm: which norm of each vector becomes 1, as ``embd_normalize`` has it; agents know 2 and -1.
    """

    count: int
    starts: Sequence[int]
    per_token: bool = False
    norm: int = 2
    usage: dict[int, int] = attrs.field(factory=dict)
    """Tokens of each sub-batch, by its number: one that is computed anew is counted once."""
    vectors: dict[int, Vector] = attrs.field(factory=dict)
    """By place: one vector, or one for each token."""

    def take(self, step: Step) -> int:
        """Return by how many bytes the vectors have grown; a short text may have very many.

        ApiError 400 for an input that is too long, or a model without a vector for texts.
        """
        start = self.starts[step.choice]
        grown = 0
        for result in step.results:
            match result:
                case {"Embedding": {"embedding": vector, "source_document_id": str(name)}}:
                    found = np.asarray(vector, np.float32)
                    grown += self._keep(start + int(name), found)
                case {"TokenEmbeddings": {"embeddings": vectors, "source_document_id": str(name)}}:
                    if not self.per_token:
                        raise ApiError(
                            400,
                            "pooling_type None gives a vector for each token and none for a text; "
                            "set pooling_type to Mean, Cls or Last, or use /embedding",
                            code="no_pooling",
                        )
                    found = np.asarray(vectors, np.float32)
                    grown += self._keep(start + int(name), found)
                case {"Usage": {"prompt_tokens": int(tokens)}}:
                    self.usage[step.choice] = tokens
                case {"DocumentExceedsBatchSize": dict(excess)}:
                    raise _too_large(start, excess)
                case {"DocumentRefused": {"problem": str(why), "source_document_id": str(name)}}:
                    place = f"input[{start + int(name)}]"
                    raise invalid(renamed(why, f"document {name!r}", place), place)
        return grown

    @property
    def num_tokens(self) -> int:
        return sum(self.usage.values())

    def _keep(self, place: int, found: Vector) -> int:
        """It may come again, from another agent: it is held once."""
        before = self.vectors.get(place)
        kept = found if self.norm in (-1, 2) else _normalized(found, self.norm)
        self.vectors[place] = kept
        return kept.nbytes + VECTOR_BYTES if before is None else kept.nbytes - before.nbytes

    def in_order(self) -> Iterator[Vector]:
        """Return them in order; ApiError 500 if one is missing."""
        for place in range(self.count):
            if place not in self.vectors:
                raise ApiError(500, f"input[{place}] was not embedded", code="no_embeddings")
            yield self.vectors[place]


def _normalized(vectors: Vector, norm: int) -> Vector:
    """Return each vector divided by its p-norm, or by its largest number's share of 16 bits for
    0."""
    sizes = np.abs(vectors.astype(np.float64))
    if norm == 0:
        lengths = sizes.max(axis=-1, initial=0, keepdims=True) / _INT16
    else:
        lengths = (sizes**norm).sum(axis=-1, keepdims=True) ** (1 / norm)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _too_large(start: int, excess: Mapping[str, object]) -> ApiError:
    place = start + int(str(excess["source_document_id"]))
    tokens, most = excess["document_tokens"], excess["n_batch"]
    return ApiError(
        400,
        f"input[{place}] is too large: it has {tokens} tokens, one batch holds {most}; shorten it, "
        "raise n_batch, or send truncate_prompt_tokens: -1",
        param=f"input[{place}]",
        type="exceed_context_size_error",
        code="context_length_exceeded",
        details={"n_prompt_tokens": tokens, "n_ctx": most},
    )


def openai_pieces(
    embedded: Embedded, *, model: str, values: Mapping[str, object]
) -> Iterator[bytes]:
    """OpenAI's list of embeddings, written vector by vector: a number takes twenty characters, and
    as an object of Python ten times what it has in the vector.

    Errors, before the first piece: ApiError 400, 500."""
    vectors = vectors_of(embedded, values.get("dimensions"))
    is_base64 = values.get("encoding_format") == "base64"

    def pieces() -> Iterator[bytes]:
        yield b'{"object":"list","data":['
        for index, vector in enumerate(vectors):
            yield b'%b{"object":"embedding","index":%d,"embedding":' % (b"," * bool(index), index)
            if is_base64:
                yield b'"%b"' % base64.b64encode(vector.astype("<f4").tobytes())
            else:
                yield dumps_in_runs(vector.tolist())
            yield b"}"
        tokens = embedded.num_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        yield b"]," + dumps({"model": model, "usage": usage}).removeprefix(b"{")

    return pieces()


def vectors_of(embedded: Embedded, dimensions: object) -> Iterator[Vector]:
    """Return all vectors in order, cut to ``dimensions`` numbers if that is a number.

    Errors, before the first vector: ApiError 400, 500."""
    vectors = list(embedded.in_order())
    if not isinstance(dimensions, int):
        return iter(vectors)
    _check_dimensions(vectors, dimensions)
    return (_cut(vector, dimensions) for vector in vectors)


def _check_dimensions(vectors: Iterable[Vector], dimensions: int) -> None:
    least = min(map(len, vectors), default=dimensions)
    if dimensions > least:
        raise ApiError(
            400,
            f"dimensions is {dimensions}, the model's vectors have {least}",
            param="dimensions",
            code="invalid_value",
        )


def _cut(vector: Vector, dimensions: int) -> Vector:
    short = vector[:dimensions]
    norm = float(np.linalg.norm(short))
    return short / np.float32(norm) if norm > 0 else short


def llama_pieces(embedded: Embedded) -> Iterator[bytes]:
    """llama-server's own: for each input a list of vectors, written one by one.

    Errors, before the first piece: ApiError 500."""
    vectors = list(embedded.in_order())

    def pieces() -> Iterator[bytes]:
        yield b"["
        for index, found in enumerate(vectors):
            yield b'%b{"index":%d,"embedding":[' % (b"," * bool(index), index)
            for row, vector in enumerate(np.atleast_2d(found)):
                yield b"," * bool(row) + dumps_in_runs(vector.tolist())
            yield b"]}"
        yield b"]"

    return pieces()


async def embeddings(backend: Backend, exchange: ApiExchange) -> None:
    values = await exchange.read_record(backend.limits, embeddings_record)
    asked = text_in(values, "model")
    backend = backend.routed(exchange, asked)
    embedded = await embed(backend, exchange, values, per_token=False)
    model = model_name(backend, exchange, asked)
    pieces = openai_pieces(embedded, model=model, values=values)
    await exchange.send_pieces(200, pieces, is_long=False)


async def llama_embeddings(backend: Backend, exchange: ApiExchange) -> None:
    values = await exchange.read_record(backend.limits, llama_embeddings_record)
    backend = backend.routed(exchange, text_in(values, "model"))
    embedded = await embed(backend, exchange, values, per_token=True)
    await exchange.send_pieces(200, llama_pieces(embedded), is_long=False)


async def embed(
    backend: Backend,
    exchange: ApiExchange,
    values: Mapping[str, object],
    *,
    per_token: bool,
) -> Embedded:
    """Embed the ``input`` of a request, whole or not at all; ApiError."""
    given, norm = values["input"], values.get("embd_normalize", 2)
    assert isinstance(norm, int)
    read = await exchange.run(lambda: read_prompts(given, backend.limits, param="input"))
    state = backend.deployment.state
    if state is not None and not state.inference_parameters.enable_embeddings:
        raise ApiError(
            501,
            "embeddings are not enabled in the cluster's inference parameters; set "
            "enable_embeddings with `paddler-trio model set`",
            code="embeddings_disabled",
        )
    batch_size = 256 if state is None else state.inference_parameters.embedding_batch_size
    oversize = "truncate" if "truncate_prompt_tokens" in values else "report"
    inputs = [await _native(backend, prompt, exchange) for prompt in read.prompts]
    parts, starts = split(inputs, agents=len(backend.agents), batch_size=batch_size)
    normalize = "l2" if norm == 2 else "none"
    works = [Embed(inputs=part, normalize=normalize, oversize=oversize) for part in parts]
    embedded: list[Embedded] = []

    def begin() -> Callable[[Step], int]:
        embedded[:] = [Embedded(len(inputs), starts, per_token=per_token, norm=norm)]
        return embedded[0].take

    await gather_on_one_revision(backend, exchange, works, begin)
    return embedded[0]


async def _native(backend: Backend, prompt: Prompt, exchange: ApiExchange) -> EmbedInput:
    if isinstance(prompt, str):
        return TextInput(text=prompt)
    return TokenInput(tokens=await token_ids(backend, prompt, exchange, param="input"))
