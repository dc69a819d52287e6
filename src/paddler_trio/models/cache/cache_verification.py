"""Comparing the content of cached files with what was announced, again. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paddler_trio.models.cache.cache_place import place_of
from paddler_trio.models.cache.content_hash import hash_of_file
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.hub.hub_cache import RepositoryCache
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.pushed.pushed_model import PushedFolder


def verified(
    path: Path, settings: HubSettings, on_chunk: Callable[[int], None] = lambda count: None
) -> bool | None:
    """Hash a cached file again. Blocking.

    Args:
      on_chunk: called with the number of bytes after each few MiB; may raise.

    Returns:
      True if its content is what was announced; False if it is not, and then it was quarantined:
      the next fetch gets it anew. None if nobody announced it, or it is no file of a cache.

    Errors:
      OSError: it cannot be read or moved.
    """
    cache = settings.cache
    if path.is_relative_to(cache):
        folder = path.relative_to(cache).parts[0]
        repository = RepositoryCache(cache, folder.removeprefix("models--").replace("--", "/"))
        expected = repository.expected_hash(path)
        if expected is None:
            return None
        if hash_of_file(path, expected.kind, on_chunk) == expected.hex:
            note_verified(path, settings)
            return True
        blob = path.parent / path.readlink()
        path.unlink()
        repository.quarantine(blob)
        return False
    if path.is_relative_to(settings.url_cache):
        file = UrlFile(path.parent, path.name)
        record = file.cached()
        if record is None:
            return None
        if hash_of_file(path, record.hash.kind, on_chunk) == record.hash.hex:
            note_verified(path, settings)
            return True
        file.quarantine()
        return False
    if path.is_relative_to(settings.pushed_cache):
        pushed = PushedFolder(settings.pushed_cache, path.parent.name)
        expected = pushed.expected(path.name)
        if expected is None:
            return None
        if hash_of_file(path, expected.kind, on_chunk) == expected.hex:
            note_verified(path, settings)
            return True
        pushed.quarantine(path.name)
        return False
    return None


def note_verified(path: Path, settings: HubSettings) -> None:
    """Note that the content of a cached file was compared now and is right. Blocking."""
    place = place_of(path, settings)
    if place is not None:
        place.note_verified()


def note_fetched(path: Path, settings: HubSettings, is_verified: bool) -> None:
    """Note that a cached file has just arrived, and its content was compared if it ``is_verified``.
    It counts as used, or what is left of a model that never became whole would stay for ever.
    Blocking."""
    place = place_of(path, settings)
    if place is None:
        return
    place.note_use()
    if is_verified:
        place.note_verified()
