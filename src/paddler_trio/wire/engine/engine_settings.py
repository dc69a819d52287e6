"""Settings of engines: decided once by the operator, handed on to every engine."""

from __future__ import annotations

from typing import Final

import attrs

STREAM_INTERVAL_MS: Final = 25.0
"""Forty deliveries a second: more than a reader sees."""
MAX_STREAM_INTERVAL_MS: Final = 1000.0


@attrs.frozen(kw_only=True)
class EngineSettings:
    """Settings of an engine on its machine, whatever model it loads.

    ``unified``: one pool of KV cells for all slots instead of a region for each.
    ``target_pass_ms``: how long a pass may take while sequences wait for their next token, None to
    choose it. ``stream_interval_ms``: how long tokens may wait for those of the next passes, 0 for
    not at all. ``prefix_store_bytes``: host memory for prefixes whose cells were needed, 0 for
    none. ``image_cache_bytes``: host memory for embeddings of images seen before.
    ``max_drafts``: tokens guessed ahead, 0 for none; ``draft_model``: the path of a small model
    that guesses, None to look the guesses up in the text.

    The rest is llama.cpp's: ``flash_attention`` (``auto``, ``on``, ``off``), ``split_mode``
    (``none``, ``layer``, ``row``) with ``main_gpu`` and ``tensor_split``, ``tensor_overrides``
    (``PATTERN=BUFFER``), ``offload_kqv``, ``use_mmap``, ``use_mlock``, ``lora`` (``PATH`` or
    ``PATH=SCALE``), ``rope_scaling`` (``none``, ``linear``, ``yarn``, ``longrope``; empty for the
    model's own) with its numbers (0 or, for YaRN, -1 for the model's own), ``swa_full`` (keep all
    cells of sliding windows), ``rpc`` (``host:port`` of llama.cpp's RPC servers).
    """

    unified: bool = False
    target_pass_ms: float | None = None
    stream_interval_ms: float = STREAM_INTERVAL_MS
    prefix_store_bytes: int = 0
    max_drafts: int = 0
    draft_model: str | None = None
    flash_attention: str = "auto"
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: list[float] = attrs.field(factory=list)
    tensor_overrides: list[str] = attrs.field(factory=list)
    offload_kqv: bool = True
    use_mmap: bool = True
    use_mlock: bool = False
    lora: list[str] = attrs.field(factory=list)
    rope_scaling: str = ""
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: int = 0
    swa_full: bool = False
    rpc: list[str] = attrs.field(factory=list)
    image_cache_bytes: int = 268_435_456
