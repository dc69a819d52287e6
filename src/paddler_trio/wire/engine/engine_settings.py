"""Settings of engines: decided once by the operator, handed on to every engine."""

from __future__ import annotations

from typing import Annotated, Final

import attrs

from paddler_trio.setting import MIB, Kind, Setting, words

STREAM_INTERVAL_MS: Final = 25.0
"""Forty deliveries a second: more than a reader sees."""
MAX_STREAM_INTERVAL_MS: Final = 1000.0
PANEL: Final = "Engine"


@attrs.frozen(kw_only=True)
class EngineSettings:
    """Settings of an engine on its machine, whatever model it loads.

    Numbers of YaRN are -1 where the model's own word counts.
    """

    unified: Annotated[
        bool,
        Setting(
            "Cells of the KV cache: a region for each slot (faster), or one pool for all.",
            flag="--kv-layout",
            panel=PANEL,
            words={"split": False, "unified": True},
        ),
    ] = False
    target_pass_ms: Annotated[
        float | None,
        Setting(
            "Milliseconds a pass may take while somebody waits for the next token; prompts get "
            "what is left.",
            panel=PANEL,
            unset="from measured speed",
            min=1,
        ),
    ] = None
    stream_interval_ms: Annotated[
        float,
        Setting(
            "Milliseconds tokens may wait for those of the next passes, to be delivered together; "
            "passes of more than half of it are not held, nor first tokens and endings. 0: never. "
            "With --upstream: so for the pieces of the server's streams.",
            panel=PANEL,
            min=0,
            max=MAX_STREAM_INTERVAL_MS,
        ),
    ] = STREAM_INTERVAL_MS
    prefix_store_bytes: Annotated[
        int,
        Setting(
            "MiB of host memory for prompts whose KV cells were needed; 0 for none.",
            flag="--prefix-cache-ram",
            panel=PANEL,
            unset="a tenth of what is available, 4096 at most",
            unit=MIB,
            min=0,
        ),
    ] = 0
    image_cache_bytes: Annotated[
        int,
        Setting(
            "MiB of host memory for what images seen before were encoded to; 0 for none.",
            flag="--image-cache-ram",
            panel=PANEL,
            unit=MIB,
            min=0,
        ),
    ] = 268_435_456
    max_drafts: Annotated[
        int,
        Setting(
            "Tokens guessed ahead and checked in the same pass; 0 for none, or for 4 with a "
            "draft model.",
            panel=PANEL,
            min=0,
            max=64,
        ),
    ] = 0
    draft_model: Annotated[
        str | None,
        Setting(
            "A small model of the same vocabulary that guesses; without it guesses are looked up "
            "in the text.",
            panel=PANEL,
            reading=Kind.DRAFT_MODEL,
        ),
    ] = None
    flash_attention: Annotated[
        str,
        Setting("llama.cpp's flash attention.", panel=PANEL, words=words("auto", "on", "off")),
    ] = "auto"
    split_mode: Annotated[
        str,
        Setting(
            "How a model is divided among several GPUs.",
            panel=PANEL,
            words=words("none", "layer", "row"),
        ),
    ] = "layer"
    main_gpu: Annotated[
        int, Setting("The GPU used when it is not divided.", panel=PANEL, min=0)
    ] = 0
    tensor_split: Annotated[
        list[float],
        Setting(
            "Share of each GPU, such as 3,1.",
            panel=PANEL,
            unset="by free memory",
            reading=Kind.TENSOR_SPLIT,
        ),
    ] = attrs.field(factory=list)
    tensor_overrides: Annotated[
        list[str],
        Setting(
            "PATTERN=BUFFER: keep tensors whose name matches in a buffer, such as "
            "'ffn_.*_exps=CPU'; may be repeated.",
            flag="--tensor-override",
            panel=PANEL,
        ),
    ] = attrs.field(factory=list)
    offload_kqv: Annotated[
        bool,
        Setting("Keep the KV cache on the GPU.", flag="--kv-offload/--no-kv-offload", panel=PANEL),
    ] = True
    use_mmap: Annotated[
        bool,
        Setting("Map the model file instead of reading it.", flag="--mmap/--no-mmap", panel=PANEL),
    ] = True
    use_mlock: Annotated[
        bool,
        Setting("Keep the model from being swapped out.", flag="--mlock/--no-mlock", panel=PANEL),
    ] = False
    lora: Annotated[
        list[str],
        Setting("PATH or PATH=SCALE of a LoRA adapter; may be repeated.", panel=PANEL),
    ] = attrs.field(factory=list)
    rope_scaling: Annotated[
        str,
        Setting(
            "How positions beyond training are read.",
            panel=PANEL,
            words={"model": "", **words("none", "linear", "yarn", "longrope")},
        ),
    ] = ""
    rope_freq_base: Annotated[float, Setting("0 for the model's own.", panel=PANEL, min=0)] = 0.0
    rope_freq_scale: Annotated[float, Setting("0 for the model's own.", panel=PANEL, min=0)] = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: Annotated[
        int,
        Setting("Context the model was trained with; 0 for its own word.", panel=PANEL, min=0),
    ] = 0
    swa_full: Annotated[
        bool,
        Setting(
            "Keep every cell of sliding-window layers: more memory, prefixes reusable anywhere.",
            flag="--swa-full/--no-swa-full",
            panel=PANEL,
        ),
    ] = False
    rpc: Annotated[
        list[str],
        Setting(
            "host:port,...: llama.cpp RPC servers to spread the model over.",
            panel=PANEL,
            unset="",
            reading=Kind.RPC_SERVERS,
        ),
    ] = attrs.field(factory=list)
