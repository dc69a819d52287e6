"""Find what may be removed from a cache, and remove it.

Never removed: what is desired here, what any process on this machine has marked as in use or is
fetching, and what no agent ever used, because other programs share the Hugging Face cache. A
partial download is left alone for a day: somebody may be about to go on with it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.models.cache.cache_inventory import (
    CachedModel,
    Inventory,
    Leftover,
    SourcePattern,
)
from paddler_trio.models.cache.cache_place import CachePlace, is_lockable, is_locked
from paddler_trio.models.hub.hub_cache import OURS
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel

PARTIAL_GRACE_S: Final = 86_400.0
KEPT_SUFFIXES: Final = frozenset({".partial", ".quarantined"})


class InUseError(Exception):
    """A process needs or fetches the file; the message is which."""


@attrs.frozen(kw_only=True)
class KeepRules:
    """Rules for what stays; a model that one rule keeps is kept.

    Args:
      sources: models that these select.
      newest: so many, by last use.
      used_within_s: what was used in the last so many seconds.
    """

    sources: tuple[SourcePattern, ...] = ()
    newest: int = 0
    used_within_s: float = 0.0


def superfluous(
    inventory: Inventory,
    rules: KeepRules,
    desired: Sequence[SourcePattern],
    settings: HubSettings,
    now_s: float,
) -> list[CachedModel | Leftover]:
    """Return what the rules do not keep and may be removed, longest unused first."""
    known = [model for model in inventory.models if model.used_s is not None]
    known.sort(key=lambda model: model.used_s or 0.0, reverse=True)
    newest = frozenset(known[: rules.newest])
    kept = [*rules.sources, *desired]
    going: list[tuple[float, CachedModel | Leftover]] = []
    for model in known:
        used_s = model.used_s or 0.0
        is_kept = (
            model.in_use
            or model in newest
            or now_s - used_s < rules.used_within_s
            or any(pattern.matches(model, settings) for pattern in kept)
        )
        if not is_kept:
            going.append((used_s, model))
    for leftover in inventory.leftovers:
        is_young = now_s - leftover.modified_s < max(
            rules.used_within_s, PARTIAL_GRACE_S if leftover.state == "partial" else 0.0
        )
        is_wanted = leftover.state == "partial" and any(
            _may_be_of(leftover, pattern) for pattern in kept
        )
        if leftover.state != "arriving" and not is_young and not is_wanted:
            going.append((leftover.modified_s, leftover))
    return [found for _, found in sorted(going, key=lambda pair: pair[0])]


def remove_model(model: CachedModel) -> int:
    """Remove all parts; returns the bytes that are free now.

    Errors:
      InUseError: it is needed or fetched, and all of it is still here.
      OSError: it cannot be removed.
    """
    first = model.places[0]  # it alone is marked, for all parts
    if not first.use_path.exists():
        first.use_path.touch()
    with _exclusive(first.use_path, "a process on this machine needs it"):
        if any(is_locked(place.lock) for place in model.places):
            raise InUseError("it is being fetched")
        return sum(_remove_file(place) for place in model.places)


def remove_leftover(leftover: Leftover) -> int:
    """Remove bytes that are no model; return how many they were."""
    if leftover.lock is not None and is_locked(leftover.lock):
        raise InUseError("it is being fetched")
    for path in leftover.paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return leftover.size_bytes


def _may_be_of(leftover: Leftover, pattern: SourcePattern) -> bool:
    """Return whether a partial file may be of this one: it is named by its hash, and any of the
    same repository may be the one."""
    reference = pattern.reference
    if isinstance(reference, HuggingFaceModel) or hasattr(reference, "repo_id"):
        return leftover.source.startswith(f"hf:{reference.repo_id}: ")
    name = pattern.text.partition("?")[0].rpartition("/")[2]
    return bool(name) and leftover.source.endswith(f": {name}")


def _remove_file(place: CachePlace) -> int:
    """Remove the link, and the blob unless another link leads to it; return the bytes."""
    size_bytes = place.path.stat().st_size
    blob = None
    if place.path.is_symlink():  # without the .. of the link: its folder may be removed first
        blob = Path(os.path.normpath(place.path.parent / place.path.readlink()))
    place.path.unlink()
    if blob is None:
        (place.ours / f"{place.key}.json").unlink(missing_ok=True)
        _remove_hollow(place.path.parent)
    else:
        _remove_empty(place.path.parent)
        if any(_leads_to(path, blob) for path in _links(blob)):
            return 0
        blob.unlink(missing_ok=True)
    place.verified_path.unlink(missing_ok=True)
    place.use_path.unlink(missing_ok=True)
    return size_bytes


def _links(blob: Path) -> Iterator[Path]:
    return (path for path in (blob.parents[1] / "snapshots").rglob("*") if path.is_symlink())


def _leads_to(link: Path, blob: Path) -> bool:
    return link.readlink().name == blob.name


def _remove_empty(folder: Path) -> None:
    """Remove an empty snapshot and the refs to it: other tools would take them for a fetched
    commit."""
    while folder.parent.name and folder.name != "snapshots":
        if any(folder.iterdir()):
            return
        folder.rmdir()
        if folder.parent.name == "snapshots":
            for ref in (folder.parents[1] / "refs").rglob("*"):
                if ref.is_file() and ref.read_text().strip() == folder.name:
                    ref.unlink()
        folder = folder.parent


def _remove_hollow(folder: Path) -> None:
    """Remove a folder of a URL or of a pushed model that holds only what is known of files that
    went."""
    ours = folder / OURS
    is_hollow = all(path == ours for path in folder.iterdir())
    if is_hollow and not any(path.suffix in KEPT_SUFFIXES for path in ours.iterdir()):
        shutil.rmtree(folder)


@contextmanager
def _exclusive(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock at ``path``; InUseError with the words ``otherwise`` if another has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not is_lockable(descriptor):
            raise InUseError(otherwise)
        yield
    finally:
        os.close(descriptor)
