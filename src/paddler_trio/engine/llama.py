"""llama.cpp behind a small typed surface: one model, one context, one batch.

Only this file and ``sampling.py`` touch ctypes in the engine. Every call is one that the pinned
llama-cpp-python was checked with; its C API moves with each release.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import llama_cpp.llama_cpp as lib
import numpy as np

from paddler_trio.errors import EngineError

CACHE_TYPES = {
    "F32": lib.GGML_TYPE_F32,
    "F16": lib.GGML_TYPE_F16,
    "BF16": 30,
    "Q8_0": lib.GGML_TYPE_Q8_0,
    "Q4_0": lib.GGML_TYPE_Q4_0,
    "Q4_1": lib.GGML_TYPE_Q4_1,
    "IQ4_NL": lib.GGML_TYPE_IQ4_NL,
    "Q5_0": lib.GGML_TYPE_Q5_0,
    "Q5_1": lib.GGML_TYPE_Q5_1,
}


@attrs.frozen
class ContextShape:
    """What a context was made with, after llama.cpp rounded it."""

    cells: int
    """KV cells of one sequence, in tokens."""
    n_batch: int
    n_ctx_train: int
    n_vocab: int


class Batch:
    """llama.cpp's batch, filled a run of tokens at a time through views of its memory.

    Rows of one stream follow each other, and streams come in ascending order: with one KV region
    per stream llama.cpp computes only such runs together (measured: 27 ms for a pass of eight in
    order, 46 ms shuffled).
    """

    def __init__(self, capacity: int) -> None:
        self.raw = lib.llama_batch_init(capacity, 0, 1)
        self._tokens = np.ctypeslib.as_array(self.raw.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self.raw.pos, (capacity,))
        self._logits = np.ctypeslib.as_array(self.raw.logits, (capacity,))
        self._streams = np.zeros(capacity, np.int32)
        np.ctypeslib.as_array(self.raw.n_seq_id, (capacity,))[:] = 1
        for row in range(capacity):  # each row has an array of sequence ids; ours have length one
            self.raw.seq_id[row] = ctypes.cast(
                self._streams.ctypes.data + row * self._streams.itemsize,
                ctypes.POINTER(ctypes.c_int32),
            )
        self._last_stream = -1
        self.clear()

    def clear(self) -> None:
        self.raw.n_tokens = 0
        self._last_stream = -1

    def add(self, tokens: Sequence[int], *, start: int, stream: int, logits: bool) -> int:
        """Tokens of one stream from position ``start``; ``logits`` asks for the last one's.

        Returns:
          The row of the last token.
        """
        assert stream > self._last_stream, "streams must come in ascending order"
        self._last_stream = stream
        first = self.raw.n_tokens
        end = first + len(tokens)
        self._tokens[first:end] = tokens
        self._positions[first:end] = range(start, start + len(tokens))
        self._streams[first:end] = stream
        self._logits[first:end] = 0
        self._logits[end - 1] = logits
        self.raw.n_tokens = end
        return int(end) - 1


class Llama:
    """One loaded model with one context of ``slots`` separate sequences.

    Not safe for use by several threads, except :meth:`token_bytes` and what only reads ``vocab``.
    """

    def __init__(self, model: object) -> None:
        self._model = model
        self.vocab = lib.llama_model_get_vocab(model)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self._context: object | None = None
        self._memory: object | None = None
        self._batch: Batch | None = None
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: str, *, n_gpu_layers: int, progress: Callable[[float], None]) -> Llama:
        """Read the weights; EngineError (permanent) when the file is not a usable model."""
        if not Path(path).is_file():
            raise EngineError(f"there is no file at {path}", permanent=True)
        lib.llama_backend_init()

        @lib.llama_progress_callback  # type: ignore[untyped-decorator]
        def on_progress(fraction: float, _: object) -> bool:
            progress(fraction)
            return True

        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers if n_gpu_layers >= 0 else 0x7FFFFFFF
        params.progress_callback = on_progress
        model = lib.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise EngineError(f"llama.cpp cannot load {path}", permanent=True)
        if not lib.llama_model_has_decoder(model):
            raise EngineError(f"{path} has no decoder: it cannot generate text", permanent=True)
        return cls(model)

    def open_context(
        self,
        *,
        slots: int,
        context_size: int,
        n_batch: int,
        k_cache_dtype: str,
        v_cache_dtype: str,
        threads: int,
    ) -> ContextShape:
        """Make the KV cache and the batch; EngineError (permanent) when llama.cpp refuses.

        ``n_batch`` is clamped to the context: llama.cpp clamps its own silently and then aborts
        the process on a larger batch (W13).
        """
        n_ctx_train: int = lib.llama_model_n_ctx_train(self._model)
        params = lib.llama_context_default_params()
        params.n_ctx = context_size if context_size > 0 else n_ctx_train * slots
        params.n_seq_max = slots
        params.n_batch = max(1, min(n_batch, params.n_ctx))
        params.n_ubatch = min(params.n_batch, params.n_ubatch)
        params.n_threads = threads
        params.n_threads_batch = threads
        params.type_k = CACHE_TYPES[k_cache_dtype]
        params.type_v = CACHE_TYPES[v_cache_dtype]
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        params.kv_unified = False
        params.no_perf = True
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineError(
                f"llama.cpp cannot make a context of {params.n_ctx} tokens for {slots} slots "
                f"with a {k_cache_dtype}/{v_cache_dtype} cache",
                permanent=True,
            )
        self._memory = lib.llama_get_memory(self._context)
        shape = ContextShape(
            cells=lib.llama_n_ctx_seq(self._context),
            n_batch=lib.llama_n_batch(self._context),
            n_ctx_train=n_ctx_train,
            n_vocab=self.n_vocab,
        )
        self._batch = Batch(shape.n_batch)
        return shape

    def warm_up(self) -> None:
        """One tiny pass, so that the first request does not pay for the first touch of memory."""
        token = lib.llama_vocab_bos(self.vocab)
        self.batch.clear()
        self.batch.add([max(0, token)], start=0, stream=0, logits=True)
        self.decode()
        lib.llama_synchronize(self._context)
        self.forget(0)

    @property
    def batch(self) -> Batch:
        """To be filled before :meth:`decode`; at most ``n_batch`` rows."""
        assert self._batch is not None
        return self._batch

    def decode(self) -> int:
        """Compute what is in the batch.

        Returns:
          llama.cpp's code: 0 done; 1 no free cells (nothing changed); anything else failed and
          the touched sequences must be trimmed to what was computed before.
        """
        return int(lib.llama_decode(self._context, self.batch.raw))

    @property
    def context(self) -> object:
        """The raw context pointer, for the samplers."""
        assert self._context is not None
        return self._context

    def logits(self, row: int) -> np.ndarray:
        """The logits of batch row ``row``: float32 of shape (n_vocab,), valid until decode."""
        pointer = lib.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def most_likely(self, count: int) -> list[int]:
        """The most likely token of each of the ``count`` rows that asked for logits, in order."""
        pointer = lib.llama_get_logits(self._context)
        rows = np.ctypeslib.as_array(pointer, shape=(count, self.n_vocab))
        best: list[int] = rows.argmax(axis=1).tolist()
        return best

    def trim(self, stream: int, length: int) -> None:
        """Keep only the first ``length`` tokens of a sequence."""
        if not lib.llama_memory_seq_rm(self._memory, stream, length, -1):
            self.forget(stream)

    def forget(self, stream: int) -> None:
        """Free all cells of a sequence."""
        lib.llama_memory_seq_rm(self._memory, stream, -1, -1)

    def is_end_of_generation(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self.vocab, token))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, special tokens spelled out; cached."""
        known = self._bytes.get(token)
        if known is not None:
            return known
        size = 32
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, True)
            if written >= 0:
                break
            size = -written
        text = buffer.raw[:written]
        self._bytes[token] = text
        return text
