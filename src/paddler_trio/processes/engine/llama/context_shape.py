"""Choose how large a context of llama.cpp is made: its limits, and what it has in the end."""

from __future__ import annotations

import attrs

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.llama_options import CACHE_TYPES, set_context_options
from paddler_trio.scheduler.batching.prefixes import MemoryRules
from paddler_trio.system.llama_library import lib
from paddler_trio.system.machine import available_memory_bytes
from paddler_trio.wire.engine.engine_settings import EngineSettings

MAX_STREAMS = 256
"""llama.cpp's own limit on sequences of one context."""
SPARE_STREAMS = 4
MAX_CONTEXT = 2**31 - 256
"""Tokens: llama.cpp counts them in 32 bits, with a sign, and rounds up to 256."""
MAX_BATCH = 65536
"""Tokens of one pass; more only takes memory."""
CELL_BYTES = 48
"""The bytes that llama.cpp notes of each cell in the host's memory, wherever the cells are: its
position, its extent, its shift and a bit for each of ``MAX_STREAMS``."""


@attrs.frozen
class ContextShape:
    """The sizes that a context was made with, after llama.cpp rounded them."""

    cells: int
    """KV cells one sequence can have, in tokens."""
    n_batch: int
    n_ubatch: int
    """Tokens llama.cpp computes together; more in one call are computed one after the other."""
    n_ctx_train: int
    n_vocab: int
    num_streams: int
    is_unified: bool
    rules: MemoryRules


def count_streams(slots: int, *, unified: bool) -> int:
    """Return how many sequences llama.cpp keeps for so many slots: in one pool more of them, for
    prefixes."""
    return min(MAX_STREAMS, 2 * slots + SPARE_STREAMS) if unified else slots


def generation_params(
    context_size: int,
    num_streams: int,
    *,
    n_batch: int,
    cache_dtypes: tuple[str, str],
    threads: int,
    settings: EngineSettings,
    attends_ahead: bool,
) -> lib.llama_context_params:
    """Return the parameters of a context that generates; ``cache_dtypes`` are those of K and V."""
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = context_size, num_streams
    # a pass must have room for one token of every sequence, or llama.cpp aborts the process
    params.n_batch = max(num_streams, min(n_batch, context_size, MAX_BATCH))
    params.n_ubatch = params.n_batch if attends_ahead else min(params.n_batch, params.n_ubatch)
    # no pass asks for more logits; without a limit llama.cpp reserves scratch for those of
    # every token, 300 MiB with a vocabulary of 150,000
    params.n_outputs_max = min(params.n_batch, num_streams * (1 + settings.max_drafts))
    params.n_threads = params.n_threads_batch = threads
    params.type_k, params.type_v = (CACHE_TYPES[name] for name in cache_dtypes)
    set_context_options(params, settings)
    params.kv_unified = settings.unified
    params.no_perf = True
    return params


def check_size(context_size: int, *, slots: int, num_streams: int) -> None:
    """Raise EngineError (permanent) for what llama.cpp cannot make, or would take all memory to
    try."""
    problem: str | None = None
    if slots > MAX_STREAMS:
        problem = f"{slots} slots: llama.cpp runs at most {MAX_STREAMS} sequences; lower --slots"
    elif context_size < num_streams:
        problem = (
            f"context_size is {context_size} tokens, {slots} slots need {num_streams} at least"
        )
    elif context_size > MAX_CONTEXT:
        problem = f"context_size is {context_size} tokens, the limit is {MAX_CONTEXT}"
    else:
        needed, available = context_size * CELL_BYTES, available_memory_bytes()
        if available is not None and needed > available:
            problem = (
                f"context_size is {context_size} tokens: only to keep track of them takes "
                f"{needed / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are available; "
                "lower context_size"
            )
    if problem is not None:
        raise EngineError(problem, permanent=True)


def shape_of(
    model: object, context: object, settings: EngineSettings, *, whole_images: bool
) -> ContextShape:
    """Return what a context was made with."""
    return ContextShape(
        cells=lib.llama_n_ctx_seq(context),
        n_batch=lib.llama_n_batch(context),
        n_ubatch=lib.llama_n_ubatch(context),
        n_ctx_train=lib.llama_model_n_ctx_train(model),
        n_vocab=lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)),
        num_streams=lib.llama_n_seq_max(context),
        is_unified=settings.unified,
        rules=_memory_rules(model, settings, whole_images=whole_images),
    )


def _memory_rules(model: object, settings: EngineSettings, *, whole_images: bool) -> MemoryRules:
    """Return how the memory of a context can be cut and shared."""
    is_stateful = lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
    window = 0 if settings.swa_full else max(0, lib.llama_model_n_swa(model))
    # In a pool the cells a window has passed are taken by any sequence in any order, so that
    # the oldest position that is left says nothing about those after it.
    is_cut_blindly = bool(window) and settings.unified
    return MemoryRules(
        can_trim=not is_stateful and not is_cut_blindly,
        window=window,
        whole_images=whole_images,
    )


ENCODER_ONLY = (
    "this model is an encoder or has one: it cannot generate text here; set enable_embeddings to "
    "embed with it"
)
