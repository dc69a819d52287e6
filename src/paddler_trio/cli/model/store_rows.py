"""The rows of ``model list`` for the balancer's store, which tells of files: one for each model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paddler_trio.cli.management_client import Json
from paddler_trio.cli.model.cache_display import size_words, when_words
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.processes.model_store.inventory import (
    MANIFESTS,
    StoredFile,
    StoredModel,
    stored_models,
)

Row = tuple[str, ...]


def store_rows(listing: Json) -> list[Row]:
    """A row for each model, by source, then for what is left of some, and for what arrives."""
    told = {str(entry["key"]): entry for entry in _objects(listing.get("files")) if "key" in entry}
    models = stored_models(_stored_file(key, entry) for key, entry in told.items())
    uses = Counter(file.key for model in models for file in model.files)
    rows: list[Row] = [
        (
            model.source,
            size_words(model.size_bytes),
            "store",
            when_words(int(model.last_use_s)),
            "yes" if all(file.is_verified for file in model.files) else "-",
            _state_words(model, _own(model, uses, told)),
        )
        for model in sorted(models, key=lambda model: not model.is_whole)
        if any(not file.key.startswith(MANIFESTS) for file in model.files)
    ]
    for entry in _objects(listing.get("arriving")):
        size = size_words(entry.get("size_bytes"))
        rows.append((str(entry.get("source")), size, "store", "now", "-", "arriving"))
    return rows


def _own(model: StoredModel, uses: Mapping[str, int], told: Mapping[str, Json]) -> Sequence[Json]:
    """Return what is told of the files that no other model has, or of all if it shares all: a file
    that is shared is desired, or pinned, for the sake of one of its models."""
    own = [told[file.key] for file in model.files if uses[file.key] == 1]
    return own or [told[file.key] for file in model.files]


def _state_words(model: StoredModel, own: Sequence[Json]) -> str:
    words = []
    if not model.is_whole:
        words.append("left of a download")
    part_count, missing = _parts(model)
    if missing:
        words.append(f"{part_count - missing} of {part_count} files")
    for name, word in (("is_desired", "desired"), ("is_pinned", "pinned"), ("is_in_use", "in use")):
        if any(entry.get(name) for entry in own):
            words.append(word)
    return ", ".join(words)


def _parts(model: StoredModel) -> tuple[int, int]:
    """Return how many files the model has, and how many are not here: the store fetches what is
    asked for."""
    names = {name for file in model.files for name in file.names}
    path, commit = model.source, ""
    if model.origin is not None:
        commit = f"@{model.origin.commit}"
        path = model.source.removesuffix(commit)
    parts = part_names(path)
    return len(parts), sum(f"{part}{commit}" not in names for part in parts) if names else 0


def _stored_file(key: str, entry: Json) -> StoredFile:
    names, used_s, size_bytes = (entry.get(k) for k in ("names", "last_use_s", "size_bytes"))
    return StoredFile(
        key=key,
        names=tuple(map(str, names)) if isinstance(names, list) else (),
        size_bytes=size_bytes if isinstance(size_bytes, int) else 0,
        sha256=None,
        is_verified=entry.get("is_verified") is True,
        is_whole=entry.get("is_whole") is True,
        last_use_s=used_s if isinstance(used_s, int | float) else 0.0,
    )


def _objects(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
