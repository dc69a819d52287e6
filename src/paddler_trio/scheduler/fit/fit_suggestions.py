"""Find what would fit instead of a load that does not: one change each, and every one dry-run.

Each way is a generator as :func:`~paddler_trio.scheduler.fit.fit_judgement.judge_fit` is one; the
caller may stop after any of them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import attrs

from paddler_trio.scheduler.fit.context_sizes import sizes_below
from paddler_trio.scheduler.fit.fit_judgement import Verdict, excess, gpus_of, most_layers
from paddler_trio.scheduler.fit.fit_values import (
    LoadShape,
    Need,
    Room,
    layers_on_gpu,
    shortages,
)
from paddler_trio.scheduler.fit.largest_fitting import Fitting, largest_fitting

SMALL_DTYPE: Final = "Q8_0"
"""Half of F16, at a loss that is hard to measure."""
LARGER_DTYPES: Final = frozenset({"F32", "F16", "BF16"})


class Change(StrEnum):
    """The difference between a suggestion and what was asked for."""

    CONTEXT_SIZE = "context-size"
    KV_DTYPE = "kv-cache-dtype"
    GPU_LAYERS = "n-gpu-layers"
    SLOTS = "slots"


@attrs.frozen
class Suggestion:
    """A load that fits, and all that it differs in."""

    changes: tuple[Change, ...]
    shape: LoadShape
    need: Need


Way: TypeAlias = Generator[LoadShape, Need | None, Suggestion | None]
"""Yields loads, is sent what each takes: None if llama.cpp refuses it."""


def ways_to_fit(refused: Verdict, rooms: Mapping[str, Room]) -> list[Way]:
    """Return ways with one change each, in the order in which they are usually wanted."""
    shape, need = refused.shape, refused.need
    ways: list[Way] = []
    if not refused.context_is_chosen:
        ways.append(_less_context(shape, need, rooms))
    if _has_large_cache(shape):
        ways.append(_smaller_cache(shape, rooms))
    if not refused.layers_are_chosen and _can_place(rooms):
        ways.append(_other_layers(shape, need, rooms))
    if shape.slots > 1:
        ways.append(_fewer_slots(shape, rooms))
    return ways


def combined_ways(refused: Verdict, rooms: Mapping[str, Room]) -> list[Way]:
    """Return ways for when no single change is enough: the smaller cache with less context."""
    if refused.context_is_chosen or not _has_large_cache(refused.shape):
        return []
    return [_less_context_and_smaller_cache(refused.shape, rooms)]


def context_to_fit(asked: LoadShape, n_ctx_train: int, rooms: Mapping[str, Room]) -> Way:
    """Return the same load with less context, where llama.cpp refuses to make as much as was asked
    for; no more than the model was trained with."""
    most = min(asked.context_size, n_ctx_train * asked.slots + 1)
    found = yield from largest_fitting(
        sizes_below(most, slots=asked.slots),
        lambda size: attrs.evolve(asked, context_size=size),
        excess(rooms),
    )
    return _suggested(found, Change.CONTEXT_SIZE)


def _less_context(asked: LoadShape, need: Need, rooms: Mapping[str, Room]) -> Way:
    found = yield from largest_fitting(
        sizes_below(asked.context_size, slots=asked.slots),
        lambda size: attrs.evolve(asked, context_size=size),
        excess(rooms),
        above=(asked.context_size, need),
    )
    return _suggested(found, Change.CONTEXT_SIZE)


def _smaller_cache(asked: LoadShape, rooms: Mapping[str, Room]) -> Way:
    return (yield from _tried(_with_small_cache(asked), rooms, Change.KV_DTYPE))


def _less_context_and_smaller_cache(asked: LoadShape, rooms: Mapping[str, Room]) -> Way:
    small = _with_small_cache(asked)
    found = yield from largest_fitting(
        sizes_below(asked.context_size, slots=asked.slots),
        lambda size: attrs.evolve(small, context_size=size),
        excess(rooms),
    )
    return _suggested(found, Change.CONTEXT_SIZE, Change.KV_DTYPE)


def _other_layers(asked: LoadShape, need: Need, rooms: Mapping[str, Room]) -> Way:
    found = yield from most_layers(asked, need, rooms)
    if found is not None and found.value == layers_on_gpu(asked, need):
        return None
    return _suggested(found, Change.GPU_LAYERS)


def _fewer_slots(asked: LoadShape, rooms: Mapping[str, Room]) -> Way:
    """Return the load with fewer slots, and as many tokens of context together; from one slot up,
    since most models take no less memory for fewer slots, and then one dry run shows it."""
    best: Suggestion | None = None
    slots = 1
    while slots < asked.slots:
        shape = attrs.evolve(asked, slots=slots)
        suggestion = yield from _tried(shape, rooms, Change.SLOTS)
        if suggestion is None:
            break
        best, slots = suggestion, 2 * slots
    return best


def _tried(shape: LoadShape, rooms: Mapping[str, Room], change: Change) -> Way:
    need = yield shape
    if need is None or shortages(need, rooms):
        return None
    return Suggestion((change,), shape, need)


def _suggested(found: Fitting | None, *changes: Change) -> Suggestion | None:
    return None if found is None else Suggestion(changes, found.shape, found.need)


def _can_place(rooms: Mapping[str, Room]) -> bool:
    """Return whether there are GPUs, and it is known how much of each is free."""
    gpus = gpus_of(rooms)
    return bool(gpus) and all(room.available_bytes is not None for room in gpus.values())


def _has_large_cache(shape: LoadShape) -> bool:
    return not LARGER_DTYPES.isdisjoint({shape.k_cache_dtype, shape.v_cache_dtype})


def _with_small_cache(shape: LoadShape) -> LoadShape:
    def smaller(dtype: str) -> str:
        return SMALL_DTYPE if dtype in LARGER_DTYPES else dtype

    return attrs.evolve(
        shape,
        k_cache_dtype=smaller(shape.k_cache_dtype),
        v_cache_dtype=smaller(shape.v_cache_dtype),
    )
