"""The models of a store: which files make one up, and which models a source selects.

A file may belong to several models: two commits of a repository, or two pushes, that share it. What
a download or an upload left, and files that nothing names, are models of their own, named by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit, urlunsplit

import attrs

from paddler_trio.models.cache.cache_inventory import HubOrigin, SourcePattern
from paddler_trio.models.hub.hub_cache import HubCache
from paddler_trio.models.hub.hub_choice import is_projection, part_names
from paddler_trio.models.model_reference import UnknownSourceError, reference_of
from paddler_trio.models.pushed.pushed_model import pushed_source
from paddler_trio.processes.model_store.desired_files import desired_files
from paddler_trio.processes.model_store.inventory import StoredFile
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MANIFESTS = "pushed/manifests/"


@attrs.frozen
class StoredModel:
    """One model, or what is left of one.

    Args:
      source: the text that names it, of its first part; else its key.
      files: that make it up, as far as they are here.
      origin: None unless a hub served it.
    """

    source: str
    files: tuple[StoredFile, ...]
    origin: HubOrigin | None = None

    @property
    def last_use_s(self) -> float:
        """The last use of the file that was used last, since the epoch."""
        return max(file.last_use_s for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_whole(self) -> bool:
        """Return whether all files that are here can be served."""
        return all(file.is_whole for file in self.files)

    def is_called(self, text: str) -> bool:
        """Return whether ``text`` is its source, or the name or the key of one of its files."""
        return text == self.source or any(
            text == file.key or text in file.names for file in self.files
        )


def stored_models(files: Iterable[StoredFile]) -> list[StoredModel]:
    """Return the models of these files, by source. Pure."""
    found: dict[str, list[StoredFile]] = {}
    for file in files:
        for model in _models_of(file):
            found.setdefault(model, []).append(file)
    models = [_model(name, tuple(of_it)) for name, of_it in found.items()]
    return sorted(models, key=lambda model: model.source)


def select(layout: StoreLayout, models: Sequence[StoredModel], text: str) -> list[StoredModel]:
    """Return the models that ``text`` selects: a source, or what the list of the store calls a
    file. Blocking; UnknownSourceError if it names no source."""
    named = [model for model in models if model.is_called(text)]
    if named:
        return named
    pattern = SourcePattern.parse(text)
    if isinstance(pattern.reference, UrlModel):
        keys = desired_files(layout, [pattern.reference])
        return [model for model in models if any(file.key in keys for file in model.files)]
    if pattern.revision is not None and hasattr(pattern.reference, "repo_id"):
        commit = (
            HubCache(layout.hub).repository(pattern.reference.repo_id).commit_of(pattern.revision)
        )
        pattern = attrs.evolve(pattern, revision=commit or pattern.revision)
    return [m for m in models if m.origin is not None and pattern.selects_origin(m.origin)]


def _models_of(file: StoredFile) -> Sequence[str]:
    """Return what names the models that the file belongs to."""
    if file.is_whole and file.key.startswith(MANIFESTS):
        return [f"store://sha256/{file.key.removeprefix(MANIFESTS)}"]
    if not file.is_whole or not file.names:
        return [file.key]
    return list(dict.fromkeys(map(_model_named, file.names)))


def _model_named(name: str) -> str:
    """Return what names all files of one model."""
    pushed = pushed_source(name)
    if pushed is not None:
        return f"store://sha256/{pushed.manifest_sha256}"
    if name.startswith("hf:"):
        reference = _hub_file(name)
        if reference is None:
            return name
        first = part_names(reference.filename)[0]
        return f"hf:{reference.repo_id}/{first}@{reference.revision}"
    parts = urlsplit(name)
    path = PurePosixPath(parts.path)
    return urlunsplit(parts._replace(path=str(path.with_name(part_names(path.name)[0]))))


def _hub_file(name: str) -> HuggingFaceModel | None:
    """Return None for a file of a repository without an organisation, as a cache that was copied
    here may have: no source names those."""
    try:
        reference = reference_of(name)
    except UnknownSourceError:
        return None
    return reference if isinstance(reference, HuggingFaceModel) else None


def _model(name: str, files: tuple[StoredFile, ...]) -> StoredModel:
    reference = _hub_file(name) if name.startswith("hf:") else None
    if reference is not None:
        repo_id, commit, filename = reference.repo_id, reference.revision, reference.filename
        return StoredModel(
            name, files, HubOrigin(repo_id=repo_id, commit=commit, filename=filename, revisions=())
        )
    if name.startswith("store:"):
        names = [each for file in files for each in file.names if each.startswith(f"{name}/")]
        names.sort(key=lambda each: (is_projection(each), each))
        return StoredModel(names[0] if names else files[0].key, files)
    return StoredModel(name, files)
