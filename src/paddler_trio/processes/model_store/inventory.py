"""Read from the disk what lies in the folder of a store. Blocking.

The disk is the truth: there is no index that could disagree with it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import attrs
import structlog

from paddler_trio.errors import WireError
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.partial_file import remove
from paddler_trio.models.hub.hub_cache import OURS
from paddler_trio.models.pushed.pushed_model import read_manifest
from paddler_trio.processes.model_store.store_layout import StoreLayout, is_sha256

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
