"""Read from the disk what lies in the folder of a store. Blocking.

The disk is the truth: there is no index that could disagree with it.

The models of a store: which files make one up, and which models a source selects.

A file may belong to several models: two commits of a repository, or two pushes, that share it. What
a download or an upload left, and files that nothing names, are models of their own, named by key.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

import attrs
import structlog

from paddler_trio.errors import WireError
from paddler_trio.models.cache.cache_inventory import HubOrigin, SourcePattern
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.partial_file import remove
from paddler_trio.models.hub.hub_cache import OURS, HubCache
from paddler_trio.models.hub.hub_choice import is_projection, part_names
from paddler_trio.models.model_reference import UnknownSourceError, reference_of
from paddler_trio.models.pushed.pushed_model import pushed_source, read_manifest
from paddler_trio.processes.model_store.store_layout import StoreLayout, desired_files, is_sha256
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

log = structlog.get_logger("store")


@attrs.frozen
class StoredFile:
    """One file of the store.

    Args:
      key: see ``layout``.
      names: what people call it: ``hf:org/repo/file@commit``, a URL without what may be secret.
      size_bytes: that it takes of the disk.
      sha256: of its content; None if nobody knows.
      is_verified: its content was compared with what its source announced.
      is_whole: it can be served; else it is what a download or an upload left, under the key of
        the file that it was to become.
      last_use_s: since the epoch.
    """

    key: str
    names: tuple[str, ...]
    size_bytes: int
    sha256: str | None
    is_verified: bool
    is_whole: bool
    last_use_s: float


def stored_files(layout: StoreLayout) -> list[StoredFile]:
    """Return everything that takes room, in the order of the keys."""
    files = [*_hub_files(layout), *_url_files(layout), *_pushed_files(layout)]
    return sorted(files, key=lambda file: file.key)


def _hub_files(layout: StoreLayout) -> Iterator[StoredFile]:
    for folder in layout.hub.glob("models--*"):
        names = _names_of_blobs(folder)
        for blob in _regular(folder / "blobs"):
            sha256 = blob.name if is_sha256(blob.name) else None
            yield _file(layout, blob, names[blob.name], sha256, is_verified=True)
        yield from _leftovers(layout, folder / OURS, folder / "blobs")


def _names_of_blobs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the files of commits that lead to a blob, by its name."""
    repository = folder.name.removeprefix("models--").replace("--", "/")
    names: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    snapshots = folder / "snapshots"
    for commit in sorted(_folders(snapshots)):
        for path in sorted(commit.rglob("*")):
            if path.is_symlink():
                inside = path.relative_to(commit).as_posix()
                names[path.readlink().name] += (f"hf:{repository}/{inside}@{commit.name}",)
    return names


def _url_files(layout: StoreLayout) -> Iterator[StoredFile]:
    for host in _folders(layout.urls):
        for folder in _folders(host):
            for path in _regular(folder):
                record = UrlFile(folder, path.name).cached()
                if record is not None:
                    name = record.url or f"{host.name}/{path.name}"
                    yield _file(layout, path, (name,), record.hash.hex, is_verified=False)
            yield from _leftovers(layout, folder / OURS, folder)


def _pushed_files(layout: StoreLayout) -> Iterator[StoredFile]:
    names = _names_of_pushed(layout)
    for blob in _regular(layout.pushed / "blobs"):
        yield _file(layout, blob, names[blob.name], blob.name, is_verified=True)
    for manifest in _regular(layout.pushed / "manifests"):
        yield _file(layout, manifest, (), manifest.name, is_verified=True)
    yield from _leftovers(layout, layout.uploads, layout.pushed / "blobs")


def _names_of_pushed(layout: StoreLayout) -> dict[str, tuple[str, ...]]:
    """Return how the desired state names a file, in each model that has it, by its SHA-256."""
    names: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for path in _regular(layout.pushed / "manifests"):
        try:
            manifest = read_manifest(path.read_bytes())
        except (OSError, WireError):
            continue  # it goes at this moment, or is damaged: the file is listed by its key
        for file in manifest.all_files:
            names[file.sha256] += (manifest.source(file),)
    return names


def _leftovers(layout: StoreLayout, folder: Path, wholes: Path) -> Iterator[StoredFile]:
    for path in _regular(folder):
        whole = wholes / path.name.removesuffix(".partial")
        if path.suffix == ".partial" and not whole.exists():
            yield _left(path, layout.key(whole))
        elif path.suffix in {".partial", ".quarantined"}:
            yield _left(path, layout.key(path))


def _left(path: Path, key: str) -> StoredFile:
    status = path.lstat()
    return StoredFile(key, (), status.st_blocks * 512, None, False, False, status.st_mtime)


def _file(
    layout: StoreLayout,
    path: Path,
    names: tuple[str, ...],
    sha256: str | None,
    *,
    is_verified: bool,
) -> StoredFile:
    status = path.lstat()
    return StoredFile(
        layout.key(path), names, status.st_size, sha256, is_verified, True, status.st_atime
    )


def size_on_disk(layout: StoreLayout, key: str) -> int | None:
    """Return what the file of ``key`` takes now, or what a download left of it; None if nothing is
    there. OSError."""
    whole = layout.root / key
    if whole.is_file():
        return whole.lstat().st_size
    partial = layout.partial_of(key)
    return partial.lstat().st_blocks * 512 if partial.is_file() else None


def remove_file(layout: StoreLayout, key: str) -> None:
    """Remove all that belongs to ``key``: the file, what leads to it, what is known of it, and what
    a download left. OSError."""
    whole, partial = layout.root / key, layout.partial_of(key)
    remove(whole)
    for path in _regular(partial.parent):
        if path.stem == whole.name and path.suffix not in {".lock", ".quarantined"}:
            remove(path)
    if whole.parent.name == "blobs" and whole.is_relative_to(layout.hub):
        for commit in _folders(whole.parent.parent / "snapshots"):
            for path in commit.rglob("*"):
                if path.is_symlink() and path.readlink().name == whole.name:
                    remove(path)


def _regular(folder: Path) -> list[Path]:
    """Return the regular files of a folder, links left out; none if there is no such folder."""
    try:
        return [Path(e.path) for e in os.scandir(folder) if e.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(e.path) for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def note_use(path: Path) -> None:
    """Note that ``path`` is used now; its time of modification stays."""
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except OSError as error:  # not there yet, or another user's: it counts as used long ago
        log.debug("the time of use is not kept", path=str(path), reason=error.strerror)


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
