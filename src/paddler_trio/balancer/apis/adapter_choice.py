"""The field ``lora`` of requests: which adapters of the deployment the answer is computed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import Field, record
from paddler_trio.balancer.apis.shapes import Integer, ListOf, Number, Text
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.adapters import (
    MAX_ADAPTERS,
    MAX_CHOSEN,
    MAX_SCALE,
    Adapter,
    AdapterChoice,
    named,
)
from paddler_trio.wire.trio.work import Generate, Work

LORA: Final = Field(
    "lora",
    ListOf(
        record(
            "Adapter",
            Field("id", Integer(0, MAX_ADAPTERS - 1), "Its place, as /lora-adapters has it."),
            Field("name", Text(128), "Its name, in the place of the id."),
            Field("scale", Number(-MAX_SCALE, MAX_SCALE), "Absent: the adapter's own; 0: none."),
        ),
        0,
        MAX_CHOSEN,
    ),
    "The adapters of the deployment that the answer is computed with: {id or name, scale}.",
)


def choices_of(lora: Sequence[Any]) -> tuple[AdapterChoice, ...]:
    """Return what ``LORA`` has read; ApiError 400 for one that names no adapter, or two."""
    choices = []
    for place, each in enumerate(lora):
        try:
            choices.append(AdapterChoice(**each))
        except ShapeError as error:
            raise invalid(f"lora[{place}]: {error.text}", f"lora[{place}]") from error
    return tuple(choices)


def with_adapters(works: Sequence[Work], adapters: Sequence[Adapter]) -> Sequence[Work]:
    """Return the works with the adapters that they choose by their names; ApiError 400 for one that
    the deployment does not have."""
    if not any(isinstance(work, Generate) and work.lora for work in works):
        return works
    try:
        return [
            attrs.evolve(work, lora=named(work.lora, adapters))
            if isinstance(work, Generate)
            else work
            for work in works
        ]
    except ShapeError as error:
        where = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path[::-1]
        )
        raise invalid(f"lora{where}: {error.text}", f"lora{where}") from error
