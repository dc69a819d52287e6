"""Models that were pushed to a balancer's store: named by their content.

A *manifest* lists the files of one model. The SHA-256 of its canonical JSON names the model, so
equal files under equal names are one model, whoever pushed them:

    store://sha256/<hex of the manifest>/<name of the first file, or of the projection>

Pure.

Pushed models on an agent: one folder a manifest, so that all parts of a model lie together.

    pushed/<sha256 of the manifest>/<name>
    pushed/<sha256 of the manifest>/.paddler-trio/manifest.json    its canonical text

A file is a hit if the manifest has it and its size fits. Everything blocks; OSErrors pass through.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Final

import attrs

from paddler_trio.errors import WireError
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.hub.hub_cache import OURS, path_problem, quarantined, size_of
from paddler_trio.models.hub.hub_choice import MAX_PARTS
from paddler_trio.system.durable import durably_replace, write_durably
from paddler_trio.wire.codec import canonical, loads, structure, unstructure
from paddler_trio.wire.scalars import IntRange
from paddler_trio.wire.shape import ShapeError

SCHEME: Final = "store://"
MAX_NAME_CHARS: Final = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@~ ()-]*")
_SOURCE = re.compile(r"store://sha256/([0-9a-f]{64})/([^/]+)")


@attrs.frozen
class PushedSource:
    """A model that a ``store://`` source names."""

    manifest_sha256: str
    name: str


def is_pushed(url: str) -> bool:
    """Return whether it is meant to name a pushed model."""
    return url.startswith(SCHEME)


def pushed_source(url: str) -> PushedSource | None:
    """Return what ``url`` names; None if it does not have the form above."""
    match = _SOURCE.fullmatch(url)
    if match is None or pushed_name_problem(match[2]) is not None:
        return None
    return PushedSource(match[1], match[2])


def pushed_name_problem(name: str) -> str | None:
    """Return why a pushed file cannot have this name; None if it can."""
    if len(name) > MAX_NAME_CHARS:
        return f"a name of {len(name)} characters, the limit is {MAX_NAME_CHARS}"
    if _NAME.fullmatch(name) is None or path_problem(name) is not None:
        return (
            f"{name!r} is no name of a pushed file: letters, digits and ._+=@~()- or blanks, "
            "the first one a letter or digit"
        )
    return None


MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_PUSHED_BYTES: Final = 1 << 50
"""The bytes of one file."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@attrs.frozen
class PushedFile:
    """One file of a model.

    Args:
      name: without folders.
      sha256: lower-case hex.

    Raises:
      ShapeError: the name or the hash cannot be.
    """

    name: str
    size: Annotated[int, IntRange(1, MAX_PUSHED_BYTES)]
    sha256: str

    def __attrs_post_init__(self) -> None:
        problem = pushed_name_problem(self.name)
        if problem is not None:
            raise ShapeError(problem, "name")
        if _SHA256.fullmatch(self.sha256) is None:
            raise ShapeError(
                f"{self.sha256[:80]!r} is no SHA-256: 64 hex digits in lower case", "sha256"
            )


@attrs.frozen
class Manifest:
    """The files of one pushed model.

    Args:
      files: the parts in order; names differ.
      projection: what lets the model see images; None if it has none.

    Raises:
      ShapeError: no file, too many, or two with one name.
    """

    files: tuple[PushedFile, ...]
    projection: PushedFile | None

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.files) <= MAX_PARTS:
            raise ShapeError(f"{len(self.files)} files, must be 1 to {MAX_PARTS}", "files")
        names = [file.name for file in self.all_files]
        if len(set(names)) < len(names):
            raise ShapeError("two files have one name", "files")

    @property
    def all_files(self) -> tuple[PushedFile, ...]:
        """All files, the projection included."""
        return self.files if self.projection is None else (*self.files, self.projection)

    @property
    def text(self) -> bytes:
        """The canonical JSON."""
        return canonical(unstructure(self))

    @property
    def sha256(self) -> str:
        """The SHA-256 that names the model."""
        return hashlib.sha256(self.text).hexdigest()

    def source(self, file: PushedFile) -> str:
        """Return how the desired state names the model by its first file, or its projection."""
        return f"{SCHEME}sha256/{self.sha256}/{file.name}"

    def wanted(self, name: str) -> tuple[PushedFile, ...]:
        """Return the files that belong to ``name``: all parts, or the projection; none if there is
        no such name."""
        if self.projection is not None and self.projection.name == name:
            return (self.projection,)
        return self.files if name in {file.name for file in self.files} else ()


def read_manifest(text: bytes) -> Manifest:
    """Return a manifest in its canonical form.

    Errors:
      WireError: it is too long, no manifest, or not canonical: another text of the same would have
        another name.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise WireError(f"a manifest of {len(text)} bytes; the limit is {MAX_MANIFEST_BYTES}")
    manifest = structure(loads(text), Manifest)
    if manifest.text != text:
        raise WireError("the manifest is not in canonical form: sorted keys, no blanks")
    return manifest


@attrs.frozen
class PushedFolder:
    """The place of one pushed model.

    Args:
      root: of all of them.
      sha256: of the manifest; it names the folder.
    """

    root: Path
    sha256: str

    @property
    def path(self) -> Path:
        return self.root / self.sha256

    @property
    def ours(self) -> Path:
        return self.path / OURS

    @property
    def _manifest_path(self) -> Path:
        return self.ours / "manifest.json"

    def lock(self, name: str) -> Path:
        return self.ours / f"{name}.lock"

    def manifest(self) -> Manifest | None:
        """Return the manifest, if it is here and is the one that the folder is named by."""
        try:
            manifest = read_manifest(self._manifest_path.read_bytes())
        except (OSError, WireError):
            return None
        return manifest if manifest.sha256 == self.sha256 else None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Write it down, unless it is."""
        if self.manifest() is None:
            write_durably(self._manifest_path, manifest.text)

    def cached(self, file: PushedFile) -> Path | None:
        """Return the file if it is here in its size."""
        path = self.path / file.name
        return path if not path.is_symlink() and size_of(path) == file.size else None

    def expected(self, name: str) -> ContentHash | None:
        """Return what the file must hash to; None if the manifest does not have it."""
        manifest = self.manifest()
        files = () if manifest is None else manifest.all_files
        found = [file for file in files if file.name == name]
        return ContentHash("sha256", found[0].sha256) if found else None

    def publish(self, partial: Path, name: str) -> Path:
        """Make a finished and verified download the file."""
        path = self.path / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            self.quarantine(name)
        durably_replace(partial, path)
        return path

    def quarantine(self, name: str) -> Path:
        """Move a file out of the way."""
        return quarantined(self.path / name, self.ours)


def pushed_folders(root: Path) -> list[PushedFolder]:
    """Return all folders that are there."""
    return [PushedFolder(root, ours.parent.name) for ours in sorted(root.glob(f"*/{OURS}"))]


def pushed_journals(root: Path) -> list[Path]:
    """Return the journals of every download of a pushed file under way, or left."""
    return list(root.glob(f"*/{OURS}/*.journal"))
