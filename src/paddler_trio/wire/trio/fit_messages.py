"""Ask on a link whether a model fits an agent, answer, and report what is held.

All sizes are bytes. ``host`` is the memory of the agent's machine, other devices are named as
llama.cpp names them.
"""

from __future__ import annotations

import attrs

from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    DesiredModel,
)
from paddler_trio.wire.scalars import Int32, Uint32, Uint64
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.trio.desired_state_extras import Extras


@attrs.frozen(kw_only=True)
class FitQuestion:
    """The question whether a state would fit, in the shape in which operators store it.

    ``slots``: None for as many as the agent has.
    """

    state: BalancerDesiredState
    extras: Extras = attrs.field(factory=Extras)
    slots: Uint32 | None = None

    @property
    def sources(self) -> tuple[DesiredModel, ...]:
        """The files that are asked about."""
        return (self.state.model, self.state.multimodal_projection, *self.extras.sources)


@attrs.frozen
class AskFit:
    """Would this state fit, when the model in force is gone? Nothing is changed by it.

    Answered by an ``Answer`` with a :class:`FitReport`. ``slots``: None for as many as the agent
    has. ``beside``: say whether it would be loaded beside the model in force, too; asked only of
    agents that offer ``BESIDE`` (see ``trio_link.py``).
    """

    id: str
    desired_state: AgentDesiredState
    extras: Extras
    slots: Uint32 | None
    beside: bool = attrs.field(default=False, kw_only=True, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class DeviceFit:
    """The memory that a model takes on one device, and what there is.

    ``other``: adapters, the second context that embeds, and on the host the process itself.
    ``free_after``: when the model in force is gone. ``available``: what a model may take, which is
    that less the reserve, and no more than the ``limit``. None where it is unknown, or where there
    is no limit.
    """

    device: str
    weights: Uint64
    kv: Uint64
    compute: Uint64
    projection: Uint64
    draft: Uint64
    other: Uint64
    needed: Uint64
    total: Uint64 | None
    free_now: Uint64 | None
    free_after: Uint64 | None
    reserve: Uint64
    limit: Uint64 | None
    available: Uint64 | None


@attrs.frozen(kw_only=True)
class FitOption:
    """A load that would fit; ``changes`` are the names of what is not as it was asked for."""

    changes: tuple[str, ...]
    context_size: Uint32
    slots: Uint32
    n_gpu_layers: Int32
    k_cache_dtype: str
    v_cache_dtype: str


@attrs.frozen(kw_only=True)
class FitReport:
    """The answer to :class:`AskFit`.

    ``fits`` is None where it cannot be known, and then ``problem`` is why; where it is False,
    ``problem`` has the numbers, and what would fit. ``n_layers`` may be put on a GPU, the output
    layer among them. ``chosen``: names of parameters that the agent chose. ``beside``: whether the
    model in force would go on serving while this one is loaded; None where nothing is in force, and
    where it was not asked. ``slot_context``: the most tokens that one slot may have.
    """

    fits: bool | None
    problem: str | None
    architecture: str
    file_bytes: Uint64
    context_size: Uint32
    n_ctx_train: Uint32
    slots: Uint32
    n_gpu_layers: Int32
    n_layers: Uint32
    k_cache_dtype: str
    v_cache_dtype: str
    chosen: tuple[str, ...]
    devices: tuple[DeviceFit, ...]
    options: tuple[FitOption, ...]
    beside: bool | None = attrs.field(default=None, metadata=OMITTED)
    slot_context: Uint32 | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class DeviceMemory:
    """The memory that the model in force takes on a device: as predicted, and as llama.cpp then
    allocated it; None where it is unknown.

    ``weights``, ``kv`` and ``compute`` are llama.cpp's buffers there; ``free`` is what the device
    had left when the model was loaded.
    """

    device: str
    predicted: Uint64 | None
    actual: Uint64 | None
    weights: Uint64 | None = attrs.field(default=None, metadata=OMITTED)
    kv: Uint64 | None = attrs.field(default=None, metadata=OMITTED)
    compute: Uint64 | None = attrs.field(default=None, metadata=OMITTED)
    free: Uint64 | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class MemoryInForce:
    """The memory of the model in force; ``chosen``: names of parameters that the agent chose;
    ``slot_context``: the most tokens that one slot may have."""

    context_size: Uint32
    n_gpu_layers: Int32
    chosen: tuple[str, ...]
    devices: tuple[DeviceMemory, ...]
    slot_context: Uint32 | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class DeviceRoom:
    """``most``: what all models of a machine together may take of a device, in bytes."""

    device: str
    most: Uint64
