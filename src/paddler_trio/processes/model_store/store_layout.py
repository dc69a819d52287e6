"""Know where everything lies in the folder of a model store.

    DIR/
      store.lock                  held by the store that runs
      pins.json                   what an operator pinned: a list of keys
      hub/                        a Hugging Face cache, as on every agent: see ``hub_cache``
      urls/                       files of plain URLs, as on every agent: see ``url_cache``
      pushed/
        blobs/<sha256>            a file that was pushed, whole and verified
        manifests/<sha256>        the canonical JSON of a manifest: its own bytes hash to its name
        uploads/                  what has arrived of uploads: <sha256>.partial

A *key* names one file in logs, pins and the list of ``GET /api/v2/store``: its path below DIR, with
slashes. Blobs appear by a rename after their hash was compared, so what has a blob's name is whole.
The time of last access (atime), which the store sets itself, is when a file was used last.

Find the files of a store that the desired models are: these must stay. Blocking.

Anybody who may manage names models, and what they name need not exist. An error here would end the
store, again and again, so a name that leads nowhere is no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urldefrag, urlsplit, urlunsplit

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.hub.hub_cache import OURS, HubCache, name_problem
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.pushed.pushed_model import read_manifest
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel

_SHA256 = re.compile(r"[0-9a-f]{64}")
LOCK_NAME: Final = "store.lock"


def is_sha256(text: str) -> bool:
    """Return whether it is a SHA-256 in lower-case hex."""
    return _SHA256.fullmatch(text) is not None


def checked_sha256(text: str) -> str:
    """Return the parameter of a path; HttpProblem 400 if it is no SHA-256."""
    if not is_sha256(text):
        raise HttpProblem(400, f"{text[:80]!r} is no SHA-256: 64 hex digits in lower case")
    return text


@attrs.frozen
class StoreLayout:
    """See the module docstring. ``root`` is absolute."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / LOCK_NAME

    @property
    def pins(self) -> Path:
        return self.root / "pins.json"

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def urls(self) -> Path:
        return self.root / "urls"

    @property
    def pushed(self) -> Path:
        return self.root / "pushed"

    @property
    def uploads(self) -> Path:
        return self.pushed / "uploads"

    def pushed_blob(self, sha256: str) -> Path:
        """Return the path of a blob; ``sha256`` has passed :func:`is_sha256`."""
        return self.pushed / "blobs" / sha256

    def manifest(self, sha256: str) -> Path:
        """Return the path of a manifest; ``sha256`` has passed :func:`is_sha256`."""
        return self.pushed / "manifests" / sha256

    def key(self, path: Path) -> str:
        """Return what names the file at ``path``, which lies below the root."""
        return path.relative_to(self.root).as_posix()

    def partial_of(self, key: str) -> Path:
        """Return where a download or an upload of the file of ``key`` writes."""
        path = self.root / key
        if path.is_relative_to(self.pushed):
            return self.uploads / f"{path.name}.partial"
        folder = path.parent.parent if path.is_relative_to(self.hub) else path.parent
        return folder / OURS / f"{path.name}.partial"

    def quarantined_key(self, key: str) -> str:
        """Return what names the bytes that came for ``key`` and were wrong."""
        return self.key(self.partial_of(key).with_suffix(".quarantined"))

    def folders(self) -> tuple[Path, ...]:
        """Return all that must be there before the store works."""
        return (
            self.hub,
            self.urls,
            self.pushed / "blobs",
            self.pushed / "manifests",
            self.uploads,
        )


PUSHED_SCHEME = "store"


def desired_files(layout: StoreLayout, models: Iterable[DesiredModel]) -> frozenset[str]:
    """Return the keys of all files of these models, as far as they are known here."""
    keys: set[str] = set()
    for model in models:
        match model:
            case HuggingFaceModel():
                keys.update(_of_hub(layout, model))
            case UrlModel(url) if url.startswith(f"{PUSHED_SCHEME}:"):
                keys.update(_of_pushed(layout, url))
            case UrlModel(url):
                keys.update(_of_url(layout, url))
    return frozenset(keys)


def _of_hub(layout: StoreLayout, model: HuggingFaceModel) -> Iterator[str]:
    if name_problem(model.repo_id, model.filename, model.revision) is not None:
        return
    repository = HubCache(layout.hub).repository(model.repo_id)
    commit = repository.commit_of(model.revision)
    if commit is None:
        return
    for name in part_names(model.filename):
        try:
            blob = repository.pointer(commit, name).readlink().name
        except OSError:  # no link is there, or its path is longer than any can be
            continue
        yield layout.key(repository.blob(blob))


def _of_url(layout: StoreLayout, url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if not parts.hostname:
        return
    before, slash, last = parts.path.rpartition("/")
    for name in (last,) if parts.query else part_names(last):
        address = urlunsplit(parts._replace(path=f"{before}{slash}{name}"))
        yield layout.key(UrlFile.of(layout.urls, urldefrag(address)[0]).path)


def _of_pushed(layout: StoreLayout, url: str) -> Iterator[str]:
    """Yield the manifest and files of ``store://sha256/<hex of the manifest>/<first file's name>``:
    the manifest and its files."""
    sha256 = url.partition("://sha256/")[2].partition("/")[0]
    if not is_sha256(sha256):
        return
    path = layout.manifest(sha256)
    yield layout.key(path)
    try:
        manifest = read_manifest(path.read_bytes())
    except (OSError, WireError):
        return
    for file in manifest.all_files:
        yield layout.key(layout.pushed_blob(file.sha256))
