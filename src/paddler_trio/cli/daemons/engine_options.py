"""The engine's settings as options of ``paddler-trio agent``: their words, types and limits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from paddler_trio.cli.model.judged_values import judged
from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import split_address
from paddler_trio.wire.engine.engine_settings import MAX_STREAM_INTERVAL_MS

PANEL = "Engine"
MIB = 1024 * 1024
GGUF_MAGIC = b"GGUF"
DEFAULT_DRAFTS = 4
"""Guessed by a draft model, if the operator names no number."""


class KvLayout(StrEnum):
    SPLIT = "split"
    UNIFIED = "unified"


class FlashAttention(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


class SplitMode(StrEnum):
    none = "none"
    layer = "layer"
    row = "row"


class RopeScaling(StrEnum):
    model = "model"
    none = "none"
    linear = "linear"
    yarn = "yarn"
    longrope = "longrope"


KvLayoutOption: TypeAlias = Annotated[
    KvLayout,
    typer.Option(
        rich_help_panel=PANEL,
        help="Cells of the KV cache: a region for each slot (faster), or one pool for all.",
    ),
]
TargetPassOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=PANEL,
        min=1,
        help="Milliseconds a pass may take while somebody waits for the next token; prompts get "
        "what is left.",
        show_default="from measured speed",
    ),
]
StreamIntervalOption: TypeAlias = Annotated[
    float,
    typer.Option(
        rich_help_panel=PANEL,
        min=0,
        max=MAX_STREAM_INTERVAL_MS,
        help="Milliseconds tokens may wait for those of the next passes, to be delivered together; "
        "passes of more than half of it are not held, nor first tokens and endings. 0: never. With "
        "--upstream: so for the pieces of the server's streams.",
    ),
]
PrefixCacheOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=PANEL,
        min=0,
        help="MiB of host memory for prompts whose KV cells were needed; 0 for none.",
        show_default="a tenth of what is available, 4096 at most",
    ),
]
ImageCacheOption: TypeAlias = Annotated[
    int,
    typer.Option(
        rich_help_panel=PANEL,
        min=0,
        help="MiB of host memory for what images seen before were encoded to; 0 for none.",
    ),
]
DEFAULT_IMAGE_CACHE_MIB = 256
MaxDraftsOption: TypeAlias = Annotated[
    int,
    typer.Option(
        rich_help_panel=PANEL,
        min=0,
        max=64,
        help="Tokens guessed ahead and checked in the same pass; 0 for none, or for 4 with a "
        "draft model.",
    ),
]
DraftModelOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="A small model of the same vocabulary that guesses; without it guesses are looked up "
        "in the text.",
    ),
]
FlashAttentionOption: TypeAlias = Annotated[
    FlashAttention, typer.Option(rich_help_panel=PANEL, help="llama.cpp's flash attention.")
]
SplitModeOption: TypeAlias = Annotated[
    SplitMode,
    typer.Option(rich_help_panel=PANEL, help="How a model is divided among several GPUs."),
]
MainGpuOption: TypeAlias = Annotated[
    int, typer.Option(rich_help_panel=PANEL, min=0, help="The GPU used when it is not divided.")
]
TensorSplitOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="Share of each GPU, such as 3,1.",
        show_default="by free memory",
        callback=judged(lambda text: tensor_split(text)),
    ),
]
TensorOverrideOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="PATTERN=BUFFER: keep tensors whose name matches in a buffer, such as "
        "'ffn_.*_exps=CPU'; may be repeated.",
    ),
]
KvOffloadOption: TypeAlias = Annotated[
    bool, typer.Option(rich_help_panel=PANEL, help="Keep the KV cache on the GPU.")
]
MmapOption: TypeAlias = Annotated[
    bool, typer.Option(rich_help_panel=PANEL, help="Map the model file instead of reading it.")
]
MlockOption: TypeAlias = Annotated[
    bool, typer.Option(rich_help_panel=PANEL, help="Keep the model from being swapped out.")
]
LoraOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=PANEL, help="PATH or PATH=SCALE of a LoRA adapter; may be repeated."
    ),
]
RopeScalingOption: TypeAlias = Annotated[
    RopeScaling, typer.Option(rich_help_panel=PANEL, help="How positions beyond training are read.")
]
RopeFreqBaseOption: TypeAlias = Annotated[
    float, typer.Option(rich_help_panel=PANEL, min=0, help="0 for the model's own.")
]
RopeFreqScaleOption: TypeAlias = Annotated[
    float, typer.Option(rich_help_panel=PANEL, min=0, help="0 for the model's own.")
]
YarnOrigCtxOption: TypeAlias = Annotated[
    int,
    typer.Option(
        rich_help_panel=PANEL, min=0, help="Context the model was trained with; 0 for its own word."
    ),
]
SwaFullOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        rich_help_panel=PANEL,
        help="Keep every cell of sliding-window layers: more memory, prefixes reusable anywhere.",
    ),
]
RpcOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=PANEL,
        help="host:port,...: llama.cpp RPC servers to spread the model over.",
        callback=judged(lambda text: rpc_servers(text)),
    ),
]


def tensor_split(text: str | None) -> list[float]:
    """``3,1`` as numbers; typer.BadParameter if one is none."""
    if text is None:
        return []
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r}: write numbers with commas, such as 3,1", param_hint="--tensor-split"
        ) from error
    if any(not 0 <= part < float("inf") for part in parts):
        raise typer.BadParameter(f"{text!r}: no part may be < 0", param_hint="--tensor-split")
    return parts


def rpc_servers(text: str | None) -> list[str]:
    """``host:port,...`` as a list; typer.BadParameter if one is no address."""
    servers = [] if text is None else text.split(",")
    for server in servers:
        try:
            split_address(server)
        except ConfigurationError as error:
            raise typer.BadParameter(str(error), param_hint="--rpc") from error
    return servers


def draft_model_path(path: Path | None) -> str | None:
    """As the engine is given it; typer.BadParameter for what is no GGUF file here. Whether it has
    the vocabulary of a model, shows when that is loaded."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--draft-model") from error
    if magic != GGUF_MAGIC:
        raise typer.BadParameter(
            f"{path} is no GGUF file: give a small model of the same vocabulary",
            param_hint="--draft-model",
        )
    return str(path)
