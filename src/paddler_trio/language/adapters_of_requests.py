"""The adapters that a request chooses, as the engine has them."""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.language.refusal import NotHere, bad_request
from paddler_trio.wire.engine.engine_pipe import AdapterScale
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.trio.adapters import (
    Adapter,
    AdapterChoice,
    UnknownAdapterError,
    places_of,
)


def adapters_of(
    choices: Sequence[AdapterChoice], adapters: Sequence[Adapter]
) -> list[AdapterScale]:
    """Return the places and the scales of what is chosen; raises Refusal."""
    try:
        places = places_of(choices, adapters)
    except UnknownAdapterError as error:
        raise NotHere("BadRequest", {"field": "lora", "message": error.text}) from error
    except ShapeError as error:
        raise bad_request("lora", error.text) from error
    return [AdapterScale(place, scale) for place, scale in places.items()]
