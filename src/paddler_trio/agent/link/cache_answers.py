"""The answers to commands about the cache, as plain JSON. All of it blocks.

The shapes are those of ``wire/trio/cache_commands.py``. ``check`` is called between files and
pieces of files, and raises when the command is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import structlog

from paddler_trio.models.cache.cache_inventory import (
    CachedModel,
    Inventory,
    Leftover,
    SourcePattern,
    cache_id,
    cache_ids,
    take_inventory,
)
from paddler_trio.models.cache.cache_place import place_of
from paddler_trio.models.cache.cache_prune import (
    InUseError,
    KeepRules,
    remove_leftover,
    remove_model,
    superfluous,
)
from paddler_trio.models.cache.cache_verification import verified
from paddler_trio.models.cache.url_cache import url_text_for_logs
from paddler_trio.models.download.model_download import FetchedModel
from paddler_trio.models.hub.hub_cache import size_of
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.paddler.desired_state import DesiredModel, NoModel, UrlModel
from paddler_trio.wire.trio.cache_commands import CacheProgress, Prune, Pull, Verify

log = structlog.get_logger("cache")


@attrs.frozen
class CacheView:
    """The caches of an agent, and what of them it serves or wants to serve.

    Args:
      loaded: paths of what the engine has.
    """

    hub: HubSettings
    desired: tuple[DesiredModel, ...]
    loaded: tuple[str, ...]

    def patterns(self) -> list[SourcePattern]:
        """Return what selects the models that are desired."""
        return [SourcePattern.of(m) for m in self.desired if not isinstance(m, NoModel)]


def pull_answer(request: Pull, fetched: Sequence[FetchedModel], hub: HubSettings) -> object:
    """Return the answer about what has been fetched, or was here; it counts as used now."""
    files = []
    for model, found in zip(request.models, fetched, strict=True):
        place = place_of(found.path, hub)
        if place is not None:
            place.note_use()
        files.append(
            {
                "source": shown_source(model),
                "path": str(found.path),
                "size_bytes": sum(size_of(path) or 0 for path in found.files),
                "commit": found.commit,
            }
        )
    return {"files": files}


def list_answer(view: CacheView, check: Callable[[], None]) -> object:
    """Return all models that are here."""
    inventory = take_inventory(view.hub, check)
    desired = view.patterns()
    models = [_listed(model, view, desired) for model in inventory.models]
    models += [_listed_leftover(leftover) for leftover in inventory.leftovers]
    shown = {model["path"] for model in models}
    models += [
        _listed_local(path)
        for path in view.loaded
        if path not in shown and place_of(Path(path), view.hub) is None
    ]
    return {
        "caches": list(cache_ids(view.hub)),
        "models": models,
        "left_out": inventory.left_out,
    }


def verify_answer(
    request: Verify,
    view: CacheView,
    check: Callable[[], None],
    show: Callable[[CacheProgress], None],
) -> object:
    """Hash what the sources select; UnknownSourceError for one that is none."""
    patterns = [SourcePattern.parse(source) for source in request.sources]
    inventory = take_inventory(view.hub, check)
    chosen = _selected(inventory, patterns, view.hub)
    places = [(model, place) for model in chosen for place in model.places]
    files = []
    for index, (model, place) in enumerate(places, 1):
        hashing = _Hashing(
            check,
            show,
            CacheProgress(
                id="",
                phase="hashing",
                source=model.source,
                filename=place.path.name,
                file_index=index,
                file_count=len(places),
                total_bytes=size_of(place.path) or 0,
            ),
        )
        result, problem = "unknown", None
        try:
            is_right = verified(place.path, view.hub, hashing.advance)
            if is_right is not None:
                result = "matches" if is_right else "quarantined"
        except OSError as error:
            result, problem = "failed", error.strerror or str(error)
        if result == "quarantined":
            problem = "its content is not what was announced; it is fetched anew when it is needed"
            log.error("a cached file is quarantined", path=str(place.path))
        files.append(
            {
                "source": model.source,
                "path": str(place.path),
                "size_bytes": hashing.progress.total_bytes,
                "result": result,
                "problem": problem,
            }
        )
    return {"files": files}


@attrs.define
class _Hashing:
    """The progress of the hash of one file."""

    check: Callable[[], None]
    show: Callable[[CacheProgress], None]
    progress: CacheProgress
    began_s: float = attrs.field(factory=time.monotonic)

    def advance(self, count: int) -> None:
        self.check()
        current_bytes = self.progress.current_bytes + count
        speed = current_bytes / max(time.monotonic() - self.began_s, 1e-3)
        left_bytes = max(0, (self.progress.total_bytes or 0) - current_bytes)
        self.progress = attrs.evolve(
            self.progress,
            current_bytes=current_bytes,
            bytes_per_s=int(speed),
            remaining_s=min(int(left_bytes / max(speed, 1.0)), 2**32 - 1),
        )
        self.show(self.progress)


def prune_answer(request: Prune, view: CacheView, check: Callable[[], None]) -> object:
    """Remove, or list, what nothing keeps; UnknownSourceError for a source that is none."""
    rules = KeepRules(
        sources=tuple(SourcePattern.parse(source) for source in request.sources),
        newest=request.newest or 0,
        used_within_s=float(request.used_within_s or 0),
    )
    inventory = take_inventory(view.hub, check)
    going = superfluous(inventory, rules, view.patterns(), view.hub, time.time())
    removed, freed_bytes = [], 0
    for found in going:
        check()
        size_bytes, problem = found.size_bytes, None
        if not request.dry_run:
            try:
                size_bytes = _remove(found)
            except InUseError as error:
                size_bytes, problem = 0, str(error)
            except OSError as error:
                size_bytes, problem = 0, error.strerror or str(error)
            log.info("removed from the cache", source=found.source, freed_bytes=size_bytes)
        freed_bytes += size_bytes
        path = found.path if isinstance(found, CachedModel) else found.paths[0]
        removed.append(
            {
                "source": found.source,
                "path": str(path),
                "size_bytes": size_bytes,
                "problem": problem,
            }
        )
    kept = len(inventory.models) + len(inventory.leftovers) - len(going)
    return {"removed": removed, "kept": kept, "freed_bytes": freed_bytes}


def shown_source(model: DesiredModel) -> str:
    """Return the text of a source, of a URL without what may be secret."""
    return url_text_for_logs(model.url) if isinstance(model, UrlModel) else text_of(model)


def _remove(found: CachedModel | Leftover) -> int:
    return remove_model(found) if isinstance(found, CachedModel) else remove_leftover(found)


def _selected(
    inventory: Inventory, patterns: list[SourcePattern], hub: HubSettings
) -> list[CachedModel]:
    return [
        model
        for model in inventory.models
        if not patterns or any(pattern.matches(model, hub) for pattern in patterns)
    ]


def _listed(model: CachedModel, view: CacheView, desired: list[SourcePattern]) -> dict[str, object]:
    return {
        "source": model.source,
        "cache": model.cache,
        "state": "whole" if model.is_whole else "incomplete",
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "total_bytes": None,
        "files": len(model.places),
        "missing_files": model.part_count - len(model.places),
        "revisions": [] if model.origin is None else list(model.origin.revisions),
        "last_used_s": None if model.used_s is None else int(model.used_s),
        "verified_s": None if model.verified_s is None else int(model.verified_s),
        "in_use": model.in_use,
        "is_desired": any(pattern.matches(model, view.hub) for pattern in desired),
    }


def _listed_leftover(leftover: Leftover) -> dict[str, object]:
    return {
        "source": leftover.source,
        "cache": leftover.cache,
        "state": leftover.state,
        "path": str(leftover.paths[0]),
        "size_bytes": leftover.size_bytes,
        "total_bytes": leftover.total_bytes,
        "files": 1,
        "missing_files": 0,
        "revisions": [],
        "last_used_s": int(leftover.modified_s),
        "verified_s": None,
        "in_use": False,
        "is_desired": False,
    }


def _listed_local(path: str) -> dict[str, object]:
    return {
        "source": path,
        "cache": cache_id(Path(path).parent),
        "state": "local",
        "path": path,
        "size_bytes": size_of(Path(path)) or 0,
        "total_bytes": None,
        "files": 1,
        "missing_files": 0,
        "revisions": [],
        "last_used_s": int(time.time()),
        "verified_s": None,
        "in_use": True,
        "is_desired": True,
    }
