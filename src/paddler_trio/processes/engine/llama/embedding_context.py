"""A second llama.cpp context over the same weights, that only embeds.

Pooling happens inside one micro-batch: a document whose tokens were spread over two would come
out wrong. So micro-batch, batch and context have one size, all sequences share the cells,
and a document is never longer than that. Nothing is kept from pass to pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.applied_adapters import Adapters
from paddler_trio.processes.engine.llama.gguf_header import header_of
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.llama.llama_options import set_context_options
from paddler_trio.processes.engine.rpc.rpc_devices import TURNS
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.engine_pipe import EmbeddingShape
from paddler_trio.wire.engine.engine_settings import EngineSettings

Tokens = npt.NDArray[np.int32]

POOLING_TYPES = {
    "Unspecified": lib.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "None": lib.LLAMA_POOLING_TYPE_NONE,
    "Mean": lib.LLAMA_POOLING_TYPE_MEAN,
    "Cls": lib.LLAMA_POOLING_TYPE_CLS,
    "Last": lib.LLAMA_POOLING_TYPE_LAST,
    "Rank": lib.LLAMA_POOLING_TYPE_RANK,
}
_POOLING_NAMES = {number: name for name, number in POOLING_TYPES.items()}
_LEARNED_POSITIONS = frozenset({"bert", "gpt2", "mpt", "starcoder"})
"""Architectures with a row for each position; of some llama.cpp says all the same that they
rotate."""
_INT32S = ctypes.POINTER(ctypes.c_int32)
RECURRENT_SEQUENCES = 16
"""Each sequence of a recurrent model has a state of its own, of many megabytes."""


class EmbeddingFailedError(Exception):
    """llama.cpp could not compute these documents."""


class EmbeddingContext:
    """A second context over the same weights, which embeds. Not safe for use by several threads;
    may be used beside the context that generates.

    Lives as long as the process: an engine loads one model and ends with it.
    """

    def __init__(self, llama: Llama, context: object, max_documents: int) -> None:
        """Take ownership of a context; use :meth:`open`."""
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._run = (
            lib.llama_encode  # of a model with both halves (T5) too: decoding would run the other
            if lib.llama_model_has_encoder(llama.model)
            else lib.llama_decode  # which also runs what has no memory
        )
        pooling = _POOLING_NAMES[lib.llama_pooling_type(context)]
        width = (
            lib.llama_model_n_cls_out(llama.model)
            if pooling == "Rank"
            else lib.llama_model_n_embd_out(llama.model)
        )
        self.shape = EmbeddingShape(lib.llama_n_batch(context), width, pooling)
        self.max_documents = max_documents
        self._batch = _Batch(self.shape.max_tokens)

    @classmethod
    def open(
        cls,
        llama: Llama,
        *,
        pooling_type: str,
        n_batch: int,
        threads: int,
        settings: EngineSettings,
    ) -> EmbeddingContext:
        """Make the context; EngineError (permanent) when this model cannot embed so.

        Documents may have ``n_batch`` tokens, or as many as the model was trained with: learned
        positions end there, and llama.cpp aborts beyond them. Rotated ones do not when scaled.
        """
        pooling = POOLING_TYPES[pooling_type]
        model = llama.model
        if pooling == lib.LLAMA_POOLING_TYPE_RANK and not _can_rank(llama):
            raise EngineError(
                "pooling_type is Rank, but the model was not made for ranking: it has no "
                "classification head; use a reranking model, or Mean, Cls or Last",
                permanent=True,
            )
        is_scaled = settings.rope_scaling not in ("", "none") and _rotates_positions(llama)
        longest = max(1, n_batch if is_scaled else min(n_batch, llama.n_ctx_train))
        has_states = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
        sequences = RECURRENT_SEQUENCES if has_states else lib.llama_max_parallel_sequences()
        params = lib.llama_context_default_params()
        set_context_options(params, settings)
        params.n_ctx = params.n_batch = params.n_ubatch = longest
        params.n_seq_max = min(sequences, longest)  # it aborts if there are more than rows
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True
        params.pooling_type = pooling
        params.kv_unified = True
        params.no_perf = True
        context = lib.llama_init_from_model(model, params)
        if not context:
            raise EngineError(
                f"llama.cpp cannot make a context that embeds documents of {longest} tokens",
                permanent=True,
            )
        adapters = Adapters(llama.model)
        adapters.load(settings)
        adapters.apply(context, ())
        return cls(llama, context, params.n_seq_max)

    @property
    def context(self) -> object:
        """The raw context pointer."""
        return self._context

    @property
    def remembers(self) -> bool:
        """Return whether llama.cpp keeps earlier tokens of this model; it does not of encoders."""
        return self._memory is not None

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from the next pass on."""
        lib.llama_set_n_threads(self._context, threads, threads)

    def compute(self, documents: Sequence[Tokens]) -> list[bytes]:
        """Embed these in one pass: their vectors as float32 bytes, in this order.

        At most ``max_documents``, together at most ``shape.max_tokens`` tokens, none empty.

        Raises:
          EmbeddingFailedError: nothing was computed.
        """
        if self._memory is not None:
            lib.llama_memory_clear(self._memory, False)
        self._batch.fill(documents)
        with TURNS:
            code = self._run(self._context, self._batch.raw)
        if code != 0:
            raise EmbeddingFailedError(f"llama.cpp could not compute this document (code {code})")
        if self.shape.pooling == "None":
            return self._of_tokens([len(document) for document in documents])
        return [self._of_sequence(sequence) for sequence in range(len(documents))]

    def _of_sequence(self, sequence: int) -> bytes:
        pointer = lib.llama_get_embeddings_seq(self._context, sequence)
        if not pointer:
            raise EmbeddingFailedError("llama.cpp computed this document but has no vector of it")
        return ctypes.string_at(pointer, self.shape.width * 4)

    def _of_tokens(self, lengths: Sequence[int]) -> list[bytes]:
        pointer = lib.llama_get_embeddings(self._context)
        if not pointer:
            raise EmbeddingFailedError("llama.cpp computed these documents but has no vectors")
        row_bytes = self.shape.width * 4
        everything = ctypes.string_at(pointer, sum(lengths) * row_bytes)
        ends = np.cumsum(lengths) * row_bytes
        return [
            everything[end - length * row_bytes : end]
            for end, length in zip(ends.tolist(), lengths, strict=True)
        ]


class _Batch:
    """llama.cpp's batch over arrays of ours; every token is an output."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._outputs = np.ones(capacity, np.int8)
        first = self._sequences.ctypes.data
        self._pointers = (first + 4 * np.arange(capacity)).astype(np.uintp)
        """Each row has an array of sequence ids; ours have length one."""
        self.raw = lib.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(_INT32S),
            embd=None,
            pos=self._positions.ctypes.data_as(_INT32S),
            n_seq_id=self._counts.ctypes.data_as(_INT32S),
            seq_id=self._pointers.ctypes.data_as(ctypes.POINTER(_INT32S)),
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, documents: Sequence[Tokens]) -> None:
        lengths = [len(document) for document in documents]
        total = sum(lengths)
        self._tokens[:total] = np.concatenate(documents)
        self._positions[:total] = np.concatenate([np.arange(length) for length in lengths])
        self._sequences[:total] = np.repeat(np.arange(len(documents)), lengths)
        self.raw.n_tokens = total


def _rotates_positions(llama: Llama) -> bool:
    if llama.metadata("general.architecture") in _LEARNED_POSITIONS:
        return False
    return bool(lib.llama_model_rope_type(llama.model) != lib.LLAMA_ROPE_TYPE_NONE)


def _can_rank(llama: Llama) -> bool:
    """It has a classification head; without one llama.cpp takes a number of the vector as score.

    Many files do not name rank pooling as their own."""
    own = llama.metadata(f"{llama.metadata('general.architecture')}.pooling_type")
    if own == str(lib.LLAMA_POOLING_TYPE_RANK):
        return True
    header = header_of(llama.path)
    return header is not None and header.has_classifier
