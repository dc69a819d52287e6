"""``paddler-trio model fit``: would a model fit? Nothing changes."""

from __future__ import annotations

from typing import Annotated, Final

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import CANNOT_SAY, one_line_errors

_LOADING: Final = "Loading (a change reloads the model)"
_SAMPLING: Final = "Sampling (changes in place)"
_EMBEDDINGS: Final = "Embeddings and images"
_CACHE_TYPES: Final = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, IQ4_NL, Q5_0 or Q5_1"
_POOLING_TYPES: Final = "Unspecified, None, Mean, Cls, Last or Rank"


def _option(name: str, panel: str, help_text: str, metavar: str | None = None) -> object:
    return typer.Option(
        name, help=help_text, rich_help_panel=panel, metavar=metavar, show_default=False
    )


ContextSize = Annotated[
    str | None,
    _option(
        "--context-size",
        _LOADING,
        "Tokens of context, shared by an agent's slots; auto for what each agent has memory for.",
        "TOKENS|auto",
    ),
]
NBatch = Annotated[int | None, _option("--n-batch", _LOADING, "Tokens decoded in one pass.")]
NGpuLayers = Annotated[
    str | None,
    _option(
        "--n-gpu-layers",
        _LOADING,
        "Layers put on the GPU; -1 for all, auto for as many as fit on each agent.",
        "LAYERS|auto",
    ),
]
KCacheDtype = Annotated[
    str | None,
    _option("--k-cache-dtype", _LOADING, f"How keys are stored: {_CACHE_TYPES}.", "TYPE"),
]
VCacheDtype = Annotated[
    str | None,
    _option("--v-cache-dtype", _LOADING, f"How values are stored: {_CACHE_TYPES}.", "TYPE"),
]
Temperature = Annotated[
    float | None, _option("--temperature", _SAMPLING, "0 always takes the likeliest token.")
]
TopK = Annotated[int | None, _option("--top-k", _SAMPLING, "Sample from this many tokens; 0: all.")]
TopP = Annotated[
    float | None, _option("--top-p", _SAMPLING, "Sample from the likeliest that add up to this.")
]
MinP = Annotated[
    float | None,
    _option("--min-p", _SAMPLING, "Drop tokens below this fraction of the likeliest one."),
]
PenaltyLastN = Annotated[
    int | None,
    _option("--penalty-last-n", _SAMPLING, "Tokens the penalties look back at; -1: the context."),
]
PenaltyRepeat = Annotated[
    float | None, _option("--penalty-repeat", _SAMPLING, "For tokens seen before; 1 is none.")
]
PenaltyFrequency = Annotated[
    float | None, _option("--penalty-frequency", _SAMPLING, "For each time a token was seen.")
]
PenaltyPresence = Annotated[
    float | None, _option("--penalty-presence", _SAMPLING, "Once for every token seen.")
]
EnableEmbeddings = Annotated[
    bool | None,
    typer.Option(
        "--enable-embeddings/--disable-embeddings",
        help="Make embeddings instead of generating tokens.",
        rich_help_panel=_EMBEDDINGS,
        show_default=False,
    ),
]
EmbeddingBatchSize = Annotated[
    int | None, _option("--embedding-batch-size", _EMBEDDINGS, "Documents in one sub-batch.")
]
Pooling = Annotated[
    str | None,
    _option("--pooling-type", _EMBEDDINGS, f"Token to document: {_POOLING_TYPES}.", "TYPE"),
]
ImageResizeToFit = Annotated[
    int | None, _option("--image-resize-to-fit", _EMBEDDINGS, "Pixels of an image's longer side.")
]


@attrs.frozen(kw_only=True)
class ParameterFlags:
    """All of them; None where a flag was not given."""

    context_size: ContextSize = None
    n_batch: NBatch = None
    n_gpu_layers: NGpuLayers = None
    k_cache_dtype: KCacheDtype = None
    v_cache_dtype: VCacheDtype = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    penalty_last_n: PenaltyLastN = None
    penalty_repeat: PenaltyRepeat = None
    penalty_frequency: PenaltyFrequency = None
    penalty_presence: PenaltyPresence = None
    enable_embeddings: EnableEmbeddings = None
    embedding_batch_size: EmbeddingBatchSize = None
    pooling_type: Pooling = None
    image_resize_to_fit: ImageResizeToFit = None


@attrs.frozen(kw_only=True)
class MemoryFlags:
    """Those that decide how much memory a model takes."""

    context_size: ContextSize = None
    n_gpu_layers: NGpuLayers = None
    k_cache_dtype: KCacheDtype = None
    v_cache_dtype: VCacheDtype = None


@with_flags
def fit(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="A path on the agents, https://..., hf:org/repo[:QUANT] or "
            "hf:org/repo/file@revision.",
            autocompletion=completion_values.models,
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            help="Ask this one, by name or id, instead of all.",
            autocompletion=completion_values.agents,
        ),
    ] = None,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Judge this machine as if it were an idle agent; ask nobody. Done without it, "
            "too, where no balancer runs at the usual address.",
        ),
    ] = False,
    projection: Annotated[
        str | None,
        typer.Option("--projection", metavar="SOURCE", help="Multimodal projection; or none."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, show_default="each agent's own; 1 with --here"),
    ] = None,
    parameters: MemoryFlags,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    if here and agent is not None:
        raise typer.BadParameter("give one of them", param_hint="--here / --agent")
    with one_line_errors(CANNOT_SAY):
        from paddler_trio.cli.model.fit_run import run_fit
        from paddler_trio.cli.model.model_order import ModelRunOptions

        status = run_fit(
            ModelRunOptions.read(
                source=source,
                projection=projection,
                flags=attrs.asdict(parameters),
                file=None,
                template_file=None,
                no_template=False,
            ),
            agent=agent,
            here=here,
            slots=slots,
            as_json=as_json,
            management=management,
        )
    raise typer.Exit(status)
