"""llama.cpp behind a small typed surface: one model and one context.

Few files of the engine touch ctypes: this one, ``batch.py``, those that sample, and
``embedding_context.py``. Every call is one that the pinned llama-cpp-python was checked with; its C
API moves with each release.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from llguidance import LLTokenizer

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.applied_adapters import Adapters
from paddler_trio.processes.engine.llama.batch import Batch, EmbeddingBatch
from paddler_trio.processes.engine.llama.context_shape import (
    ENCODER_ONLY,
    ContextShape,
    check_size,
    count_streams,
    generation_params,
    shape_of,
)
from paddler_trio.processes.engine.llama.llama_options import model_params
from paddler_trio.processes.engine.rpc.rpc_devices import TURNS
from paddler_trio.processes.engine.sampling.grammar_tokenizer import grammar_tokenizer
from paddler_trio.processes.engine.sampling.sampler_prototypes import SamplerPrototypes
from paddler_trio.scheduler.batching.sequences import AdapterScales
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.engine_settings import EngineSettings

MAX_VIEWS = 1024
"""The number of views of logits that are kept: each takes some hundred bytes."""

_SWITCHES = 2
"""Times that a change of adapters is measured."""
_WARNINGS = (3, 4)
"""The levels of llama.cpp's log for warnings and errors."""
_BYTES = ctypes.POINTER(ctypes.c_uint8)

# llama.cpp asks an abort callback between the nodes of a pass. A Python one would fight for the
# GIL each time; the C library's strlen is one that answers from a flag in memory: true for any text
# but the empty one.
_IS_TEXT = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)


class Llama:
    """One loaded model with one context of ``slots`` separate sequences.

    Not safe for use by several threads, except :meth:`token_bytes`, ``sampler_prototypes`` and what
    only reads ``vocab``.
    """

    def __init__(self, model: object) -> None:
        self._model = model
        self.path = ""
        """Of the file that it was read from."""
        self.vocab = lib.llama_model_get_vocab(model)
        self.adapters = Adapters(model)
        self.sampler_prototypes = SamplerPrototypes()
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self._context: object | None = None
        self._memory: object | None = None
        self._batch: Batch | None = None
        self._bytes: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._views: dict[tuple[int, int], np.ndarray] = {}
        self._is_unified = False
        self._reserves = False
        """The next pass reserves its graphs anew, of which llama.cpp logs the sizes."""
        self._abort = (ctypes.c_char * 2)()
        """What llama.cpp reads between the nodes of a pass: a text, which is empty or not."""

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends a generation."""
        return tuple(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self.vocab, t))

    @cached_property
    def grammar_tokenizer(self) -> LLTokenizer:
        """Return the tokens that grammars are asked about; a second for 128,000 of them."""
        pieces = [self.token_bytes(token) for token in range(self.n_vocab)]
        return grammar_tokenizer(self.vocab, pieces, self.end_tokens)

    @cached_property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Every token that the model's file says is never to be sampled."""
        count = ctypes.c_int32()
        first = lib.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        return tuple(first[: count.value]) if count.value else ()

    @property
    def model(self) -> object:
        """The raw model pointer, for another context over the same weights."""
        return self._model

    @property
    def n_embd_inp(self) -> int:
        """Floats that stand for one token where embeddings are given instead of words."""
        return int(lib.llama_model_n_embd_inp(self._model))

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context the model was trained with."""
        return int(lib.llama_model_n_ctx_train(self._model))

    @property
    def can_generate(self) -> bool:
        """Return whether the model is no encoder, alone or before a decoder: its attention looks
        back only."""
        architecture = self.metadata("general.architecture")
        is_causal = self.metadata(f"{architecture}.attention.causal") != "false"
        return is_causal and not lib.llama_model_has_encoder(self._model)

    @property
    def has_chat_template(self) -> bool:
        """Return whether the model file has a default one."""
        return lib.llama_model_chat_template(self._model, None) is not None

    def metadata(self, key: str) -> str:
        """Return a short value of the model file as text; empty if it has none."""
        buffer = ctypes.create_string_buffer(256)
        written = lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if written >= 0 else ""

    @classmethod
    def load(
        cls,
        path: str,
        *,
        n_gpu_layers: int,
        progress: Callable[[float], None],
        settings: EngineSettings | None = None,
        no_alloc: bool = False,
    ) -> Llama:
        """Read the weights; EngineError (permanent) when the file is not a usable model.

        ``no_alloc``: read the header only. Contexts of such a model can be made and measured;
        nothing can be computed with them.
        """
        if not Path(path).is_file():
            raise EngineError(f"there is no file at {path}", permanent=True)
        lib.llama_backend_init()

        @lib.llama_progress_callback  # type: ignore[untyped-decorator]
        def on_progress(fraction: float, _: object) -> bool:
            progress(fraction)
            return True

        with model_params(
            settings or EngineSettings(), n_gpu_layers=n_gpu_layers, no_alloc=no_alloc
        ) as params:
            params.progress_callback = on_progress
            model = lib.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise EngineError(f"llama.cpp cannot load {path}", permanent=True)
        llama = cls(model)
        llama.path = path
        return llama

    def open_context(
        self,
        *,
        slots: int,
        context_size: int,
        n_batch: int,
        k_cache_dtype: str,
        v_cache_dtype: str,
        threads: int,
        settings: EngineSettings,
        adapters: Sequence[str] = (),
        whole_images: bool = False,
        attends_ahead: bool = False,
    ) -> ContextShape:
        """Make the KV cache and the batch; EngineError (permanent) when llama.cpp refuses.

        In a unified cache streams cost nothing, so there are more of them than slots, to keep more
        prefixes.

        ``n_batch`` is clamped to the context: llama.cpp clamps its own silently and then aborts
        the process on a larger batch. ``adapters``: paths of those that sequences choose by their
        places. ``whole_images``: an image is computed in one go.
        ``attends_ahead``: each part of it looks at all of it, for which llama.cpp's inner batch
        must be as large as the outer one, or it aborts.
        """
        self.adapters.load(settings, adapters)
        num_streams = count_streams(slots, unified=settings.unified)
        wanted = context_size if context_size > 0 else self.n_ctx_train * slots
        check_size(wanted, slots=slots, num_streams=num_streams)
        params = generation_params(
            wanted,
            num_streams,
            n_batch=n_batch,
            cache_dtypes=(k_cache_dtype, v_cache_dtype),
            threads=threads,
            settings=settings,
            attends_ahead=attends_ahead,
        )
        params.abort_callback = _IS_TEXT
        params.abort_callback_data = ctypes.addressof(self._abort)
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineError(
                f"llama.cpp cannot make a context of {params.n_ctx} tokens for {slots} slots "
                f"with a {k_cache_dtype}/{v_cache_dtype} cache",
                permanent=True,
            )
        self._memory = lib.llama_get_memory(self._context)
        self.adapters.apply(self._context, ())
        if not self._memory:
            raise EngineError(ENCODER_ONLY, permanent=True)
        shape = shape_of(self._model, self._context, settings, whole_images=whole_images)
        self._is_unified = shape.is_unified
        self._batch = Batch(shape.n_batch)
        return shape

    def close_context(self) -> None:
        """Free the context that was made last."""
        if self._context is not None:
            lib.llama_free(self._context)
            self._context = self._memory = self._batch = None
            self._views.clear()

    def close(self) -> None:
        """Free the model and its context; a process that serves one ends instead."""
        self.close_context()
        lib.llama_model_free(self._model)

    def warm_up(self) -> None:
        """Compute one tiny pass, so that the first request does not pay for the first touch of
        memory."""
        token = lib.llama_vocab_bos(self.vocab)
        self.batch.clear()
        self.batch.add([max(0, token)], start=0, stream=0, logits=True)
        self.decode()
        lib.llama_synchronize(self._context)
        self.forget(0)

    def measure_switch(self) -> None:
        """Measure how long it takes to change adapters, if there are any to choose from."""
        if not len(self.adapters):
            return
        took_s: dict[bool, list[float]] = {True: [], False: []}
        for chosen in (((0, 1.0),), ((0, 1.0),), (), ()) * _SWITCHES:
            is_other = self.use_adapters(chosen)
            began_s = time.thread_time()
            self.warm_up()
            took_s[is_other].append(time.thread_time() - began_s)
        self.adapters.switch_ms = 1e3 * max(0.0, min(took_s[True]) - min(took_s[False]))

    @property
    def batch(self) -> Batch:
        """The batch to fill before :meth:`decode`; at most ``n_batch`` rows."""
        assert self._batch is not None
        return self._batch

    def decode(self) -> int:
        """Compute what is in the batch.

        Returns:
          llama.cpp's code: 0 done; 1 no free cells (nothing changed); 2 aborted; anything else
          failed. After 2 and failures the touched sequences must be trimmed to what was computed
          before.
        """
        return self._decode(self.batch)

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from the next pass on."""
        lib.llama_set_n_threads(self._context, threads, threads)

    def decode_embeddings(
        self,
        rows: np.ndarray,
        *,
        positions: np.ndarray,
        stream: int,
        logits: bool,
        attends_ahead: bool,
    ) -> int:
        """Compute embeddings of an image or a sound as tokens of one stream.

        Args:
          rows: float32 of shape (count, n_embd_inp), at most ``n_batch`` of them.
          positions: int32 of shape (1, count), or (4, count) with M-RoPE.
          logits: whether those of the last one are asked for.
          attends_ahead: each of them looks at all of them; the context was made for it.

        Returns:
          As :meth:`decode`.
        """
        batch = EmbeddingBatch(rows, positions=positions, stream=stream, logits=logits)
        if not attends_ahead:
            return self._decode(batch)
        lib.llama_set_causal_attn(self._context, False)
        try:
            return self._decode(batch)
        finally:
            lib.llama_set_causal_attn(self._context, True)

    def _decode(self, batch: Batch | EmbeddingBatch) -> int:
        self._abort[0] = b"\0"
        with TURNS:
            code = int(lib.llama_decode(self._context, batch.raw))
        self._abort[0] = b"\0"
        self._reserves = False
        return code

    def use_adapters(self, chosen: AdapterScales) -> bool:
        """Compute with these adapters from the next pass on; True if they are others than before,
        and that pass takes longer."""
        if not self.adapters.apply(self._context, chosen):
            return False
        self._reserves = True
        return True

    @property
    def context(self) -> object:
        """The raw context pointer, for the samplers."""
        assert self._context is not None
        return self._context

    def logits(self, row: int) -> np.ndarray:
        """Return the logits of batch row ``row``: float32 of shape (n_vocab,), valid until
        decode."""
        view: np.ndarray = self._view(lib.llama_get_logits_ith(self._context, row), 1)[0]
        return view

    def most_likely(self, count: int) -> list[int]:
        """Return the most likely token of each of the ``count`` rows that asked for logits, in
        order."""
        rows = self._view(lib.llama_get_logits(self._context), count)
        best: list[int] = rows.argmax(axis=1).tolist()
        return best

    def _view(self, pointer: ctypes._Pointer[ctypes.c_float], count: int) -> np.ndarray:
        """Return so many rows of logits, from there on. Views are kept: to make one takes longer
        than to find the most likely of a thousand tokens."""
        place = (ctypes.addressof(pointer.contents), count)
        view = self._views.get(place)
        if view is None:
            if len(self._views) == MAX_VIEWS:
                self._views.clear()
            view = np.ctypeslib.as_array(pointer, shape=(count, self.n_vocab))
            self._views[place] = view
        return view

    def abort(self) -> None:
        """End the pass that is being computed, if any, with code 2; from any thread."""
        self._abort[0] = b"!"

    def hides(self, level: int) -> bool:
        """Return whether what llama.cpp logs now is of no interest: the pass that is being computed
        is to end, or reserves its graphs and says how large they are."""
        return self._abort[0] != b"\0" or (self._reserves and level not in _WARNINGS)

    def trim(self, stream: int, length: int) -> bool:
        """Keep only the first ``length`` tokens of a sequence; if its memory cannot be cut there,
        everything goes and the answer is False."""
        if lib.llama_memory_seq_rm(self._memory, stream, length, -1):
            return True
        self.forget(stream)
        return False

    def copy(self, source: int, target: int, length: int) -> bool:
        """Copy the first ``length`` tokens of ``source`` into the empty ``target``; False, and
        ``target`` empty, if its memory cannot be cut there.

        Between separate regions llama.cpp copies whole sequences only, at the next decode.
        """
        if self._is_unified:
            lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
            return True
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        if lib.llama_memory_seq_pos_max(self._memory, target) + 1 == length:
            return True
        return self.trim(target, length)

    def first_position(self, stream: int) -> int:
        """Return the oldest position of a sequence that is still in the cache; -1 if it is
        empty."""
        return int(lib.llama_memory_seq_pos_min(self._memory, stream))

    def state_size(self, stream: int) -> int:
        """Return how many bytes :meth:`save` would take."""
        return int(lib.llama_state_seq_get_size(self._context, stream))

    def save(self, stream: int, data: np.ndarray) -> None:
        """Copy the cells of a sequence to host memory: uint8 of shape (state_size,)."""
        written = lib.llama_state_seq_get_data(
            self._context, data.ctypes.data_as(_BYTES), len(data), stream
        )
        if written != len(data):
            raise EngineError(
                f"llama.cpp saved {written} bytes of stream {stream}, not {len(data)}"
            )

    def restore(self, stream: int, data: np.ndarray) -> bool:
        """Put saved cells into an empty sequence; False, and empty, if they do not fit."""
        read = lib.llama_state_seq_set_data(
            self._context, data.ctypes.data_as(_BYTES), len(data), stream
        )
        if read == 0:
            self.forget(stream)
        return bool(read)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a short text, special ones parsed, nothing added."""
        raw = text.encode()
        tokens = (ctypes.c_int32 * (len(raw) + 8))()
        count = lib.llama_tokenize(self.vocab, raw, len(raw), tokens, len(tokens), False, True)
        return list(tokens[:count])

    def forget(self, stream: int) -> None:
        """Free all cells of a sequence."""
        lib.llama_memory_seq_rm(self._memory, stream, -1, -1)

    def is_end_of_generation(self, token: int) -> bool:
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(lib.llama_vocab_is_eog(self.vocab, token))
        return known

    def is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_control(self.vocab, token))

    def written_token(self, token: int) -> bytes:
        """Return how the vocabulary writes a token, which is not the text that it stands for."""
        text: bytes = lib.llama_vocab_get_text(self.vocab, token)
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, special tokens spelled out; cached."""
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
