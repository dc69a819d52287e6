"""The models of a repository to choose among: quantisations with their files and sizes.

Names, and which one is the default, are those of ``hub_choice``: each name chooses its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import attrs

from paddler_trio.models.hub.hub_choice import (
    choose,
    is_projection,
    named_models,
    part_names,
)
from paddler_trio.models.hub.hub_client import HubListing

MAX_QUANTIZATIONS: Final = 200
"""Listed of one repository; four times what the largest ones have."""
MAX_PROJECTIONS: Final = 50


@attrs.frozen
class ListedFile:
    """``size_bytes``: None if the hub did not say."""

    path: str
    size_bytes: int | None


@attrs.frozen
class Quantization:
    """A model: its file, or all its parts in order.

    Args:
      name: such as ``Q4_K_M``; of a file whose name ends with none, that name.
      is_default: what is taken of the repository if nothing is named.
    """

    name: str
    files: tuple[ListedFile, ...]
    is_default: bool

    @property
    def size_bytes(self) -> int | None:
        """The size of all parts; None unless each is known."""
        sizes = [file.size_bytes for file in self.files if file.size_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None


@attrs.frozen
class RepositoryModels:
    """The models that a repository has at a commit, in the hub's order."""

    commit: str
    quantizations: tuple[Quantization, ...]
    projections: tuple[ListedFile, ...]


def models_in(listing: HubListing) -> RepositoryModels:
    """Return the models of a listing; one of which parts are missing is none."""
    present = frozenset(listing.files)
    default = choose(listing.files)
    first = None if default is None else default.model
    by_name = dict(islice(named_models(listing.files).items(), MAX_QUANTIZATIONS))
    if first is not None and first not in by_name.values():
        by_name[first] = first
    models = [(name, path, part_names(path)) for name, path in by_name.items()]
    projections = [path for path in listing.files if is_projection(path)]
    return RepositoryModels(
        listing.commit,
        tuple(
            Quantization(name, _listed(parts, listing), path == first)
            for name, path, parts in models
            if present.issuperset(parts)
        ),
        _listed(projections[:MAX_PROJECTIONS], listing),
    )


def _listed(paths: Sequence[str], listing: HubListing) -> tuple[ListedFile, ...]:
    return tuple(ListedFile(path, listing.sizes_bytes.get(path)) for path in paths)
