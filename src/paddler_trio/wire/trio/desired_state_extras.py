"""Settings of all agents that Paddler's desired state has no field for.

Extras are stored and sent beside the desired state, never in it: Paddler's format is frozen. Only
our agents receive them. Empty extras change nothing, not even a digest.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import attrs

from paddler_trio.wire.codec import canonical, unstructure
from paddler_trio.wire.engine.engine_settings import MAX_STREAM_INTERVAL_MS, EngineSettings
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    DesiredModel,
    state_digest,
)
from paddler_trio.wire.scalars import Float32, IntRange, Uint32
from paddler_trio.wire.shape import OMITTED, ShapeError
from paddler_trio.wire.trio.adapters import Adapter, check_adapters

MAX_MARKER_CHARS: Final = 256
MAX_ENTRIES: Final = 128
MAX_TEXT_CHARS: Final = 4096

Bytes: TypeAlias = Annotated[int, IntRange(0, 2**50)]
"""Up to a pebibyte."""
Drafts: TypeAlias = Annotated[int, IntRange(0, 64)]
Gpu: TypeAlias = Annotated[int, IntRange(0, 1023)]


class FlashAttention(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SplitMode(StrEnum):
    NONE = "none"
    LAYER = "layer"
    ROW = "row"


class RopeScaling(StrEnum):
    """``model``: as in the model's own metadata."""

    MODEL = "model"
    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"
    LONGROPE = "longrope"


_LEAST: Final = {
    "target_pass_ms": 1.0,
    "stream_interval_ms": 0.0,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
}
_MOST: Final = {"stream_interval_ms": MAX_STREAM_INTERVAL_MS}


def _plain(value: object) -> object:
    """Return a value as settings hold it: they travel to engines, without enums and tuples."""
    match value:
        case RopeScaling.MODEL:
            return ""
        case StrEnum():
            return value.value
        case tuple():
            return list(value)
        case _:
            return value


def _check_count(entries: tuple[object, ...] | None, name: str) -> None:
    if entries is not None and len(entries) > MAX_ENTRIES:
        raise ShapeError(f"{len(entries)} entries, the limit is {MAX_ENTRIES}", name)


def _check_text(text: str, name: str, *place: int) -> None:
    if not 0 < len(text) <= MAX_TEXT_CHARS or "\0" in text:
        raise ShapeError(
            f"a text of {len(text)} characters, must have 1 to {MAX_TEXT_CHARS} and no NUL",
            *place,
            name,
        )


@attrs.frozen(kw_only=True)
class EngineOverrides:
    """Settings of engines that a state overrides; None leaves an agent's own flag in force.

    Names, units and meanings are those of
    :class:`~paddler_trio.wire.engine.engine_settings.EngineSettings`. Paths are on the agents.

    Raises:
      ShapeError: a number, a text or a list beyond its limit, with the name of its field.
    """

    unified: bool | None = attrs.field(default=None, metadata=OMITTED)
    target_pass_ms: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    stream_interval_ms: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    prefix_store_bytes: Bytes | None = attrs.field(default=None, metadata=OMITTED)
    max_drafts: Drafts | None = attrs.field(default=None, metadata=OMITTED)
    draft_model: str | None = attrs.field(default=None, metadata=OMITTED)
    flash_attention: FlashAttention | None = attrs.field(default=None, metadata=OMITTED)
    split_mode: SplitMode | None = attrs.field(default=None, metadata=OMITTED)
    main_gpu: Gpu | None = attrs.field(default=None, metadata=OMITTED)
    tensor_split: tuple[Float32, ...] | None = attrs.field(default=None, metadata=OMITTED)
    tensor_overrides: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    offload_kqv: bool | None = attrs.field(default=None, metadata=OMITTED)
    use_mmap: bool | None = attrs.field(default=None, metadata=OMITTED)
    use_mlock: bool | None = attrs.field(default=None, metadata=OMITTED)
    lora: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    rope_scaling: RopeScaling | None = attrs.field(default=None, metadata=OMITTED)
    rope_freq_base: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    rope_freq_scale: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    yarn_ext_factor: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    yarn_attn_factor: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    yarn_beta_fast: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    yarn_beta_slow: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    yarn_orig_ctx: Uint32 | None = attrs.field(default=None, metadata=OMITTED)
    swa_full: bool | None = attrs.field(default=None, metadata=OMITTED)
    rpc: tuple[str, ...] | None = attrs.field(default=None, metadata=OMITTED)
    image_cache_bytes: Bytes | None = attrs.field(default=None, metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ShapeError(f"{name} is {value:g}, must be at least {least:g}", name)
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise ShapeError(f"{name} is {value:g}, must be at most {most:g}", name)
        if self.draft_model is not None:
            _check_text(self.draft_model, "draft_model")
        for name in ("tensor_overrides", "lora", "rpc"):
            _check_count(getattr(self, name), name)
            for place, text in enumerate(getattr(self, name) or ()):
                _check_text(text, name, place)
        _check_count(self.tensor_split, "tensor_split")
        for place, part in enumerate(self.tensor_split or ()):
            if part < 0:
                raise ShapeError(f"a part is {part:g}, must be at least 0", place, "tensor_split")

    def over(self, settings: EngineSettings) -> EngineSettings:
        """Return an agent's own settings with these over them."""
        overrides: dict[str, Any] = {  # of as many types as there are fields; a test pairs them up
            field.name: _plain(getattr(self, field.name))
            for field in attrs.fields(EngineOverrides)
            if getattr(self, field.name) is not None
        }
        return attrs.evolve(settings, **overrides)


@attrs.frozen(kw_only=True)
class Markers:
    """Texts that delimit the sections of an answer; None leaves the template's own.

    An empty ``reasoning_close`` or ``tool_open`` means that there is no such section. There is no
    reasoning section either if neither this nor the template has its end.

    Raises:
      ShapeError: a text beyond its limit, with the name of its field.
    """

    reasoning_open: str | None = attrs.field(default=None, metadata=OMITTED)
    reasoning_close: str | None = attrs.field(default=None, metadata=OMITTED)
    tool_open: str | None = attrs.field(default=None, metadata=OMITTED)
    tool_close: str | None = attrs.field(default=None, metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Markers):
            text = getattr(self, field.name)
            if text is not None and len(text) > MAX_MARKER_CHARS:
                raise ShapeError(
                    f"a text of {len(text)} characters, the limit is {MAX_MARKER_CHARS}",
                    field.name,
                )


@attrs.frozen(kw_only=True)
class Automatic:
    """Inference parameters that each agent chooses by itself, as large as its memory allows.

    The numbers in the desired state stay: Paddler's agents use them, and so do ours where it cannot
    be known how much memory is free.
    """

    context_size: bool = attrs.field(default=False, metadata=OMITTED)
    n_gpu_layers: bool = attrs.field(default=False, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class Extras:
    """The settings beside the desired state.

    Args:
      adapters: what requests choose from; those in ``engine.lora`` count for all requests.
    """

    engine: EngineOverrides = attrs.field(factory=EngineOverrides)
    markers: Markers | None = attrs.field(default=None, metadata=OMITTED)
    auto: Automatic | None = attrs.field(default=None, metadata=OMITTED)
    adapters: tuple[Adapter, ...] = attrs.field(default=(), metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        check_adapters(self.adapters, "adapters")

    @property
    def sources(self) -> tuple[DesiredModel, ...]:
        """The sources of the adapters."""
        return tuple(adapter.source for adapter in self.adapters)

    @property
    def automatic(self) -> Automatic:
        """The settings that agents choose by themselves."""
        return self.auto or NOTHING_AUTOMATIC

    @property
    def is_empty(self) -> bool:
        """Return whether agents behave as without extras."""
        return (
            self.engine == NO_EXTRAS.engine
            and self.markers in (None, _NO_MARKERS)
            and self.automatic == NOTHING_AUTOMATIC
            and not self.adapters
        )


NO_EXTRAS: Final = Extras()
NOTHING_AUTOMATIC: Final = Automatic()
_NO_MARKERS: Final = Markers()


@attrs.frozen(kw_only=True)
class ExtendedDesiredState:
    """Paddler's desired state and the extras, as operators set both at once."""

    state: BalancerDesiredState
    extras: Extras


def extended_digest(state: AgentDesiredState, extras: Extras) -> str:
    """Return the digest of a state with extras; without them it is :func:`state_digest`, so that
    all agree."""
    if extras.is_empty:
        return state_digest(state)
    both = {"extras": unstructure(extras), "state": unstructure(state)}
    return hashlib.sha256(canonical(both)).hexdigest()
