"""LoRA adapters of a deployment, and the choice of a request among them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import attrs

from paddler_trio.wire.paddler.desired_state import DesiredModel, NoModel, source_fault
from paddler_trio.wire.scalars import Float32, IntRange, float32
from paddler_trio.wire.shape import OMITTED, ShapeError

MAX_ADAPTERS: Final = 64
"""The adapters of one deployment; each is in the memory of its agents."""
MAX_CHOSEN: Final = 16
"""The adapters of one request: each is computed in every layer."""
MAX_SCALE: Final = 100.0
ADAPTER: Final = "adapter "
"""An agent offers this with the name of each adapter that it has loaded."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")

AdapterId: TypeAlias = Annotated[int, IntRange(0, MAX_ADAPTERS - 1)]


@attrs.frozen(kw_only=True)
class Adapter:
    """An adapter that is loaded beside the weights of a deployment.

    Args:
      source: where agents find it, as models are found.
      scale: how much it counts where a request chooses it without a number.

    Raises:
      ShapeError: a value beyond its limit, with the name of its field.
    """

    name: str
    source: DesiredModel
    scale: Float32 = attrs.field(default=1.0, converter=float32)

    def __attrs_post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ShapeError(
                f"{self.name[:160]!r} cannot name an adapter: 1 to 128 letters, digits and "
                "._:/@+-, the first one a letter or digit",
                "name",
            )
        if isinstance(self.source, NoModel):
            raise ShapeError(f"the adapter {self.name!r} has no source", "source")
        fault = source_fault("source", self.source)
        if fault is not None:
            raise ShapeError(fault.text, "source")
        check_scale(self.scale)


@attrs.frozen(kw_only=True)
class AdapterChoice:
    """An adapter of a request: by ``name`` or by ``id``, the place among the deployment's adapters.
    Without a ``scale`` the adapter's own counts; 0 is as if it were not chosen.

    Balancers send names and scales: places may be others in the state that an agent serves.
    """

    id: AdapterId | None = attrs.field(default=None, metadata=OMITTED)
    name: str | None = attrs.field(default=None, metadata=OMITTED)
    scale: Float32 | None = attrs.field(
        default=None, converter=attrs.converters.optional(float32), metadata=OMITTED
    )

    def __attrs_post_init__(self) -> None:
        if (self.id is None) == (self.name is None):
            raise ShapeError("an adapter is chosen by its id or by its name, one of them")
        if self.scale is not None:
            check_scale(self.scale)


class UnknownAdapterError(ShapeError):
    """A choice names what the deployment does not have, or one adapter twice."""


def check_scale(scale: float) -> None:
    """Raise ShapeError for a scale that is no factor of a model that anybody uses."""
    if not (math.isfinite(scale) and abs(scale) <= MAX_SCALE):
        raise ShapeError(f"scale is {scale:g}, must be {-MAX_SCALE:g} to {MAX_SCALE:g}", "scale")


def check_adapters(adapters: Sequence[Adapter], field: str) -> None:
    """Raise ShapeError if there are too many, or two of one name."""
    if len(adapters) > MAX_ADAPTERS:
        raise ShapeError(f"{len(adapters)} adapters, the limit is {MAX_ADAPTERS}", field)
    seen: set[str] = set()
    for place, adapter in enumerate(adapters):
        if adapter.name in seen:
            raise ShapeError(f"two adapters are named {adapter.name!r}", "name", place, field)
        seen.add(adapter.name)


def places_of(choices: Sequence[AdapterChoice], adapters: Sequence[Adapter]) -> dict[int, float]:
    """Return the places of what is chosen, ascending, and how much each counts, which is not 0.

    Raises:
      ShapeError: too many are chosen.
      UnknownAdapterError: there is none of this id or name, or one is chosen twice.
    """
    if len(choices) > MAX_CHOSEN:
        raise ShapeError(f"{len(choices)} adapters are chosen, the limit is {MAX_CHOSEN}")
    by_name = {adapter.name: place for place, adapter in enumerate(adapters)}
    found: dict[int, float] = {}
    for at, choice in enumerate(choices):
        place = by_name.get(choice.name) if choice.name is not None else choice.id
        field = "id" if choice.name is None else "name"
        if place is None or place >= len(adapters):
            value = choice.id if choice.name is None else repr(choice.name[:160])
            raise UnknownAdapterError(f"there is no adapter {value}: {_known(adapters)}", field, at)
        if place in found:
            name = adapters[place].name
            raise UnknownAdapterError(f"the adapter {name!r} is chosen twice", field, at)
        found[place] = adapters[place].scale if choice.scale is None else choice.scale
    return {place: found[place] for place in sorted(found) if found[place]}


def named(
    choices: Sequence[AdapterChoice], adapters: Sequence[Adapter]
) -> tuple[AdapterChoice, ...]:
    """Return the same choice by names and scales; errors as of :func:`places_of`."""
    return tuple(
        AdapterChoice(name=adapters[place].name, scale=scale)
        for place, scale in places_of(choices, adapters).items()
    )


def _known(adapters: Sequence[Adapter]) -> str:
    if not adapters:
        return "this deployment has none"
    names = ", ".join(f"{place} is {each.name!r}" for place, each in enumerate(adapters[:8]))
    return f"of {len(adapters)}, {names}"
