"""Decide whether a model fits, from dry runs that somebody else makes.

:func:`judge_fit` is a generator: it yields the loads it wants to see, one by one, is sent what each
would take, and returns the verdict. It reads no memory and no file.

A refusal is about the numbers given, and nothing else: the load takes more on some device than is
available there. Where context or layers are to be chosen, layers come first: those on a GPU make
all the difference in speed, as long as a slot has a context worth having; then the context takes
what is left. Nothing is chosen that was not dry-run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, TypeAlias

import attrs

from paddler_trio.scheduler.fit.context_sizes import sizes_up_to
from paddler_trio.scheduler.fit.fit_values import (
    ALL_LAYERS,
    HOST,
    LoadShape,
    Need,
    Room,
    Shortage,
    context_of,
    shortages,
)
from paddler_trio.scheduler.fit.largest_fitting import Excess, Fitting, largest_fitting

LEAST_CELLS: Final = 1024
"""A slot's context, if it is chosen: less is no use to anybody."""
WORTHWHILE_CELLS: Final = 4096
"""A slot's context that chosen layers leave room for, if the model has as much."""


@attrs.frozen(kw_only=True)
class Verdict:
    """A judgement on whether a load fits.

    Args:
      shape: what was asked for, with what was chosen in its place.
      need: what that takes.
      shortages: where that is too much; empty if it fits.
      context_is_chosen, layers_are_chosen: they are not what was asked for.
    """

    shape: LoadShape
    need: Need
    shortages: tuple[Shortage, ...] = ()
    context_is_chosen: bool = False
    layers_are_chosen: bool = False

    @property
    def fits(self) -> bool:
        return not self.shortages


Judging: TypeAlias = Generator[LoadShape, Need | None, Verdict | None]
"""Yields loads, is sent what each takes: None if llama.cpp refuses it. Returns None if it refuses
what was asked for: then there is nothing to judge, and loading it shows why."""
_Search: TypeAlias = Generator[LoadShape, Need | None, Fitting | None]


def judge_fit(
    asked: LoadShape,
    rooms: Mapping[str, Room],
    *,
    chooses_context: bool = False,
    chooses_layers: bool = False,
) -> Judging:
    """Judge a load as the module's docstring says.

    Args:
      asked: its context size and its layers hold where they are to be chosen and cannot be, since
        it is not known how much memory is free.
      rooms: by device; a device that is not there has room for everything.
    """
    gpus = gpus_of(rooms)
    is_known = all(room.available_bytes is not None for room in rooms.values()) and bool(rooms)
    layers_are_chosen = chooses_layers and (is_known or not gpus)
    if chooses_layers and not gpus:
        asked = attrs.evolve(asked, n_gpu_layers=0)
    chooses_layers = chooses_layers and is_known and bool(gpus)
    chooses_context = chooses_context and is_known
    if chooses_layers:
        asked = attrs.evolve(asked, n_gpu_layers=ALL_LAYERS)
    if chooses_context:
        asked = attrs.evolve(asked, context_size=0)
    need = yield asked
    if need is None:
        return None
    asked = attrs.evolve(asked, context_size=context_of(asked, need))
    if (chooses_context or chooses_layers) and shortages(need, rooms):
        asked, need = yield from _choose(
            asked, need, rooms, context=chooses_context, layers=chooses_layers
        )
    return Verdict(
        shape=asked,
        need=need,
        shortages=shortages(need, rooms),
        context_is_chosen=chooses_context,
        layers_are_chosen=layers_are_chosen,
    )


def _choose(
    asked: LoadShape, need: Need, rooms: Mapping[str, Room], *, context: bool, layers: bool
) -> Generator[LoadShape, Need | None, tuple[LoadShape, Need]]:
    """Return the best load that fits, with what it takes; the least that could be chosen if none
    does."""
    least = min(LEAST_CELLS, max(1, need.n_ctx_train))
    fewest = asked.n_gpu_layers
    if layers:
        fewest = 0
        cells = (min(WORTHWHILE_CELLS, max(1, need.n_ctx_train)), least) if context else (0,)
        found: Fitting | None = None
        for each in cells:
            shape = attrs.evolve(asked, context_size=each * asked.slots or asked.context_size)
            found = yield from most_layers(shape, need, rooms)
            if found is not None:
                asked, need, fewest = found.shape, found.need, found.value
                break
        if found is not None and not context:
            return asked, need
    if context:
        sizes = sizes_up_to(need.n_ctx_train, slots=asked.slots, least=least)
        shape = attrs.evolve(asked, n_gpu_layers=fewest)
        most = None if layers else (sizes.pop(), need)  # that was dry-run already
        chosen = yield from largest_fitting(
            sizes, lambda size: attrs.evolve(shape, context_size=size), excess(rooms), above=most
        )
        if chosen is not None:
            return chosen.shape, chosen.need
        asked = attrs.evolve(asked, context_size=least * asked.slots)
    smallest = attrs.evolve(asked, n_gpu_layers=fewest)
    taken = yield smallest
    return (asked, need) if taken is None else (smallest, taken)


def most_layers(asked: LoadShape, need: Need, rooms: Mapping[str, Room]) -> _Search:
    """Return the most layers that the GPUs have room for, if the host has room for the rest.

    The host's part shrinks with every layer that a GPU takes: with fewer layers it would not fit
    either.
    """
    found = yield from largest_fitting(
        range(need.n_layers + 1),
        lambda layers: attrs.evolve(asked, n_gpu_layers=layers),
        excess(gpus_of(rooms)),
    )
    return None if found is None or shortages(found.need, rooms) else found


def gpus_of(rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Return the rooms of all devices but the host."""
    return {device: room for device, room in rooms.items() if device != HOST}


def excess(rooms: Mapping[str, Room]) -> Excess:
    """Return what :func:`largest_fitting` compares: the devices of which the room is known."""
    known = [
        (device, available)
        for device, room in sorted(rooms.items())
        if (available := room.available_bytes) is not None
    ]
    return lambda need: [
        (need.bytes_by_device.get(device, 0), available) for device, available in known
    ]
